// Comparison of clocks that are wrong by known amounts: the error stated is never exceeded.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/comm/hosts.hpp"

namespace trireme::comm {
namespace {

// Ranks of one host share a clock; this makes another of it for each rank, rank 0's being right.
double Skewed(int rank) {
  constexpr double kOffset = 1234.5, kDrift = 1e-3;
  return rank == 0 ? Seconds() : Seconds() * (1 + kDrift * rank) - kOffset * rank;
}

TEST(ClockComparison, BringsSkewedClocksTogether) {
  const Communicator world = Communicator::Adopt(MPI_COMM_WORLD);
  const int rank = world.Rank();
  std::vector<int> ranks(static_cast<std::size_t>(world.Size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto clock = [rank] { return Skewed(rank); };
  const ClockComparison first = CompareClocks(world, ranks, clock);
  struct Moment {
    double mine, right;  // of both clocks
    double window;       // between two readings of the right one: `mine` was read in it
  };
  std::vector<Moment> moments;
  for (int i = 0; i < 20; ++i) {
    const double before = Seconds(), mine = clock(), after = Seconds();
    moments.push_back({mine, (before + after) / 2, after - before});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const ClockComparison last = CompareClocks(world, ranks, clock);
  constexpr double kRounding = 1e-6;
  const double error = std::max(first.error, last.error) + kRounding;
  for (const auto& [mine, right, window] : moments) {
    EXPECT_NEAR(Aligned(mine, first, last), right, error + window / 2);
  }
  if (rank == 0) {
    EXPECT_EQ(first.error, 0);
    EXPECT_EQ(first.offset, 0);
  } else {
    EXPECT_GT(first.error, 0);
    EXPECT_LT(first.error, 0.1);
    EXPECT_LT(Drift(first, last), 0);  // rank 0's clock is slower
  }
}

TEST(ClockComparison, AsksOnlyTheRanksNamed) {
  const Communicator world = Communicator::Adopt(MPI_COMM_WORLD);
  const std::vector<int> ranks = {0, world.Size() - 1};
  const ClockComparison mine = CompareClocks(world, ranks, Seconds);
  const bool asked = world.Rank() == world.Size() - 1 && world.Rank() != 0;
  EXPECT_EQ(mine.error > 0, asked);
}

TEST(ClockComparison, GoesStraightThroughBoth) {
  const ClockComparison first{.at = 100, .offset = 5, .error = 0}, last{.at = 200, .offset = 7};
  EXPECT_DOUBLE_EQ(Drift(first, last), 0.02);
  EXPECT_DOUBLE_EQ(Aligned(100, first, last), 105);
  EXPECT_DOUBLE_EQ(Aligned(150, first, last), 156);
  EXPECT_DOUBLE_EQ(Aligned(200, first, last), 207);
}

}  // namespace
}  // namespace trireme::comm
