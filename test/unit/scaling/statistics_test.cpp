// Statistics of a scaling study against tables and numbers computed by hand.
#include "rows.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::tasks {
namespace {

// Printed tables have three decimals.
TEST(StudentQuantile, IsThatOfTheTables) {
  EXPECT_NEAR(StudentQuantile(1), 12.706, 5e-4);
  EXPECT_NEAR(StudentQuantile(2), 4.303, 5e-4);
  EXPECT_NEAR(StudentQuantile(3), 3.182, 5e-4);
  EXPECT_NEAR(StudentQuantile(4), 2.776, 5e-4);
  EXPECT_NEAR(StudentQuantile(9), 2.262, 5e-4);
  EXPECT_NEAR(StudentQuantile(30), 2.042, 5e-4);
  EXPECT_NEAR(StudentQuantile(1e5), 1.960, 5e-4);
}

// Two degrees of freedom have a closed form: t = (2 p - 1) / sqrt(2 p (1 - p)), p = 0.975.
TEST(StudentQuantile, AgreesWithTheClosedForm) {
  EXPECT_NEAR(StudentQuantile(2), 0.95 / std::sqrt(2 * 0.975 * 0.025), 1e-8);
}

// Mean 3, deviation sqrt((4 + 1 + 0 + 1 + 4) / 4) = 1.5811, t(4) = 2.7764:
// half an interval is 2.7764 * 1.5811 / sqrt(5) = 1.9632.
TEST(IntervalOfMean, IsThatByHand) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  const auto interval = IntervalOfMean(values);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 3 - 1.9632, 1e-4);
  EXPECT_NEAR(interval->high, 3 + 1.9632, 1e-4);
}

TEST(IntervalOfMean, NeedsTwoValues) {
  EXPECT_FALSE(IntervalOfMean(std::vector<double>{}));
  EXPECT_FALSE(IntervalOfMean(std::vector<double>{1}));
  EXPECT_TRUE(IntervalOfMean(std::vector<double>{1, 1}));
}

// Logarithms of the ratios 2 and 8 are 1 and 3 times log 2: deviation sqrt(2) log 2, divided by
// sqrt(2); t(1) = 12.7062. The factor is 2^12.7062.
TEST(IntervalOfRatio, IsThatByHand) {
  const auto interval = IntervalOfRatio(4, std::vector<double>{2, 16}, std::vector<double>{1, 2});
  ASSERT_TRUE(interval);
  EXPECT_NEAR(std::log2(interval->high / 4), 12.7062, 1e-4);
  EXPECT_NEAR(std::log2(interval->low / 4), -12.7062, 1e-4);
}

// A machine that becomes slower changes no ratio of neighbours.
TEST(IntervalOfRatio, LeavesOutWhatPairsShare) {
  const auto interval =
      IntervalOfRatio(2, std::vector<double>{2, 4, 8}, std::vector<double>{1, 2, 4});
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 2, 1e-12);
  EXPECT_NEAR(interval->high, 2, 1e-12);
}

TEST(IntervalOfRatio, TakesThePairsThatThereAre) {
  EXPECT_FALSE(IntervalOfRatio(2, std::vector<double>{2, 4}, std::vector<double>{1}));
}

TEST(Median, IsBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(MedianOf({3, 1, 2}), 2);
  EXPECT_EQ(MedianOf({4, 1, 2, 10}), 3);
}

// By Amdahl's law a serial fraction f on p processors has the speed-up 1 / (f + (1 - f) / p).
TEST(KarpFlatt, FindsAmdahlsFraction) {
  EXPECT_NEAR(KarpFlatt(1 / (0.1 + 0.9 / 8), 8), 0.1, 1e-12);
  EXPECT_NEAR(KarpFlatt(2, 2), 0, 1e-12);
  EXPECT_NEAR(KarpFlatt(1, 4), 1, 1e-12);
  // (1/5 - 1/8) / (1 - 1/8) = 0.075 / 0.875.
  EXPECT_NEAR(KarpFlatt(5, 8), 0.085714, 1e-6);
  EXPECT_LT(KarpFlatt(2.1, 2), 0);
}

}  // namespace
}  // namespace trireme::tasks
