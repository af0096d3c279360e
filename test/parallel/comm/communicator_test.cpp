// Communicators: transfers, work done together, clocks, shared memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/comm/shared_memory.hpp"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

// Communicator: reductions, broadcasts, gathers and splits, against values known from the ranks
// alone.

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

// Communicator::Together: every rank throws the same error, whoever failed.

// Exception of Together on this rank.
struct Thrown {
  bool agreed = false;
  ExitCode code = ExitCode::kDone;
  std::string message;
};

Thrown Catch(const Communicator& group, const std::function<void()>& body) {
  try {
    group.Together(body);
  } catch (const AgreedError& error) {
    return {true, error.Code(), error.what()};
  } catch (const Error& error) {
    return {false, error.Code(), error.what()};
  }
  return {};
}

class TogetherTest : public testing::Test {
 protected:
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
  const int rank_ = world_.Rank();
  const int size_ = world_.Size();
};

TEST_F(TogetherTest, ReturnsWhenNobodyFailed) {
  int runs = 0;
  world_.Together([&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST_F(TogetherTest, AllFailAlikeGivesThePlainMessage) {
  const Thrown thrown = Catch(world_, [] { throw InputError("a.in:1: no", "Mend it."); });
  EXPECT_TRUE(thrown.agreed);
  EXPECT_EQ(thrown.code, ExitCode::kBadInput);
  EXPECT_EQ(thrown.message, "a.in:1: no\n  Mend it.");
}

TEST_F(TogetherTest, OneFailingRankIsNamedOnAll) {
  const int last = size_ - 1;
  const Thrown thrown = Catch(world_, [&] {
    if (rank_ == last) throw RunError("disk full");
  });
  EXPECT_TRUE(thrown.agreed);
  EXPECT_EQ(thrown.code, ExitCode::kFailed);
  EXPECT_EQ(thrown.message, size_ == 1 ? "disk full" : "disk full\n  (on rank 3 of 4)");
}

TEST_F(TogetherTest, LowestRanksMessageAndLargestCode) {
  if (size_ != 4) GTEST_SKIP() << "needs 4 ranks";
  const Thrown thrown = Catch(world_, [&] {
    if (rank_ == 1) throw RunError("first");
    if (rank_ == 3) throw InputError("second");
  });
  EXPECT_EQ(thrown.code, ExitCode::kBadInput);
  EXPECT_EQ(thrown.message, "first\n  (on ranks 1, 3 of 4)");
}

TEST_F(TogetherTest, NeighbouringRanksAreListedAsARange) {
  if (size_ != 4) GTEST_SKIP() << "needs 4 ranks";
  const Thrown thrown = Catch(world_, [&] {
    if (rank_ > 0) throw RunError("no");
  });
  EXPECT_EQ(thrown.message, "no\n  (on ranks 1-3 of 4)");
}

TEST_F(TogetherTest, ForeignExceptionsAreFailures) {
  Thrown thrown = Catch(world_, [] { throw std::out_of_range("index 7"); });
  EXPECT_EQ(thrown.code, ExitCode::kFailed);
  EXPECT_EQ(thrown.message, "index 7");
  thrown = Catch(world_, [] { throw std::bad_alloc(); });
  EXPECT_EQ(thrown.code, ExitCode::kFailed);
  EXPECT_EQ(thrown.message.find("out of memory"), 0u);
  thrown = Catch(world_, [] { throw 42; });
  EXPECT_EQ(thrown.message, "an exception of unknown type");
}

TEST_F(TogetherTest, AnErrorNeverCountsAsSuccess) {
  const Thrown thrown = Catch(world_, [] { throw Error(ExitCode::kDone, "odd"); });
  EXPECT_EQ(thrown.code, ExitCode::kFailed);
}

TEST_F(TogetherTest, APartOfTheWorldCannotAgreeForAll) {
  if (size_ != 4) GTEST_SKIP() << "needs 4 ranks";
  const Communicator half = world_.Split(rank_ / 2, rank_);
  const Thrown thrown = Catch(half, [&] {
    if (rank_ == 1) throw RunError("no");
  });
  EXPECT_FALSE(thrown.agreed);
  EXPECT_EQ(thrown.message, rank_ < 2 ? "no\n  (on rank 1 of 2)" : "");
  // The number of ranks that threw it goes with the error.
  int threw = 0;
  try {
    half.Together([&] { throw RunError("no"); });
  } catch (const PartError& error) {
    threw = error.Ranks();
  }
  EXPECT_EQ(threw, 2);
  // Inside the world's Together the half's failure is agreed by all.
  const Thrown nested = Catch(world_, [&] {
    half.Together([&] {
      if (rank_ == 1) throw RunError("no");
    });
  });
  EXPECT_TRUE(nested.agreed);
  EXPECT_EQ(nested.message, "no\n  (on rank 1 of 2)\n  (on ranks 0, 1 of 4)");
}

TEST(ListRanks, ShortensRunsAndLongLists) {
  EXPECT_EQ(ListRanks({3}, 8), "rank 3 of 8");
  EXPECT_EQ(ListRanks({3, 4}, 8), "ranks 3, 4 of 8");
  EXPECT_EQ(ListRanks({0, 3, 5, 6, 7}, 8), "ranks 0, 3, 5-7 of 8");
  std::vector<int> even;
  for (int rank = 0; rank < 128; rank += 2) even.push_back(rank);
  EXPECT_EQ(ListRanks(even, 128),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 48 more of 128");
  std::vector<int> most;
  for (int rank = 1; rank < 1024; ++rank) most.push_back(rank);
  EXPECT_EQ(ListRanks(most, 1024), "ranks 1-1023 of 1024");
}

// WorkJointly: a fault on one rank ends the work of all, soon, with that rank's message.

using Clock = std::chrono::steady_clock;

constexpr milliseconds kSlice{20};  // of work between polls
constexpr std::chrono::seconds kMost{10};

class JointWork : public testing::Test {
 protected:
  // Works until the time is over.
  static void WorkLong(const Poll& poll) {
    const auto begin = Clock::now();
    while (Clock::now() - begin < kMost) {
      std::this_thread::sleep_for(kSlice);
      poll();
    }
  }

  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
  const int rank_ = world_.Rank();
  const int size_ = world_.Size();
};

TEST_F(JointWork, RanksEndAtDifferentTimes) {
  for (int turn = 0; turn < 3; ++turn) {
    int slices = 0;
    WorkJointly(world_, [&](const Poll& poll) {
      for (; slices < 3 * (rank_ + turn) % 7; ++slices) {
        std::this_thread::sleep_for(kSlice);
        poll();
      }
    });
    EXPECT_EQ(slices, 3 * (rank_ + turn) % 7);
  }
}

TEST_F(JointWork, AFaultEndsAllSoon) {
  if (size_ == 1) GTEST_SKIP() << "one rank: nobody else to end";
  for (const int bad : {0, size_ - 1}) {
    const auto begin = Clock::now();
    std::string message;
    try {
      WorkJointly(world_, [&](const Poll& poll) {
        if (rank_ == bad) throw InputError("texts/3.jsonl: broken");
        WorkLong(poll);
      });
    } catch (const AgreedError& error) {
      message = error.what();
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    }
    EXPECT_TRUE(message.starts_with("texts/3.jsonl: broken\n  (on rank " + std::to_string(bad)))
        << message;
    EXPECT_LT(Clock::now() - begin, kMost / 4);
  }
}

TEST_F(JointWork, AFaultBehindTheOthersIsFoundByThoseThatAreDone) {
  try {
    WorkJointly(world_, [&](const Poll& poll) {
      poll();
      if (rank_ != size_ - 1) return;
      std::this_thread::sleep_for(kSlice);
      throw std::runtime_error("late");
    });
    FAIL() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("late"));
  }
}

// Comparison of clocks that are wrong by known amounts: the error stated is never exceeded.

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

// Memory shared by the ranks of a node: one copy, no room, nothing left behind.

class SharedMemoryTest : public testing::Test {
 protected:
  // Files of this rank in /dev/shm.
  static int Left() {
    int files = 0;
    const std::string mine =
        "trireme." + std::to_string(::getuid()) + "." + std::to_string(::getpid());
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      files += entry.path().filename().string().starts_with(mine) ? 1 : 0;
    }
    return files;
  }
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
};

TEST_F(SharedMemoryTest, AllRanksSeeOneZeroedCopy) {
  constexpr std::int64_t kBytes = 3 << 20;
  SharedMemory memory(world_, kBytes);
  ASSERT_EQ(memory.Error(), 0);
  std::byte* const data = memory.Data();
  EXPECT_TRUE(std::all_of(data, data + kBytes, [](std::byte b) { return b == std::byte{0}; }));
  world_.Barrier();
  data[world_.Rank()] = std::byte{static_cast<unsigned char>(world_.Rank() + 1)};
  data[kBytes - 1 - world_.Rank()] = data[world_.Rank()];
  world_.Barrier();
  for (int rank = 0; rank < world_.Size(); ++rank) {
    EXPECT_EQ(data[rank], std::byte{static_cast<unsigned char>(rank + 1)});
    EXPECT_EQ(data[kBytes - 1 - rank], data[rank]);
  }
  EXPECT_EQ(Left(), 0);
}

TEST_F(SharedMemoryTest, NoRoomIsAnErrorOfAllRanks) {
  const SharedMemory memory(world_, std::int64_t{1} << 50);
  const int error = memory.Error();
  EXPECT_TRUE(error == ENOSPC || error == EFBIG || error == ENOMEM) << error;
  EXPECT_EQ(world_.Min(std::int64_t{error}), world_.Max(std::int64_t{error}));
  EXPECT_EQ(memory.Data(), nullptr);
  EXPECT_EQ(Left(), 0);
}

}  // namespace
}  // namespace trireme::comm
