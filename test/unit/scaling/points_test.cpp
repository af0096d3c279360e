// Numbers of ranks and batches of a study, and the waiting for slow ranks.
#include "rows.hpp"

#include <gtest/gtest.h>

namespace trireme::tasks {
namespace {

using Counts = std::vector<int>;

TEST(DefaultCounts, ArePowersOfTwoAndTheWorld) {
  EXPECT_EQ(DefaultCounts(1, 8), (Counts{1, 2, 4, 8}));
  EXPECT_EQ(DefaultCounts(1, 6), (Counts{1, 2, 4, 6}));
  EXPECT_EQ(DefaultCounts(1, 1), (Counts{1}));
}

TEST(DefaultCounts, HoldWholeReplicas) {
  EXPECT_EQ(DefaultCounts(3, 12), (Counts{3, 6, 12}));
  EXPECT_EQ(DefaultCounts(4, 4), (Counts{4}));
}

TEST(Batch, StaysOrGrowsWithTheRanks) {
  EXPECT_EQ(BatchOf(ScalingKind::kStrong, 32, 8, 1), 32);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 1, 1), 32);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 8, 1), 256);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 8, 2), 128);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 32, 2, 8), 8);
  EXPECT_EQ(BatchOf(ScalingKind::kWeak, 30, 1, 8), 0) << "no whole number of windows";
}

// Ranks 0 and 1 wait 0 and 2 seconds in step 0, 1 and 0 in step 1: 3 seconds of 2 ranks and 2
// steps.
TEST(Imbalance, IsTheMeanWaitForTheSlowest) {
  const comm::GridShape data{.pipeline = 1, .data = 2, .context = 1, .tensor = 1};
  EXPECT_DOUBLE_EQ(Imbalance({5, 3, 3, 4}, data), 3.0 / 4);
  EXPECT_EQ(Imbalance({5, 3}, {}), 0) << "one rank waits for none";
}

TEST(Imbalance, ComparesRanksOfAStage) {
  const comm::GridShape stages{.pipeline = 2, .data = 1, .context = 1, .tensor = 1};
  EXPECT_EQ(Imbalance({5, 3}, stages), 0);
  const comm::GridShape both{.pipeline = 2, .data = 2, .context = 1, .tensor = 1};
  EXPECT_DOUBLE_EQ(Imbalance({5, 4, 2, 3}, both), (1.0 + 1.0) / 4);
}

}  // namespace
}  // namespace trireme::tasks
