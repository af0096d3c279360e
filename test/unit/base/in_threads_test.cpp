// Lists that several threads draw from.
#include "trireme/base/in_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme {
namespace {

TEST(Threads, DrawEachPieceOnce) {
  for (const int threads : {1, 2, 5}) {
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      std::atomic<int> largest = 0;
      InThreads(threads, count, [&](std::int64_t i, int thread) {
        ++seen[static_cast<std::size_t>(i)];
        for (int now = largest; thread > now && !largest.compare_exchange_weak(now, thread);) {
        }
      });
      for (const std::atomic<int>& each : seen) EXPECT_EQ(each.load(), 1);
      EXPECT_LT(largest, threads);
    }
  }
}

// The first failure in the order of the list is told, although a later one comes before it in time;
// nothing begins after it.
TEST(Threads, TellTheFirstFailure) {
  std::atomic<std::int64_t> begun = 0;
  const auto body = [&](std::int64_t i, int) {
    ++begun;
    if (i == 4) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (i == 4 || i == 5) throw RunError(std::to_string(i));
  };
  try {
    InThreads(2, 1000, body);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "4");
  }
  EXPECT_LE(begun, 8);
}

}  // namespace
}  // namespace trireme
