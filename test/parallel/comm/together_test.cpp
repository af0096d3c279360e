// Communicator::Together: every rank throws the same error, whoever failed.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"

namespace trireme::comm {
namespace {

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

}  // namespace
}  // namespace trireme::comm
