// Communicator: reductions, broadcasts, gathers and splits, against values known from the ranks
// alone.
#include "trireme/comm/communicator.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/clock.hpp"

namespace trireme::comm {
namespace {

class CommunicatorTest : public testing::Test {
 protected:
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
  const int rank_ = world_.Rank();
  const int size_ = world_.Size();
};

TEST_F(CommunicatorTest, AdoptKnowsItsPlace) {
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(rank_, rank);
  EXPECT_EQ(size_, size);
  EXPECT_EQ(world_.IsRoot(), rank == 0);
  EXPECT_EQ(Communicator::Adopt(MPI_COMM_SELF).Size(), 1);
}

TEST_F(CommunicatorTest, Sums) {
  const std::int64_t ranks = size_ * (size_ + 1) / 2;
  EXPECT_EQ(world_.Sum(std::int64_t{rank_ + 1}), ranks);
  EXPECT_DOUBLE_EQ(world_.Sum(0.5 * (rank_ + 1)), 0.5 * static_cast<double>(ranks));
  // Larger than a double's 53 bits: integers must not travel as doubles.
  const std::int64_t large = (std::int64_t{1} << 60) + 1;
  EXPECT_EQ(world_.Sum(rank_ == 0 ? large : std::int64_t{0}), large);
}

TEST_F(CommunicatorTest, SumsVectorsElementWise) {
  std::vector<double> values = {1.0, static_cast<double>(rank_), -0.25};
  world_.Sum(values);
  EXPECT_DOUBLE_EQ(values[0], size_);
  EXPECT_DOUBLE_EQ(values[1], size_ * (size_ - 1) / 2);
  EXPECT_DOUBLE_EQ(values[2], -0.25 * size_);
  std::vector<double> none;
  world_.Sum(none);
  EXPECT_TRUE(none.empty());
}

TEST_F(CommunicatorTest, MaximaAndMinima) {
  EXPECT_EQ(world_.Max(std::int64_t{-rank_}), 0);
  EXPECT_EQ(world_.Min(std::int64_t{-rank_}), -(size_ - 1));
  EXPECT_DOUBLE_EQ(world_.Max(-1.5 - rank_), -1.5);
}

TEST_F(CommunicatorTest, BroadcastsTextOfAnyRoot) {
  const int last = size_ - 1;
  // Receivers hold longer and shorter texts than the root.
  const std::string own(static_cast<std::size_t>(3 + 5 * rank_), static_cast<char>('a' + rank_));
  EXPECT_EQ(world_.Broadcast(own), "aaa");
  EXPECT_EQ(world_.Broadcast(own, last),
            std::string(static_cast<std::size_t>(3 + 5 * last), static_cast<char>('a' + last)));
  EXPECT_EQ(world_.Broadcast(rank_ == 0 ? std::string() : "left over"), "");
  const std::string zeros("a\0b", 3);
  EXPECT_EQ(world_.Broadcast(rank_ == 0 ? zeros : std::string()), zeros);
}

TEST_F(CommunicatorTest, BroadcastsBytes) {
  std::vector<int> data(1000, -1);
  if (world_.IsRoot()) std::iota(data.begin(), data.end(), 0);
  world_.Broadcast(data.data(), static_cast<std::int64_t>(data.size() * sizeof(int)));
  EXPECT_EQ(data.front(), 0);
  EXPECT_EQ(data.back(), 999);
}

TEST_F(CommunicatorTest, GathersTextsOfAllRanksInOrder) {
  // Rank 0's is empty: lengths differ, and one is zero.
  const std::vector<std::string> all = world_.Gather(
      std::string(static_cast<std::size_t>(2 * rank_), static_cast<char>('0' + rank_)));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_EQ(all[static_cast<std::size_t>(rank)],
              std::string(static_cast<std::size_t>(2 * rank), static_cast<char>('0' + rank)));
  }
}

TEST_F(CommunicatorTest, SplitsByColorOrderedByKey) {
  const Communicator parity = world_.Split(rank_ % 2, -rank_);
  EXPECT_EQ(parity.Size(), rank_ % 2 == 0 ? (size_ + 1) / 2 : size_ / 2);
  // Keys fall with the rank, so the highest rank of a colour comes first.
  EXPECT_EQ(parity.Rank(), parity.Size() - 1 - rank_ / 2);
  std::int64_t ranks = 0;
  for (int other = rank_ % 2; other < size_; other += 2) ranks += other;
  EXPECT_EQ(parity.Sum(std::int64_t{rank_}), ranks);
}

TEST_F(CommunicatorTest, NodeHoldsAllRanksOfOneHost) {
  EXPECT_EQ(world_.SplitNode().Size(), size_);  // the test runs on one host
}

TEST_F(CommunicatorTest, DuplicateIsAnotherContext) {
  const Communicator copy = world_.Duplicate();
  int result = MPI_UNEQUAL;
  MPI_Comm_compare(copy.Handle(), world_.Handle(), &result);
  EXPECT_EQ(result, MPI_CONGRUENT);
  EXPECT_EQ(copy.Rank(), rank_);
}

TEST_F(CommunicatorTest, MovesItsHandle) {
  Communicator first = world_.Duplicate();
  const MPI_Comm handle = first.Handle();
  Communicator second = std::move(first);
  EXPECT_EQ(second.Handle(), handle);
  EXPECT_EQ(second.Size(), size_);
  Communicator third;
  third = std::move(second);
  EXPECT_EQ(third.Handle(), handle);
  third.Barrier();
}

// Ranks that wait for the last one sleep nearly all of that time.
TEST_F(CommunicatorTest, QuietBarrierAwaitsAllAsleep) {
  constexpr double kLate = 1, kMostAwake = 0.2;  // seconds
  world_.Barrier();
  const ThreadStopwatch watch;
  if (rank_ == size_ - 1) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
  world_.QuietBarrier();
  EXPECT_GE(watch.All(), 0.9 * kLate);
  EXPECT_LT(world_.Sum(watch.All() - watch.Waited()), kMostAwake);
}

TEST(MpiType, FollowsDtype) {
  EXPECT_EQ(MpiType(Dtype::kFloat32), MPI_FLOAT);
  EXPECT_EQ(MpiType(Dtype::kFloat64), MPI_DOUBLE);
}

}  // namespace
}  // namespace trireme::comm
