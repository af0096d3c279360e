// Biases, the residual stream, activations, and dropout by itself.
#include "trireme/kernels/elementwise.hpp"

#include <cmath>

#include "kernel_testing.hpp"

namespace trireme::test {
namespace {

using kernels::ActivationKind;

// Relative to the largest element or, for activations, to 1: in the tail of GELU 1 + tanh cancels.
constexpr double kElementwiseFp32 = 2e-6, kElementwiseFp64 = 1e-14;
constexpr std::int64_t kElementwiseLength =
    17;  // positions a sequence; row counts are not its multiples
constexpr double kProbabilities[] = {0, 0.1, 0.5};
constexpr ActivationKind kElementwiseKinds[] = {ActivationKind::kRelu, ActivationKind::kGelu,
                                                ActivationKind::kSwiglu};

struct ElementwiseSizes {
  std::int64_t rows, columns;
};
std::vector<ElementwiseSizes> ElementwiseAllSizes() {
  std::vector<ElementwiseSizes> sizes;
  for (const std::int64_t rows : {1, 3, 17, 33, 128}) {
    for (const std::int64_t columns : {1, 3, 17, 33, 128, 515}) sizes.push_back({rows, columns});
  }
  return sizes;
}

Array Masked(const kernels::Dropout& dropout, const Array& x) {
  return Dropout(SiteOf(dropout), kOrdinals, dropout.length, x);
}

// act(pre) [rows, ffn] and, times dout, its gradient in the shape of pre.
Array Activated(ActivationKind kind, const Array& pre) {
  const std::int64_t ffn = kind == ActivationKind::kSwiglu ? pre.columns / 2 : pre.columns;
  Array out(pre.rows, ffn);
  for (std::int64_t i = 0; i < pre.rows; ++i) {
    for (std::int64_t j = 0; j < ffn; ++j) {
      const double x = pre(i, j);
      out(i, j) = kind == ActivationKind::kRelu   ? Relu(x)
                  : kind == ActivationKind::kGelu ? Gelu(x)
                                                  : Silu(x) * pre(i, ffn + j);
    }
  }
  return out;
}
Array ActivationGradient(ActivationKind kind, const Array& pre, const Array& dout) {
  Array dpre(pre.rows, pre.columns);
  for (std::int64_t i = 0; i < dout.rows; ++i) {
    for (std::int64_t j = 0; j < dout.columns; ++j) {
      const double x = pre(i, j), d = dout(i, j);
      if (kind == ActivationKind::kSwiglu) {
        dpre(i, j) = d * pre(i, dout.columns + j) * SiluDerivative(x);
        dpre(i, dout.columns + j) = d * Silu(x);
      } else {
        dpre(i, j) = d * (kind == ActivationKind::kRelu ? ReluDerivative(x) : GeluDerivative(x));
      }
    }
  }
  return dpre;
}

class ElementwiseTest : public KernelTest {};

TEST_P(ElementwiseTest, AddBiasAddAndCopy) {
  for (const ElementwiseSizes& size : ElementwiseAllSizes()) {
    const Array x = Random(size.rows, size.columns, 1), y = Random(size.rows, size.columns, 2);
    const Array bias = Random(1, size.columns, 3);
    const Operand first(GetParam(), x), second(GetParam(), y), row(GetParam(), bias);
    kernels::AddBias(Stream(), first.View(), row.View());
    const Array biased = first.Values();
    ExpectClose(biased, AddRow(x, bias), Tolerance(kElementwiseFp32, kElementwiseFp64), "x + bias");
    kernels::Add(Stream(), first.View(), second.View());
    ExpectClose(second.Values(), Add(y, biased), Tolerance(kElementwiseFp32, kElementwiseFp64),
                "y + x");
    EXPECT_EQ(first.Values().values, biased.values) << "Add only reads x";
    const Operand copy(GetParam(), Poison(size.rows, size.columns));
    kernels::Copy(Stream(), first.View(), copy.View());
    EXPECT_TRUE(copy.SameBits(first));
  }
}

TEST_P(ElementwiseTest, Residual) {
  for (const ElementwiseSizes& size : ElementwiseAllSizes()) {
    for (const double probability : kProbabilities) {
      for (const bool biased : {false, true}) {
        const kernels::Dropout dropout = MakeDropout(probability, kElementwiseLength);
        const Array x = Random(size.rows, size.columns, 1);
        const Array branch = Random(size.rows, size.columns, 2);
        const Array bias = biased ? Random(1, size.columns, 3) : Array();
        const Array want = Add(x, Masked(dropout, AddRow(branch, bias)));
        const Operand residual(GetParam(), x), in(GetParam(), branch), row(GetParam(), bias);
        const Operand out(GetParam(), Poison(size.rows, size.columns));
        const kernels::Matrix bias_view = biased ? row.View() : None();
        kernels::ResidualForward(Stream(), residual.View(), in.View(), bias_view, dropout,
                                 out.View());
        ExpectClose(out.Values(), want, Tolerance(kElementwiseFp32, kElementwiseFp64), "residual");
        EXPECT_EQ(residual.Values().values, x.values);
        const Operand same(GetParam(), branch);  // branch may be changed
        kernels::ResidualForward(Stream(), residual.View(), same.View(), bias_view, dropout,
                                 residual.View());
        EXPECT_TRUE(residual.SameBits(out)) << "out = residual";
        const Operand again(GetParam(), x), in_place(GetParam(), branch);
        kernels::ResidualForward(Stream(), again.View(), in_place.View(), bias_view, dropout,
                                 in_place.View());
        EXPECT_TRUE(in_place.SameBits(out)) << "out = branch";
      }
    }
  }
}

TEST_P(ElementwiseTest, ActivationForward) {
  for (const ElementwiseSizes& size : ElementwiseAllSizes()) {
    for (const ActivationKind kind : kElementwiseKinds) {
      const std::int64_t wide = size.columns * (kind == ActivationKind::kSwiglu ? 2 : 1);
      for (const double probability : kProbabilities) {
        for (const bool biased : {false, true}) {
          const kernels::Dropout dropout = MakeDropout(probability, kElementwiseLength);
          const Array x = Random(size.rows, wide, 1, 4);
          const Array bias = biased ? Random(1, wide, 3) : Array();
          const Operand pre(GetParam(), x), row(GetParam(), bias);
          const Operand out(GetParam(), Poison(size.rows, size.columns));
          kernels::ActivationForward(Stream(), kind, pre.View(), biased ? row.View() : None(),
                                     dropout, out.View());
          const Array sum = AddRow(x, bias);
          const std::string what = "kind " + std::to_string(static_cast<int>(kind)) + " columns " +
                                   std::to_string(size.columns);
          ExpectClose(out.Values(), Masked(dropout, Activated(kind, sum)),
                      Tolerance(kElementwiseFp32, kElementwiseFp64), what, 1);
          if (kind != ActivationKind::kRelu) {
            ExpectClose(pre.Values(), sum, Tolerance(kElementwiseFp32, kElementwiseFp64),
                        what + ": pre += bias");
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, ReluInPlace) {
  const kernels::Dropout dropout = MakeDropout(0.25, kElementwiseLength);
  const Array x = Random(40, 33, 1), bias = Random(1, 33, 2);
  const Operand pre(GetParam(), x), row(GetParam(), bias);
  kernels::ActivationForward(Stream(), ActivationKind::kRelu, pre.View(), row.View(), dropout,
                             pre.View());
  ExpectClose(pre.Values(), Masked(dropout, Activated(ActivationKind::kRelu, AddRow(x, bias))),
              Tolerance(kElementwiseFp32, kElementwiseFp64), "in place");
}

TEST_P(ElementwiseTest, ActivationBackward) {
  for (const ElementwiseSizes& size : ElementwiseAllSizes()) {
    for (const ActivationKind kind : kElementwiseKinds) {
      const std::int64_t wide = size.columns * (kind == ActivationKind::kSwiglu ? 2 : 1);
      for (const double probability : kProbabilities) {
        const kernels::Dropout dropout = MakeDropout(probability, kElementwiseLength);
        const Array x = Random(size.rows, wide, 1, 4);
        const Array dout = Random(size.rows, size.columns, 2);
        const Operand pre(GetParam(), x), gradient(GetParam(), dout);
        const Operand out(GetParam(), Poison(size.rows, size.columns));
        const Operand dpre(GetParam(), Poison(size.rows, wide));
        kernels::ActivationForward(Stream(), kind, pre.View(), None(), dropout, out.View());
        const Operand& saved = kind == ActivationKind::kRelu ? out : pre;
        kernels::ActivationBackward(Stream(), kind, saved.View(), dropout, gradient.View(),
                                    dpre.View());
        const std::string what = "kind " + std::to_string(static_cast<int>(kind)) + " columns " +
                                 std::to_string(size.columns);
        ExpectClose(dpre.Values(), ActivationGradient(kind, x, Masked(dropout, dout)),
                    Tolerance(kElementwiseFp32, kElementwiseFp64), what, 1);
        if (kind != ActivationKind::kSwiglu) {
          kernels::ActivationBackward(Stream(), kind, saved.View(), dropout, gradient.View(),
                                      gradient.View());
          EXPECT_TRUE(gradient.SameBits(dpre)) << what << ": dpre = dout";
        }
        const Operand again(GetParam(), dout);
        kernels::ActivationBackward(Stream(), kind, saved.View(), dropout, again.View(),
                                    saved.View());
        EXPECT_TRUE(saved.SameBits(dpre)) << what << ": dpre = pre";
      }
    }
  }
}

// Far out, the exponential over- or underflows: the activation must not.
TEST_P(ElementwiseTest, ActivationsOfExtremeArguments) {
  const Array x(1, 12, {0, -0.0, 1e-30, 5, -5, 20, -20, 90, -90, 1000, -1000, 1e10});
  const std::vector<double> ones(12, 1.0);
  for (const ActivationKind kind : kElementwiseKinds) {
    Array full = x;
    if (kind == ActivationKind::kSwiglu) {  // gate, then up
      full.columns = 24;
      full.values.insert(full.values.end(), ones.begin(), ones.end());
    }
    const Operand pre(GetParam(), full), out(GetParam(), Poison(1, 12));
    const Operand dout(GetParam(), Array(1, 12, ones)), dpre(GetParam(), Poison(1, full.columns));
    const kernels::Dropout none;
    kernels::ActivationForward(Stream(), kind, pre.View(), None(), none, out.View());
    kernels::ActivationBackward(Stream(), kind, (kind == ActivationKind::kRelu ? out : pre).View(),
                                none, dout.View(), dpre.View());
    const Array value = Activated(kind, full),
                slope = ActivationGradient(kind, full, dout.Values());
    const Array got = out.Values(), got_slope = dpre.Values();
    for (std::int64_t j = 0; j < 12; ++j) {
      const double allowed = Tolerance(2e-6, 1e-13);
      EXPECT_NEAR(got(0, j), value(0, j), allowed * (1 + std::abs(value(0, j)))) << x(0, j);
      EXPECT_NEAR(got_slope(0, j), slope(0, j), allowed * (1 + std::abs(slope(0, j)))) << x(0, j);
    }
  }
}

TEST_P(ElementwiseTest, DropoutAlone) {
  for (const ElementwiseSizes& size : ElementwiseAllSizes()) {
    for (const double probability : {0.0, 0.00001, 0.1, 0.5, 0.999}) {
      const kernels::Dropout dropout = MakeDropout(probability, kElementwiseLength);
      const Array x = Random(size.rows, size.columns, 1);
      const Operand in(GetParam(), x), out(GetParam(), Poison(size.rows, size.columns));
      kernels::DropoutForward(Stream(), in.View(), dropout, out.View());
      ExpectClose(out.Values(), Masked(dropout, x), Tolerance(kElementwiseFp32, kElementwiseFp64),
                  "dropout");
      if (!dropout.Active()) {
        EXPECT_TRUE(out.SameBits(in));
      }
      kernels::DropoutForward(Stream(), in.View(), dropout, in.View());
      EXPECT_TRUE(out.SameBits(in)) << "in place";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, ElementwiseTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
