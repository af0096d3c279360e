// Norms, alone and with the sum before them.
#include <cmath>
#include <cstring>

#include "kernel_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

using kernels::kReductionBlocks;
using kernels::NormKind;

// LayerNorm, RMSNorm and sums over rows.

constexpr double kEpsilon = 1e-5;
constexpr double kNormFp32 = 3e-6, kNormFp64 = 1e-13;  // relative to the largest element

model::Norm ReferenceKind(NormKind kind) {
  return kind == NormKind::kLayerNorm ? model::Norm::kLayerNorm : model::Norm::kRmsNorm;
}

struct Sizes {
  std::int64_t rows, dim;
};
std::vector<Sizes> AllSizes() {
  std::vector<Sizes> sizes;
  for (const std::int64_t rows : {1, 3, 17, 33, 128}) {
    for (const std::int64_t dim : {3, 17, 33, 128, 1000}) sizes.push_back({rows, dim});
  }
  sizes.push_back({2000, 9});
  return sizes;
}
std::string Describe(NormKind kind, const Sizes& size) {
  return std::string(kind == NormKind::kLayerNorm ? "LayerNorm" : "RMSNorm") + " [" +
         std::to_string(size.rows) + ", " + std::to_string(size.dim) + "] ";
}

class NormTest : public KernelTest {
 protected:
  // LayerNorm has a bias or not; RMSNorm never.
  template <typename Body>
  void ForEachCase(Body body) const {
    for (const Sizes& size : AllSizes()) {
      for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
        for (const bool biased : {false, true}) {
          if (kind == NormKind::kLayerNorm || !biased) body(kind, size, biased);
        }
      }
    }
  }
  Array Weight(std::int64_t dim) const {
    return AddRow(Array(1, dim, std::vector<double>(static_cast<std::size_t>(dim), 1.0)),
                  Random(1, dim, 7, 0.25));
  }
};

TEST_P(NormTest, Forward) {
  ForEachCase([&](NormKind kind, const Sizes& size, bool biased) {
    const Array x = Random(size.rows, size.dim, 1, 2), weight = Weight(size.dim);
    const Array bias = biased ? Random(1, size.dim, 3) : Array();
    const Operand in(GetParam(), x), scale(GetParam(), weight), shift(GetParam(), bias);
    const Operand y(GetParam(), Poison(size.rows, size.dim));
    const Operand statistics(Dense(GetParam()), Poison(size.rows, 2));
    kernels::NormForward(Stream(), kind, in.View(), scale.View(), biased ? shift.View() : None(),
                         kEpsilon, y.View(), statistics.View());
    ExpectClose(y.Values(), NormForward(ReferenceKind(kind), kEpsilon, x, scale.Values(), bias),
                Tolerance(kNormFp32, kNormFp64), Describe(kind, size));
  });
}

TEST_P(NormTest, StatisticsAreMeanAndReciprocalDeviation) {
  const Array x(2, 4, {1, 2, 3, 6, -1, -1, 1, 1});
  const Operand in(GetParam(), x), weight(GetParam(), Weight(4));
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    const Operand y(GetParam(), Poison(2, 4)), statistics(Dense(GetParam()), Poison(2, 2));
    kernels::NormForward(Stream(), kind, in.View(), weight.View(), None(), 0.5, y.View(),
                         statistics.View());
    const bool centred = kind == NormKind::kLayerNorm;
    const Array want(2, 2,
                     {centred ? 3.0 : 0.0, 1 / std::sqrt((centred ? 3.5 : 12.5) + 0.5), 0.0,
                      1 / std::sqrt(1 + 0.5)});
    ExpectClose(statistics.Values(), want, Tolerance(1e-6, 1e-14), "statistics");
  }
}

// The variance as a difference of squares loses everything here.
TEST_P(NormTest, ALargeMeanDoesNotSpoilTheVariance) {
  Array x = Random(5, 64, 1);
  for (double& value : x.values) value = static_cast<double>(static_cast<float>(value + 3000));
  const Array weight(1, 64, std::vector<double>(64, 1.0));
  const Operand in(GetParam(), x), scale(GetParam(), weight), y(GetParam(), Poison(5, 64));
  const Operand statistics(Dense(GetParam()), Poison(5, 2));
  kernels::NormForward(Stream(), NormKind::kLayerNorm, in.View(), scale.View(), None(), kEpsilon,
                       y.View(), statistics.View());
  // The mean itself is good to half a unit in the last place of 3000: 1.2e-4 of a deviation of
  // 0.58.
  ExpectClose(y.Values(), NormForward(model::Norm::kLayerNorm, kEpsilon, x, weight, {}),
              Tolerance(1e-3, 1e-11), "y");
}

TEST_P(NormTest, BackwardInput) {
  ForEachCase([&](NormKind kind, const Sizes& size, bool) {
    const Array x = Random(size.rows, size.dim, 1, 2), dy = Random(size.rows, size.dim, 2);
    const Array start = Random(size.rows, size.dim, 4);
    const Operand in(GetParam(), x), weight(GetParam(), Weight(size.dim)), gradient(GetParam(), dy);
    const Operand y(GetParam(), Poison(size.rows, size.dim));
    const Operand statistics(Dense(GetParam()), Poison(size.rows, 2));
    kernels::NormForward(Stream(), kind, in.View(), weight.View(), None(), kEpsilon, y.View(),
                         statistics.View());
    const Array want = NormBackward(ReferenceKind(kind), kEpsilon, x, weight.Values(), dy).input;
    const Operand overwritten(GetParam(), Poison(size.rows, size.dim)), sum(GetParam(), start);
    const Operand in_place(GetParam(), dy);
    const auto call = [&](const Operand& from, const Operand& to, bool accumulate) {
      kernels::NormBackward(Stream(), {.kind = kind,
                                       .dy = from.View(),
                                       .x = in.View(),
                                       .weight = weight.View(),
                                       .statistics = statistics.View(),
                                       .residual = accumulate ? to.View() : None(),
                                       .dx = to.View()});
    };
    call(gradient, overwritten, false);
    call(gradient, sum, true);
    call(in_place, in_place, false);
    const double tolerance = Tolerance(kNormFp32, kNormFp64) * 3;
    ExpectClose(overwritten.Values(), want, tolerance, Describe(kind, size) + "dx");
    ExpectClose(sum.Values(), Add(start, want), tolerance, Describe(kind, size) + "dx +=");
    EXPECT_TRUE(in_place.SameBits(overwritten)) << Describe(kind, size) << "in place";
    EXPECT_EQ(gradient.Values().values, dy.values) << "dy is only read";
  });
}

TEST_P(NormTest, BackwardWeight) {
  ForEachCase([&](NormKind kind, const Sizes& size, bool biased) {
    const Array x = Random(size.rows, size.dim, 1, 2), dy = Random(size.rows, size.dim, 2);
    const Array start = Random(1, size.dim, 4), bias_start = Random(1, size.dim, 5);
    const Operand in(GetParam(), x), weight(GetParam(), Weight(size.dim)), gradient(GetParam(), dy);
    const Operand y(GetParam(), Poison(size.rows, size.dim));
    const Operand statistics(Dense(GetParam()), Poison(size.rows, 2));
    kernels::NormForward(Stream(), kind, in.View(), weight.View(), None(), kEpsilon, y.View(),
                         statistics.View());
    const NormGradients want = NormBackward(ReferenceKind(kind), kEpsilon, x, weight.Values(), dy);
    const Operand dweight(GetParam(), start), dbias(GetParam(), bias_start);
    const Operand scratch(Dense(GetParam()), Poison(kReductionBlocks, 2 * size.dim));
    kernels::NormBackwardWeight(Stream(), gradient.View(), in.View(), statistics.View(),
                                dweight.View(), biased ? dbias.View() : None(), scratch.View());
    const double tolerance = Tolerance(kNormFp32, kNormFp64) * 2;
    ExpectClose(dweight.Values(), Add(start, want.weight), tolerance,
                Describe(kind, size) + "dweight");
    ExpectClose(dbias.Values(), biased ? Add(bias_start, want.bias) : bias_start, tolerance,
                Describe(kind, size) + "dbias");
    scratch.Values();
  });
}

TEST_P(NormTest, ColumnSum) {
  for (const Sizes& size : AllSizes()) {
    const Array x = Random(size.rows, size.dim, 1), start = Random(1, size.dim, 2);
    const Operand in(GetParam(), x), sums(GetParam(), start);
    const Operand scratch(Dense(GetParam()), Poison(kReductionBlocks, size.dim));
    kernels::ColumnSum(Stream(), in.View(), sums.View(), scratch.View());
    ExpectClose(sums.Values(), Add(start, SumRows(x)), Tolerance(kNormFp32, kNormFp64),
                Describe(NormKind::kLayerNorm, size) + "column sums");
    scratch.Values();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, NormTest, testing::ValuesIn(AllSettings()), NameOf);

TEST(NormThreads, SumsOverRowsHaveTheSameBitsForAnyNumberOfThreads) {
  for (const std::int64_t rows : {1, 15, 16, 17, 100, 257}) {
    const Setting one{Dtype::kFloat32, 1, 0};
    const Operand x(one, Random(rows, 33, 1)), dy(one, Random(rows, 33, 2));
    const Operand statistics(one, Random(rows, 2, 3)), scratch(one, Poison(kReductionBlocks, 66));
    const Operand dweight(one, Array(1, 33)), dbias(one, Array(1, 33)), sums(one, Array(1, 33));
    kernels::NormBackwardWeight(one.Stream(), dy.View(), x.View(), statistics.View(),
                                dweight.View(), dbias.View(), scratch.View());
    const Operand half(one, Poison(kReductionBlocks, 33));
    kernels::ColumnSum(one.Stream(), x.View(), sums.View(), half.View());
    for (const int threads : {2, 3, 5}) {
      const Setting many{Dtype::kFloat32, threads, 0};
      const Operand dweight2(one, Array(1, 33)), dbias2(one, Array(1, 33)),
          sums2(one, Array(1, 33));
      kernels::NormBackwardWeight(many.Stream(), dy.View(), x.View(), statistics.View(),
                                  dweight2.View(), dbias2.View(), scratch.View());
      kernels::ColumnSum(many.Stream(), x.View(), sums2.View(), half.View());
      EXPECT_TRUE(dweight.SameBits(dweight2)) << rows << " rows, " << threads << " threads";
      EXPECT_TRUE(dbias.SameBits(dbias2)) << rows << " rows, " << threads << " threads";
      EXPECT_TRUE(sums.SameBits(sums2)) << rows << " rows, " << threads << " threads";
    }
  }
}

// Fused passes against the kernels that they consist of, one after the other.

constexpr double kNormFusedEpsilon = 1e-5;
constexpr double kNormFusedFp32 = 3e-6, kNormFusedFp64 = 1e-13;  // relative to the largest element
constexpr std::int64_t kLength = 12;
constexpr NormKind kKinds[] = {NormKind::kLayerNorm, NormKind::kRmsNorm};

struct NormFusedSizes {
  std::int64_t rows, dim;
};
constexpr NormFusedSizes kSizes[] = {{1, 3}, {3, 17}, {33, 128}, {17, 1000}, {90, 24}, {5, 2049}};

kernels::Dropout DropoutOf(double probability) {
  kernels::Dropout dropout = MakeDropout(probability, kLength);
  dropout.first_row = 5;
  dropout.first_feature = 3;
  dropout.row_probability = probability / 2;
  return dropout;
}

class NormFusedTest : public KernelTest {
 protected:
  Operand Hold(const Array& values) const { return {GetParam(), values}; }
  Operand Blank(const NormFusedSizes& size) const { return Hold(Poison(size.rows, size.dim)); }
  Operand Statistics(std::int64_t rows) const { return {Dense(GetParam()), Poison(rows, 2)}; }
};

TEST_P(NormFusedTest, ResidualNormForward) {
  for (const NormFusedSizes& size : kSizes) {
    for (int which = 0; which < 16; ++which) {
      const NormKind kind = kKinds[which & 1];
      const bool biased = (which & 2) != 0, norm_biased = (which & 8) != 0;
      const kernels::Dropout dropout = DropoutOf((which & 4) != 0 ? 0.3 : 0);
      const Array x = Random(size.rows, size.dim, 1, 2), b = Random(size.rows, size.dim, 2);
      const Operand weight = Hold(Random(1, size.dim, 3)), bias = Hold(Random(1, size.dim, 4));
      const Operand norm_bias = Hold(Random(1, size.dim, 5));
      const kernels::Matrix added = biased ? bias.View() : None();
      const kernels::Matrix shift = norm_biased ? norm_bias.View() : None();

      const Operand changed = Hold(b), residual = Hold(x), branch = Hold(b);
      const Operand want_sum = Blank(size), want_y = Blank(size), want = Statistics(size.rows);
      kernels::ResidualForward(Stream(), residual.View(), changed.View(), added, dropout,
                               want_sum.View());
      kernels::NormForward(Stream(), kind, want_sum.View(), weight.View(), shift, kNormFusedEpsilon,
                           want_y.View(), want.View());

      const Operand sum = Blank(size), y = Blank(size), statistics = Statistics(size.rows);
      const auto call = [&](const Operand& from, const Operand& with, const Operand& to) {
        kernels::ResidualNormForward(Stream(), kind, from.View(), with.View(), added, dropout,
                                     to.View(), weight.View(), shift, kNormFusedEpsilon, y.View(),
                                     statistics.View());
        const std::string what = "case " + std::to_string(which);
        ExpectClose(to.Values(), want_sum.Values(), Tolerance(kNormFusedFp32, kNormFusedFp64),
                    what + ": sum");
        ExpectClose(y.Values(), want_y.Values(), Tolerance(kNormFusedFp32, kNormFusedFp64),
                    what + ": y");
        ExpectClose(statistics.Values(), want.Values(), Tolerance(kNormFusedFp32, kNormFusedFp64),
                    what);
      };
      call(residual, branch, sum);
      EXPECT_EQ(residual.Values().values, x.values) << "residual is only read";
      EXPECT_EQ(branch.Values().values, b.values) << "branch is only read";
      call(residual, branch, residual);
      EXPECT_TRUE(residual.SameBits(sum)) << "onto the residual";
      call(Hold(x), branch, branch);
      EXPECT_TRUE(branch.SameBits(sum)) << "onto the branch";
    }
  }
}

// Optional operands of a pass.
struct Options {
  bool more, residual, dbranch, dropout, dweight, dbias;
};
constexpr Options OptionsOf(int bits) {
  return {(bits & 1) != 0, (bits & 2) != 0,  (bits & 4) != 0,
          (bits & 8) != 0, (bits & 16) != 0, (bits & 32) != 0};
}

class NormBackwardTest : public NormFusedTest {
 protected:
  // All operands of a pass, ready to be called.
  struct Operands {
    Operand dy, more, x, weight, statistics, residual, dx, dbranch, dweight, dbias, scratch;

    kernels::NormBackwardPass Pass(NormKind kind, const Options& with) const {
      const auto if_wanted = [](bool wanted, const Operand& operand) {
        return wanted ? operand.View() : None();
      };
      return {.kind = kind,
              .dy = dy.View(),
              .more = if_wanted(with.more, more),
              .x = x.View(),
              .weight = weight.View(),
              .statistics = statistics.View(),
              .residual = if_wanted(with.residual, residual),
              .dropout = DropoutOf(with.dropout ? 0.3 : 0),
              .dx = dx.View(),
              .dbranch = if_wanted(with.dbranch, dbranch),
              .dweight = if_wanted(with.dweight, dweight),
              .dbias = if_wanted(with.dbias, dbias),
              .scratch = scratch.View()};
    }
  };
  Operands Make(NormKind kind, const NormFusedSizes& size) const {
    Operands o{Hold(Random(size.rows, size.dim, 1)),
               Hold(Random(size.rows, size.dim, 2)),
               Hold(Random(size.rows, size.dim, 3, 2)),
               Hold(Random(1, size.dim, 4)),
               Statistics(size.rows),
               Hold(Random(size.rows, size.dim, 5)),
               Blank(size),
               Blank(size),
               Hold(Random(1, size.dim, 6)),
               Hold(Random(1, size.dim, 7)),
               {Dense(GetParam()), Poison(kReductionBlocks, 2 * size.dim)}};
    const Operand y = Blank(size);
    kernels::NormForward(Stream(), kind, o.x.View(), o.weight.View(), None(), kNormFusedEpsilon,
                         y.View(), o.statistics.View());
    return o;
  }
  // The same step by step.
  void Reference(NormKind kind, const Operands& o, const Options& with) const {
    if (with.more) kernels::Add(Stream(), o.more.View(), o.dy.View());
    const Operand dx = Hold(NormBackward(ReferenceKind(kind), kNormFusedEpsilon, o.x.Values(),
                                         o.weight.Values(), o.dy.Values())
                                .input);
    kernels::Copy(Stream(), dx.View(), o.dx.View());
    if (with.residual) kernels::Add(Stream(), o.residual.View(), o.dx.View());
    if (with.dbranch) {
      kernels::DropoutForward(Stream(), o.dx.View(), DropoutOf(with.dropout ? 0.3 : 0),
                              o.dbranch.View());
    }
    const std::int64_t dim = o.x.View().columns;
    const Operand unwanted = Hold(Array(1, dim));
    if (!with.dweight && !with.dbias) return;
    kernels::NormBackwardWeight(Stream(), o.dy.View(), o.x.View(), o.statistics.View(),
                                (with.dweight ? o.dweight : unwanted).View(),
                                with.dbias ? o.dbias.View() : None(), o.scratch.View());
  }
};

TEST_P(NormBackwardTest, AnyOperands) {
  for (const NormFusedSizes& size : kSizes) {
    for (int bits = 0; bits < 64; ++bits) {
      const Options with = OptionsOf(bits);
      const NormKind kind = kKinds[bits % 3 % 2];
      const std::string what = "operands " + std::to_string(bits) + ": ";
      const Operands want = Make(kind, size), got = Make(kind, size);
      Reference(kind, want, with);
      kernels::NormBackward(Stream(), got.Pass(kind, with));
      const double tolerance = Tolerance(kNormFusedFp32, kNormFusedFp64) * 3;
      ExpectClose(got.dx.Values(), want.dx.Values(), tolerance, what + "dx");
      if (with.dbranch) {
        ExpectClose(got.dbranch.Values(), want.dbranch.Values(), tolerance, what + "dbranch");
      }
      ExpectClose(got.dweight.Values(), want.dweight.Values(), tolerance, what + "dweight");
      ExpectClose(got.dbias.Values(), want.dbias.Values(), tolerance, what + "dbias");
      got.scratch.Values();
      const Operands fresh = Make(kind, size);
      EXPECT_TRUE(got.dy.SameBits(fresh.dy) && got.more.SameBits(fresh.more) &&
                  got.x.SameBits(fresh.x) && got.residual.SameBits(fresh.residual))
          << what << "operands are only read";
    }
  }
}

TEST_P(NormBackwardTest, DxMayBeAnOperand) {
  for (const NormFusedSizes& size : kSizes) {
    const Options with{true, true, true, true, true, true};
    const Operands want = Make(NormKind::kLayerNorm, size);
    kernels::NormBackward(Stream(), want.Pass(NormKind::kLayerNorm, with));
    for (Operand Operands::*place : {&Operands::residual, &Operands::dy, &Operands::more}) {
      const Operands got = Make(NormKind::kLayerNorm, size);
      kernels::NormBackwardPass pass = got.Pass(NormKind::kLayerNorm, with);
      pass.dx = (got.*place).View();
      kernels::NormBackward(Stream(), pass);
      EXPECT_TRUE((got.*place).SameBits(want.dx));
      EXPECT_TRUE(got.dbranch.SameBits(want.dbranch));
      EXPECT_TRUE(got.dweight.SameBits(want.dweight));
      EXPECT_TRUE(got.dbias.SameBits(want.dbias));
    }
  }
}

TEST_P(NormBackwardTest, NoRows) {
  const Options with{true, true, true, true, true, true};
  const Operands o = Make(NormKind::kLayerNorm, {0, 6}), fresh = Make(NormKind::kLayerNorm, {0, 6});
  kernels::NormBackward(Stream(), o.Pass(NormKind::kLayerNorm, with));
  kernels::ResidualNormForward(Stream(), NormKind::kLayerNorm, o.residual.View(), o.more.View(),
                               o.dbias.View(), DropoutOf(0.3), o.dx.View(), o.weight.View(),
                               o.weight.View(), kNormFusedEpsilon, o.dbranch.View(),
                               o.statistics.View());
  EXPECT_TRUE(o.dweight.SameBits(fresh.dweight) && o.dbias.SameBits(fresh.dbias));
  EXPECT_TRUE(o.dx.SameBits(fresh.dx) && o.dbranch.SameBits(fresh.dbranch));
}

// Without weights no sums are taken: no scratch is needed.
TEST_P(NormBackwardTest, WithoutScratch) {
  const Operands want = Make(NormKind::kRmsNorm, {33, 20}),
                 got = Make(NormKind::kRmsNorm, {33, 20});
  const Options with{false, true, true, true, false, false};
  kernels::NormBackward(Stream(), want.Pass(NormKind::kRmsNorm, with));
  kernels::NormBackwardPass pass = got.Pass(NormKind::kRmsNorm, with);
  pass.scratch = None();
  kernels::NormBackward(Stream(), pass);
  EXPECT_TRUE(got.dx.SameBits(want.dx) && got.dbranch.SameBits(want.dbranch));
}

INSTANTIATE_TEST_SUITE_P(Kernel, NormFusedTest, testing::ValuesIn(AllSettings()), NameOf);
INSTANTIATE_TEST_SUITE_P(Kernel, NormBackwardTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
