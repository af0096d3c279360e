// WorkJointly: a fault on one rank ends the work of all, soon, with that rank's message.
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
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

}  // namespace
}  // namespace trireme::comm
