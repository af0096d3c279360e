// LayerNorm, RMSNorm and sums over rows.
#include "trireme/kernels/elementwise.hpp"

#include <cmath>

#include "kernel_testing.hpp"

namespace trireme::test {
namespace {

using kernels::kReductionBlocks;
using kernels::NormKind;

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
      kernels::NormBackwardInput(Stream(), kind, from.View(), in.View(), weight.View(),
                                 statistics.View(), to.View(), accumulate);
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

}  // namespace
}  // namespace trireme::test
