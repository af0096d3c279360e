// Sums by row: exact, in any order.
#include "choices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "trireme/base/exact_sum.hpp"

namespace trireme::tasks {
namespace {

TEST(LossTable, SumsDoNotDependOnTheOrder) {
  std::mt19937 random(1);
  std::vector<double> losses;
  for (int i = 0; i < 5000; ++i)
    losses.push_back(std::exp(std::normal_distribution(0., 4.)(random)));
  ExactSum exact;
  LossTable table(3);
  for (const double loss : losses) {
    exact.Add(loss);
    table.Add(1, loss);
  }
  std::shuffle(losses.begin(), losses.end(), random);
  LossTable other(3);
  for (const double loss : losses) other.Add(1, loss);
  EXPECT_EQ(table.Nats(1), other.Nats(1));
  EXPECT_NEAR(table.Nats(1), exact.Value(), 1e-15 * exact.Value());
  EXPECT_EQ(table.Targets(1), 5000);
  EXPECT_EQ(table.Targets(0), 0);
  EXPECT_EQ(table.Nats(2), 0);
}

TEST(LossTable, KeepsSmallLossesAndNotFiniteOnes) {
  LossTable table(2);
  table.Add(0, 0x1p-50);
  table.Add(0, 8000);
  EXPECT_EQ(table.Nats(0), 8000 + 0x1p-50);
  LossTable small(1);
  small.Add(0, 0x1.8p-55);
  EXPECT_EQ(small.Nats(0), 0x1.8p-55);
  table.Add(1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(table.Nats(1)));
}

}  // namespace
}  // namespace trireme::tasks
