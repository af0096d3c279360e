// Elementwise kernels, dropout of slices, and batches without rows.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernel_testing.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::test {
namespace {

using kernels::ActivationKind;

// Biases, the residual stream, activations, and dropout by itself.

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

TEST_P(ElementwiseTest, AddBiasAddCopyAndScale) {
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
    Array scaled = biased;
    for (double& value : scaled.values) value *= 0.3;
    kernels::Scale(Stream(), first.View(), 0.3, copy.View());
    ExpectClose(copy.Values(), scaled, Tolerance(kElementwiseFp32, kElementwiseFp64), "0.3 x");
    kernels::Scale(Stream(), first.View(), 0.3, first.View());
    EXPECT_TRUE(copy.SameBits(first)) << "in place";
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

// Dropout on slices of the features and shards of the rows: masks of the whole, wherever a cut
// divides the eight lanes of a counter.

constexpr double kDropoutSlicesFp32 = 2e-6, kDropoutSlicesFp64 = 1e-14;
constexpr std::int64_t kDropoutLength = 12;
constexpr ActivationKind kActivations[] = {ActivationKind::kRelu, ActivationKind::kGelu,
                                           ActivationKind::kSwiglu};

class DropoutSlicesTest : public KernelTest {
 protected:
  // body(rows, columns, dropout of that block) for all blocks of all cuts of [rows, columns].
  template <typename Body>
  void ForEachBlock(std::int64_t rows, std::int64_t columns, double probability, Body body) const {
    for (int row_parts = 1; row_parts <= 3; ++row_parts) {
      for (int column_parts = 1; column_parts <= 5; ++column_parts) {
        for (int block = 0; block < row_parts * column_parts; ++block) {
          const Part row = PartOf(rows, block / column_parts, row_parts);
          const Part column = PartOf(columns, block % column_parts, column_parts);
          kernels::Dropout dropout = MakeDropout(probability, kDropoutLength);
          dropout.first_row = row.begin;
          dropout.first_feature = column.begin;
          body(row, column, dropout);
        }
      }
    }
  }
  static Array Masked(double probability, const Array& x) {
    return Dropout(SiteOf(MakeDropout(probability, kDropoutLength)), kOrdinals, kDropoutLength, x);
  }
};

TEST_P(DropoutSlicesTest, Alone) {
  for (const std::int64_t rows : {0, 1, 7, 33}) {
    for (const std::int64_t columns : {1, 17, 300}) {
      for (const double probability : {0.0, 0.3}) {
        const Array x = Random(rows, columns, 1);
        const Operand in(GetParam(), x), whole(GetParam(), Poison(rows, columns));
        kernels::DropoutForward(Stream(), in.View(), MakeDropout(probability, kDropoutLength),
                                whole.View());
        const Array all = whole.Values(), want = Masked(probability, x);
        ForEachBlock(rows, columns, probability,
                     [&](const Part& row, const Part& column, const kernels::Dropout& dropout) {
                       const Operand cut(GetParam(), SliceOf(x, row, column));
                       kernels::DropoutForward(Stream(), cut.View(), dropout, cut.View());
                       EXPECT_EQ(cut.Values().values, SliceOf(all, row, column).values)
                           << "rows from " << row.begin << ", features from " << column.begin;
                       ExpectClose(cut.Values(), SliceOf(want, row, column),
                                   Tolerance(kDropoutSlicesFp32, kDropoutSlicesFp64),
                                   "against the reference");
                     });
      }
    }
  }
}

// Features far out, where a counter's number no longer fits the lanes of one pass.
TEST_P(DropoutSlicesTest, FarFeatures) {
  for (const std::int64_t first : {7, 8, 127, 128, 1000003}) {
    kernels::Dropout dropout = MakeDropout(0.4, kDropoutLength);
    dropout.first_feature = first;
    dropout.first_row = 5;
    const Array x = Random(20, 150, 2);
    Array want = x;
    for (std::int64_t r = 0; r < x.rows; ++r) {
      const std::int64_t row = r + dropout.first_row;
      for (std::int64_t j = 0; j < x.columns; ++j) {
        want(r, j) *= DropoutFactor(SiteOf(dropout),
                                    kOrdinals[static_cast<std::size_t>(row / kDropoutLength)],
                                    row % kDropoutLength, first + j);
      }
    }
    const Operand out(GetParam(), x);
    kernels::DropoutForward(Stream(), out.View(), dropout, out.View());
    ExpectClose(out.Values(), want, Tolerance(kDropoutSlicesFp32, kDropoutSlicesFp64),
                "from " + std::to_string(first));
  }
}

TEST_P(DropoutSlicesTest, Residual) {
  for (const std::int64_t rows : {0, 1, 7, 33}) {
    for (const double probability : {0.0, 0.3}) {
      const Array x = Random(rows, 17, 1), branch = Random(rows, 17, 2), bias = Random(1, 17, 3);
      const Array want = Add(x, Masked(probability, AddRow(branch, bias)));
      ForEachBlock(rows, 17, probability,
                   [&](const Part& row, const Part& column, const kernels::Dropout& dropout) {
                     const Operand residual(GetParam(), SliceOf(x, row, column));
                     const Operand in(GetParam(), SliceOf(branch, row, column));
                     const Operand b(GetParam(), SliceOf(bias, {0, 1}, column));
                     const Operand out(GetParam(), Poison(row.Size(), column.Size()));
                     kernels::ResidualForward(Stream(), residual.View(), in.View(), b.View(),
                                              dropout, out.View());
                     ExpectClose(out.Values(), SliceOf(want, row, column),
                                 Tolerance(kDropoutSlicesFp32, kDropoutSlicesFp64), "residual", 1);
                   });
    }
  }
}

// Rows that are dropped together, by sequence or by word, alone and with elements: the reference's
// rows and masks in every cut, the same in a residual addition.
TEST_P(DropoutSlicesTest, WholeRows) {
  constexpr std::int64_t kRows = 33, kColumns = 17;
  std::vector<std::int32_t> words;
  for (std::int32_t row = 0; row < kRows; ++row) words.push_back(row * row % 7);
  const Array x = Random(kRows, kColumns, 1), branch = Random(kRows, kColumns, 2);
  for (const bool by_word : {false, true}) {
    for (const double probability : {0.0, 0.3}) {
      int gone = 0;
      ForEachBlock(
          kRows, kColumns, probability,
          [&](const Part& row, const Part& column, kernels::Dropout dropout) {
            dropout.row_probability = 0.5;
            dropout.row_purpose = Purpose::kWordDropout;
            if (by_word) dropout.words = words.data();
            const DropoutSite rows = {
                0.5, MakeKey(dropout.seed, Purpose::kWordDropout, dropout.layer, dropout.site)};
            const Array masked = DropRows(rows, kOrdinals, kDropoutLength,
                                          by_word ? words : std::vector<std::int32_t>(),
                                          Masked(probability, branch));
            const Operand alone(GetParam(), SliceOf(branch, row, column));
            kernels::DropoutForward(Stream(), alone.View(), dropout, alone.View());
            ExpectClose(alone.Values(), SliceOf(masked, row, column),
                        Tolerance(kDropoutSlicesFp32, kDropoutSlicesFp64), "alone", 1);
            const Operand in(GetParam(), SliceOf(branch, row, column));
            const Operand to(GetParam(), SliceOf(x, row, column));
            kernels::ResidualForward(Stream(), to.View(), in.View(), None(), dropout, to.View());
            ExpectClose(to.Values(), SliceOf(Add(x, masked), row, column),
                        Tolerance(kDropoutSlicesFp32, kDropoutSlicesFp64), "residual", 1);
            for (std::int64_t i = 0; i < kRows; ++i) {
              const double* const of = &masked.values[static_cast<std::size_t>(i * kColumns)];
              gone += std::all_of(of, of + kColumns, [](double v) { return v == 0; }) ? 1 : 0;
            }
          });
      EXPECT_GT(gone, 0);
    }
  }
}

// Hidden features: a SwiGLU slice is its part of the gate, then its part of the up projection.
Array HiddenSlice(ActivationKind kind, const Array& pre, const Part& row, const Part& column) {
  const Array first = SliceOf(pre, row, column);
  if (kind != ActivationKind::kSwiglu) return first;
  const std::int64_t ffn = pre.columns / 2, n = column.Size();
  Array both(first.rows, 2 * n);
  PlaceSlice(first, 0, 0, both);
  PlaceSlice(SliceOf(pre, row, {ffn + column.begin, ffn + column.end}), 0, n, both);
  return both;
}

TEST_P(DropoutSlicesTest, Activations) {
  const std::int64_t ffn = 17;
  for (const ActivationKind kind : kActivations) {
    const std::int64_t wide = kind == ActivationKind::kSwiglu ? 2 * ffn : ffn;
    for (const std::int64_t rows : {0, 1, 7, 33}) {
      for (const double probability : {0.0, 0.3}) {
        const kernels::Dropout all = MakeDropout(probability, kDropoutLength);
        const Array x = Random(rows, wide, 1, 4), gradient = Random(rows, ffn, 2);
        const Operand pre(GetParam(), x), out(GetParam(), Poison(rows, ffn));
        const Operand dout(GetParam(), gradient), dpre(GetParam(), Poison(rows, wide));
        kernels::ActivationForward(Stream(), kind, pre.View(), None(), all, out.View());
        kernels::ActivationBackward(Stream(), kind,
                                    (kind == ActivationKind::kRelu ? out : pre).View(), all,
                                    dout.View(), dpre.View());
        const Array want = out.Values(), slope = dpre.Values();
        ForEachBlock(
            rows, ffn, probability,
            [&](const Part& row, const Part& column, const kernels::Dropout& dropout) {
              const Operand in(GetParam(), HiddenSlice(kind, x, row, column));
              const Operand d(GetParam(), SliceOf(gradient, row, column));
              const Operand y(GetParam(), Poison(row.Size(), column.Size()));
              kernels::ActivationForward(Stream(), kind, in.View(), None(), dropout, y.View());
              ExpectClose(y.Values(), SliceOf(want, row, column),
                          Tolerance(kDropoutSlicesFp32, kDropoutSlicesFp64), "forward", 1);
              const Operand& saved = kind == ActivationKind::kRelu ? y : in;
              kernels::ActivationBackward(Stream(), kind, saved.View(), dropout, d.View(),
                                          saved.View());
              ExpectClose(saved.Values(), HiddenSlice(kind, slope, row, column),
                          Tolerance(kDropoutSlicesFp32, kDropoutSlicesFp64), "backward", 1);
            });
      }
    }
  }
}

TEST_P(DropoutSlicesTest, TheSameBitsForAnyNumberOfThreads) {
  Setting one = GetParam(), two = GetParam();
  one.threads = 1;
  two.threads = 2;
  const Array x = Random(33, 17, 1);
  ForEachBlock(33, 17, 0.3,
               [&](const Part& row, const Part& column, const kernels::Dropout& dropout) {
                 const Operand a(one, SliceOf(x, row, column)), b(two, SliceOf(x, row, column));
                 kernels::DropoutForward(one.Stream(), a.View(), dropout, a.View());
                 kernels::DropoutForward(two.Stream(), b.View(), dropout, b.View());
                 EXPECT_TRUE(a.SameBits(b));
               });
}

INSTANTIATE_TEST_SUITE_P(Kernel, DropoutSlicesTest, testing::ValuesIn(AllSettings()), NameOf);

// Kernels without rows, as on a rank that has none of a micro-batch: memory stays as it is.

class NoRowsTest : public KernelTest {
 protected:
  static constexpr std::int64_t kColumns = 6;
  const Array weights_ = Random(1, kColumns, 1);
  const Operand none_{GetParam(), Array(0, kColumns)};
  const Operand wide_{GetParam(), Array(0, 2 * kColumns)};
  const Operand weight_{GetParam(), weights_};
  const Operand sums_{GetParam(), weights_};
  const Operand statistics_{Dense(GetParam()), Array(0, 2)};
  const Operand scratch_{Dense(GetParam()), Array(kernels::kReductionBlocks, 2 * kColumns)};
  const kernels::Dropout dropout_ = MakeDropout(0.3, 4);

  void ExpectUntouched() const {
    for (const Operand* each : {&none_, &wide_, &statistics_}) each->Values();  // checks the marks
    EXPECT_EQ(weight_.Values().values, weights_.values);
    EXPECT_EQ(sums_.Values().values, weights_.values);
  }
};

TEST_P(NoRowsTest, Elementwise) {
  using kernels::ActivationKind;
  kernels::AddBias(Stream(), none_.View(), weight_.View());
  kernels::Add(Stream(), none_.View(), none_.View());
  kernels::Copy(Stream(), none_.View(), none_.View());
  kernels::DropoutForward(Stream(), none_.View(), dropout_, none_.View());
  kernels::ResidualForward(Stream(), none_.View(), none_.View(), weight_.View(), dropout_,
                           none_.View());
  for (const ActivationKind kind :
       {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kSwiglu}) {
    const kernels::Matrix pre = (kind == ActivationKind::kSwiglu ? wide_ : none_).View();
    kernels::ActivationForward(Stream(), kind, pre, None(), dropout_, none_.View());
    kernels::ActivationBackward(Stream(), kind, pre, dropout_, none_.View(), pre);
  }
  ExpectUntouched();
}

TEST_P(NoRowsTest, Norms) {
  using kernels::NormKind;
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    kernels::NormForward(Stream(), kind, none_.View(), weight_.View(), None(), 1e-5, none_.View(),
                         statistics_.View());
    kernels::NormBackward(Stream(), {.kind = kind,
                                     .dy = none_.View(),
                                     .x = none_.View(),
                                     .weight = weight_.View(),
                                     .statistics = statistics_.View(),
                                     .dx = none_.View()});
  }
  kernels::NormBackwardWeight(Stream(), none_.View(), none_.View(), statistics_.View(),
                              sums_.View(), sums_.View(), scratch_.View());
  kernels::ColumnSum(Stream(), none_.View(), sums_.View(), scratch_.View());
  ExpectUntouched();
}

TEST_P(NoRowsTest, EmbeddingAndHead) {
  kernels::EmbeddingForward(Stream(), nullptr, 3, weight_.View(), 2, none_.View());
  kernels::EmbeddingBackward(Stream(), nullptr, 3, 2, none_.View(), sums_.View());
  kernels::PositionForward(Stream(), weight_.View(), nullptr, dropout_, none_.View());
  kernels::PositionBackward(Stream(), nullptr, dropout_, none_.View(), sums_.View());
  kernels::CrossEntropy(Stream(), none_.View(), nullptr, {0.1}, true, nullptr);
  kernels::SoftmaxStatistics(Stream(), none_.View(), nullptr, 3, nullptr);
  kernels::CrossEntropySlice(Stream(), none_.View(), nullptr, 3, 40, {0.1}, true, nullptr, 2, 1,
                             nullptr);
  ExpectUntouched();
}

TEST_P(NoRowsTest, Attention) {
  kernels::AttentionShape shape;
  shape.length = 4;
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = 2;  // qkv: 6 columns
  const Operand out(GetParam(), Array(0, 2)), lse(GetParam(), Array(0, 1));
  const Operand scratch(Dense(GetParam()),
                        Array(1, kernels::AttentionScratch({.threads = Stream().threads}, shape,
                                                           Dtype::kFloat64, true)));
  const Operand table(GetParam(), Random(4, 2, 1));
  kernels::Rope(Stream(), shape, table.View(), false, none_.View());
  kernels::AttentionForward(Stream(), shape, none_.View(), dropout_, out.View(), lse.View(),
                            scratch.View());
  kernels::AttentionBackward(Stream(), shape, none_.View(), dropout_, out.View(), out.View(),
                             lse.View(), none_.View(), scratch.View());
  out.Values();
  lse.Values();
  ExpectUntouched();
}

INSTANTIATE_TEST_SUITE_P(Kernel, NoRowsTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
