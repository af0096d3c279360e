// Exact square sums and accumulation over flat storage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "held_matrix.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::test {
namespace {

template <typename T>
class CanonicalUpdateTest : public testing::Test {
 protected:
  static std::vector<T> Values(std::int64_t count) {
    std::mt19937_64 engine(1);
    std::normal_distribution<double> normal;
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) {
      value = static_cast<T>(std::ldexp(normal(engine), static_cast<int>(engine() % 80) - 40));
    }
    return values;
  }
  static double SquareSum(const std::vector<T>& values, int threads) {
    ExactSum sum;
    kernels::ExactSquareSumOf({.threads = threads}, DtypeOf<T>(),
                              static_cast<std::int64_t>(values.size()), values.data(), sum);
    return sum.Value();
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CanonicalUpdateTest, Types);

TYPED_TEST(CanonicalUpdateTest, SquareSumIsThatOfEachSquare) {
  for (const std::int64_t count : {0, 1, 17, 2047, 2048, 9999, 1'100'000}) {
    auto values = this->Values(count);
    ExactSum want;
    for (const auto value : values) want.Add(static_cast<double>(value) * value);
    EXPECT_EQ(this->SquareSum(values, 1), want.Value()) << count;
    std::reverse(values.begin(), values.end());
    EXPECT_EQ(this->SquareSum(values, 2), want.Value()) << count;
    EXPECT_EQ(this->SquareSum(values, 3), want.Value()) << count;
  }
}

TYPED_TEST(CanonicalUpdateTest, SquareSumAddsToWhatIsThere) {
  const auto values = this->Values(5000);
  ExactSum want, got;
  for (const auto value : values) want.Add(static_cast<double>(value) * value);
  want.Add(want);
  for (const std::size_t cut : {0, 3000}) {
    for (const bool first : {true, false}) {
      const std::size_t begin = first ? 0 : cut, end = first ? cut : values.size();
      kernels::ExactSquareSumOf({}, DtypeOf<TypeParam>(), static_cast<std::int64_t>(end - begin),
                                values.data() + begin, got);
    }
  }
  EXPECT_EQ(got.Digits(), want.Digits());
}

TYPED_TEST(CanonicalUpdateTest, ZerosTheSmallestAndTheLargest) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  std::vector<T> values(5000, T(0));
  EXPECT_EQ(this->SquareSum(values, 2), 0);
  values[7] = Limits::denorm_min();
  values[8] = static_cast<T>(0x1p-531);  // square subnormal in fp64
  values[9] = -Limits::max();
  ExactSum want;
  for (const T value : values) want.Add(static_cast<double>(value) * value);
  EXPECT_EQ(this->SquareSum(values, 2), want.Value());
}

TYPED_TEST(CanonicalUpdateTest, WhatIsNotFiniteShows) {
  using T = TypeParam;
  for (const std::int64_t count : {100, 5000}) {
    std::vector<T> values = this->Values(count);
    values[60] = -std::numeric_limits<T>::infinity();
    EXPECT_EQ(this->SquareSum(values, 2), HUGE_VAL);
    values[99] = std::copysign(std::numeric_limits<T>::quiet_NaN(), T(-1));
    EXPECT_TRUE(std::isnan(this->SquareSum(values, 2)));
  }
}

TYPED_TEST(CanonicalUpdateTest, AccumulateAddsEachElement) {
  for (const std::int64_t count : {0, 1, 100, 20'011}) {
    const auto from = this->Values(count);
    for (const int threads : {1, 2, 3}) {
      auto to = this->Values(count);
      std::reverse(to.begin(), to.end());
      auto want = to;
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += from[i];
      kernels::Accumulate({.threads = threads}, DtypeOf<TypeParam>(), count, from.data(),
                          to.data());
      EXPECT_EQ(to, want);
    }
  }
}

}  // namespace
}  // namespace trireme::test
