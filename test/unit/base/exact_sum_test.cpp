// Exact sums: any order, cancellation, the ends of the range, rounding, and sums of digits.
#include "trireme/base/exact_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <random>
#include <vector>

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ExactSum SumOf(const std::vector<double>& values) {
  ExactSum sum;
  for (double value : values) sum.Add(value);
  return sum;
}

bool SameBits(double x, double y) {
  return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
}

// Any finite double but for the sign's and exponent's distribution: every bit at random.
std::vector<double> AnyDoubles(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<double> values;
  while (values.size() < count) {
    const double value = std::bit_cast<double>(std::uint64_t{engine()});
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(ExactSum, OneValueIsItself) {
  for (double value : {0.0, 1.0, -1.0, DBL_MAX, -DBL_MAX, DBL_MIN, DBL_TRUE_MIN, -DBL_TRUE_MIN,
                       DBL_MIN - DBL_TRUE_MIN, 0.1, 1e300, 0x1p-1022, 0x1.fffffffffffffp-1000}) {
    EXPECT_TRUE(SameBits(SumOf({value}).Value(), value)) << value;
  }
  for (double value : AnyDoubles(10000, 1)) {
    EXPECT_TRUE(SameBits(SumOf({value}).Value(), value)) << value;
    EXPECT_TRUE(SameBits(SumOf({value, -value, value}).Value(), value)) << value;
  }
  EXPECT_TRUE(SameBits(ExactSum().Value(), 0.0));
  EXPECT_TRUE(SameBits(SumOf({-0.0}).Value(), 0.0));
}

// The sum of two doubles is correctly rounded by the machine itself.
TEST(ExactSum, TwoValuesRoundLikeTheMachine) {
  std::mt19937_64 engine(2);
  const std::vector<double> values = AnyDoubles(20000, 3);
  for (double x : values) {
    // Near enough that both count, across all distances of the exponents.
    const double y = std::ldexp(std::copysign(1.0 + 0x1p-52 * static_cast<double>(engine() >> 12),
                                              engine() % 2 == 0 ? 1.0 : -1.0),
                                std::ilogb(x) + static_cast<int>(engine() % 120) - 60);
    if (!std::isfinite(y)) continue;
    const double sum = x + y;
    EXPECT_TRUE(SameBits(SumOf({x, y}).Value(), sum == 0 ? 0.0 : sum)) << x << " " << y;
  }
}

TEST(ExactSum, TiesGoToEven) {
  EXPECT_EQ(SumOf({1, 0x1p-53}).Value(), 1);
  EXPECT_EQ(SumOf({1, 0x1p-53, DBL_TRUE_MIN}).Value(), 1 + 0x1p-52);
  EXPECT_EQ(SumOf({1, 0x1p-53, -DBL_TRUE_MIN}).Value(), 1);
  EXPECT_EQ(SumOf({1 + 0x1p-52, 0x1p-53}).Value(), 1 + 0x1p-51);
  EXPECT_EQ(SumOf({-1, -0x1p-53, -DBL_TRUE_MIN}).Value(), -1 - 0x1p-52);
  EXPECT_EQ(SumOf({2 - 0x1p-52, 0x1p-53}).Value(), 2);
}

TEST(ExactSum, CancellationLeavesTheRest) {
  EXPECT_EQ(SumOf({1e300, 3.5, -1e300}).Value(), 3.5);
  EXPECT_EQ(SumOf({DBL_MAX, DBL_TRUE_MIN, -DBL_MAX}).Value(), DBL_TRUE_MIN);
  EXPECT_EQ(SumOf({DBL_MAX, -DBL_TRUE_MIN, -DBL_MAX}).Value(), -DBL_TRUE_MIN);
  EXPECT_EQ(SumOf({DBL_MAX, DBL_MAX, -DBL_MAX}).Value(), DBL_MAX);  // beyond the range on the way
}

TEST(ExactSum, BeyondTheRangeIsInfinite) {
  EXPECT_EQ(SumOf({DBL_MAX, DBL_MAX}).Value(), kInfinity);
  EXPECT_EQ(SumOf({-DBL_MAX, -DBL_MAX}).Value(), -kInfinity);
  EXPECT_EQ(SumOf({DBL_MAX, 0x1p970}).Value(), kInfinity);  // half a last place: ties to even
  EXPECT_EQ(SumOf({DBL_MAX, 0x1p969}).Value(), DBL_MAX);
}

TEST(ExactSum, WhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOf({1, nan, 2}).Value()));
  EXPECT_TRUE(std::isnan(SumOf({kInfinity, 1, -kInfinity}).Value()));
  EXPECT_EQ(SumOf({1, kInfinity, -DBL_MAX}).Value(), kInfinity);
  EXPECT_EQ(SumOf({-kInfinity, 1}).Value(), -kInfinity);
  ExactSum sum = SumOf({1});
  sum.Add(SumOf({kInfinity}));
  EXPECT_EQ(sum.Value(), kInfinity);
  EXPECT_TRUE(std::isnan(ExactSum::FromDigits(SumOf({nan}).Digits()).Value()));
}

// Against integers: multiples of 2^-40 below 2^20 in magnitude.
TEST(ExactSum, EqualsAnIntegerSum) {
  std::mt19937_64 engine(4);
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::int64_t want = 0;
    ExactSum sum;
    for (int i = 0; i < 5000; ++i) {
      const std::int64_t term = static_cast<std::int64_t>(engine()) >> 14;  // 50 bits
      want += term;
      sum.Add(std::ldexp(static_cast<double>(term), -40));
    }
    EXPECT_EQ(sum.Value(), std::ldexp(static_cast<double>(want), -40));
  }
}

// Binary expansion by exact halving: any sum of powers of two with a known result.
TEST(ExactSum, TelescopesOverTheWholeRange) {
  ExactSum sum;
  for (int exponent = -1074; exponent < 1023; ++exponent) sum.Add(std::ldexp(1.0, exponent));
  sum.Add(DBL_TRUE_MIN);  // 2^1023 together
  EXPECT_EQ(sum.Value(), 0x1p1023);
  sum.Add(-0x1p1023);
  EXPECT_TRUE(SameBits(sum.Value(), 0.0));
}

TEST(ExactSum, AnyOrderAnyGroupsTheSameBits) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<double> values = AnyDoubles(3000, 10 + seed);
    for (double& value : values) value *= 0x1p-20;  // some sums stay in the range
    const double want = SumOf(values).Value();
    const auto digits = SumOf(values).Digits();
    std::mt19937_64 engine(seed);
    std::shuffle(values.begin(), values.end(), engine);
    EXPECT_TRUE(SameBits(SumOf(values).Value(), want));
    EXPECT_EQ(SumOf(values).Digits(), digits);
    std::vector<ExactSum> groups(7);
    std::array<double, ExactSum::kNumbers> total{};
    for (double value : values) groups[engine() % groups.size()].Add(value);
    ExactSum merged;
    for (const ExactSum& group : groups) {
      merged.Add(group);
      const auto numbers = group.Digits();
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_LT(std::abs(numbers[i]), 0x1p32);
        total[i] += numbers[i];
      }
    }
    EXPECT_TRUE(SameBits(merged.Value(), want));
    EXPECT_TRUE(SameBits(ExactSum::FromDigits(total).Value(), want));
  }
}

// As of 2^20 ranks, each with the largest digits: the doubles do not round.
TEST(ExactSum, DigitsOfAMillionRanks) {
  const ExactSum one = SumOf({-DBL_TRUE_MIN});
  auto numbers = one.Digits();
  for (double& number : numbers) number *= 0x1p20;
  EXPECT_EQ(ExactSum::FromDigits(numbers).Value(), -0x1p20 * DBL_TRUE_MIN);
}

TEST(ExactSum, DoublesItselfBeyondThePostponedCarries) {
  ExactSum sum = SumOf({0.1, -DBL_TRUE_MIN});
  for (int i = 0; i < 60; ++i) sum.Add(ExactSum(sum));
  sum.Add(-std::ldexp(0.1, 60));
  EXPECT_EQ(sum.Value(), -std::ldexp(1.0, 60 - 1074));
}

}  // namespace
}  // namespace trireme
