// Dropout on slices of the features and shards of the rows: masks of the whole, wherever a cut
// divides the eight lanes of a counter.
#include "kernel_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

using kernels::ActivationKind;

constexpr double kDropoutSlicesFp32 = 2e-6, kDropoutSlicesFp64 = 1e-14;
constexpr std::int64_t kLength = 12;
constexpr ActivationKind kKinds[] = {ActivationKind::kRelu, ActivationKind::kGelu,
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
          kernels::Dropout dropout = MakeDropout(probability, kLength);
          dropout.first_row = row.begin;
          dropout.first_feature = column.begin;
          body(row, column, dropout);
        }
      }
    }
  }
  static Array Masked(double probability, const Array& x) {
    return Dropout(SiteOf(MakeDropout(probability, kLength)), kOrdinals, kLength, x);
  }
};

TEST_P(DropoutSlicesTest, Alone) {
  for (const std::int64_t rows : {0, 1, 7, 33}) {
    for (const std::int64_t columns : {1, 17, 300}) {
      for (const double probability : {0.0, 0.3}) {
        const Array x = Random(rows, columns, 1);
        const Operand in(GetParam(), x), whole(GetParam(), Poison(rows, columns));
        kernels::DropoutForward(Stream(), in.View(), MakeDropout(probability, kLength),
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
    kernels::Dropout dropout = MakeDropout(0.4, kLength);
    dropout.first_feature = first;
    dropout.first_row = 5;
    const Array x = Random(20, 150, 2);
    Array want = x;
    for (std::int64_t r = 0; r < x.rows; ++r) {
      const std::int64_t row = r + dropout.first_row;
      for (std::int64_t j = 0; j < x.columns; ++j) {
        want(r, j) *=
            DropoutFactor(SiteOf(dropout), kOrdinals[static_cast<std::size_t>(row / kLength)],
                          row % kLength, first + j);
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
  for (const ActivationKind kind : kKinds) {
    const std::int64_t wide = kind == ActivationKind::kSwiglu ? 2 * ffn : ffn;
    for (const std::int64_t rows : {0, 1, 7, 33}) {
      for (const double probability : {0.0, 0.3}) {
        const kernels::Dropout all = MakeDropout(probability, kLength);
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

}  // namespace
}  // namespace trireme::test
