// Daly's interval between checkpoints against his figures and against the exact optimum.
#include "trireme/checkpoint/checkpoint.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint::test {
namespace {

// Expected time of a run with mean time between failures 1, per unit of work and up to a factor
// that the interval does not change (Daly 2006, the complete cost function): e^(R/M) M Ts is left
// out.
double ExpectedTime(double interval, double cost) { return std::expm1(interval + cost) / interval; }

// Least expected time over all intervals, by golden-section search: the function has one minimum.
double LeastExpectedTime(double cost) {
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double low = 1e-6, high = 10;
  while (high - low > 1e-9) {
    const double left = high - ratio * (high - low), right = low + ratio * (high - low);
    (ExpectedTime(left, cost) < ExpectedTime(right, cost) ? high : low) =
        ExpectedTime(left, cost) < ExpectedTime(right, cost) ? right : left;
  }
  return ExpectedTime((low + high) / 2, cost);
}

TEST(Interval, IsThatOfDalysFigures) {
  // Figures 3 to 5: a checkpoint takes 5 minutes; in minutes, to the digits stated there.
  EXPECT_NEAR(YoungDaly(5 * 60, 24 * 3600) / 60, 117, 0.5);
  EXPECT_NEAR(YoungDaly(5 * 60, 6 * 3600) / 60, 57, 0.5);
  EXPECT_NEAR(YoungDaly(5 * 60, 15 * 60) / 60, 9.1, 0.05);
}

TEST(Interval, IsTheFormula) {
  // Worked by hand: C = 2, M = 100, C / 2M = 0.01: 20 (1 + 0.1 / 3 + 0.01 / 9) - 2.
  EXPECT_NEAR(YoungDaly(2, 100), 20 * (1 + 0.1 / 3 + 0.01 / 9) - 2, 1e-12);
  EXPECT_EQ(YoungDaly(200, 100), 100);
  EXPECT_EQ(YoungDaly(1e6, 100), 100);
  // The unit of time is free.
  EXPECT_NEAR(YoungDaly(60, 86400), 86400 * YoungDaly(60.0 / 86400, 1), 1e-6);
}

// The estimate leaves out terms of order (C / 2M)^(3/2) of the interval, 1% at C = 0.1 M, and the
// expected time changes only with the square of the interval's error: less than 1e-3 throughout.
TEST(Interval, CostsNoMoreThanTheOptimum) {
  constexpr double kTolerance = 1e-3;
  constexpr int kPointsADecade = 10;
  for (int point = 0; point <= 4 * kPointsADecade; ++point) {
    const double cost = 1e-5 * std::pow(10.0, static_cast<double>(point) / kPointsADecade);
    const double least = LeastExpectedTime(cost);
    const double time = ExpectedTime(YoungDaly(cost, 1), cost);
    EXPECT_GE(time, least * (1 - 1e-12)) << cost;
    EXPECT_LE(time, least * (1 + kTolerance)) << cost;
  }
}

TEST(Interval, RefusesWhatGivesNone) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -1.0, nan, infinity}) {
    EXPECT_THROW(YoungDaly(bad, 1), Error);
    EXPECT_THROW(YoungDaly(1, bad), Error);
  }
}

}  // namespace
}  // namespace trireme::checkpoint::test
