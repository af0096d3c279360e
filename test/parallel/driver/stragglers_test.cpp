// The slowest rank is found among those that have the same to compute, and all ranks agree on it.
#include "safeguards.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdint>
#include <vector>

namespace trireme::tasks {
namespace {

class Stragglers : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), 4); }
  // seconds: of each rank's computation.
  Slowest Find(const comm::GridShape& shape, const std::vector<double>& seconds) const {
    const comm::ProcessGrid grid(world_, shape);
    const Slowest slowest = SlowestRank(grid, seconds[static_cast<std::size_t>(world_.Rank())]);
    EXPECT_EQ(world_.Min(std::int64_t{slowest.rank}), world_.Max(std::int64_t{slowest.rank}));
    EXPECT_EQ(-world_.Max(-slowest.seconds), world_.Max(slowest.seconds));
    EXPECT_EQ(-world_.Max(-slowest.mean), world_.Max(slowest.mean));
    return slowest;
  }

  const comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
};

TEST_F(Stragglers, IsTheRankFarthestAboveTheMean) {
  const Slowest slowest = Find({.pipeline = 1, .data = 4, .context = 1, .tensor = 1}, {1, 1, 3, 1});
  EXPECT_EQ(slowest.rank, 2);
  EXPECT_EQ(slowest.seconds, 3);
  EXPECT_EQ(slowest.mean, 1.5);
}

// Ranks 0 and 1 hold the first stage, which has more to compute.
TEST_F(Stragglers, AreComparedWithinTheirStage) {
  const Slowest slowest = Find({.pipeline = 2, .data = 2, .context = 1, .tensor = 1}, {8, 8, 1, 2});
  EXPECT_EQ(slowest.rank, 3);
  EXPECT_EQ(slowest.seconds, 2);
  EXPECT_EQ(slowest.mean, 1.5);
}

TEST_F(Stragglers, OfEqualOnesTheLowestIsNamed) {
  const Slowest slowest = Find({.pipeline = 1, .data = 4, .context = 1, .tensor = 1}, {0, 0, 0, 0});
  EXPECT_EQ(slowest.rank, 0);
  EXPECT_EQ(slowest.seconds, 0);
}

}  // namespace
}  // namespace trireme::tasks
