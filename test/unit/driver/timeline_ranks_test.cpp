// Ranks of a large job that a timeline takes, and the two ends of a message.
#include <gtest/gtest.h>

#include <numeric>

#include "timeline.hpp"

namespace trireme::tasks {
namespace {

TEST(TracedRanks, AreAllOfASmallJob) {
  std::vector<int> all(8);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(TracedRanks({.pipeline = 2, .data = 2, .context = 1, .tensor = 2}), all);
}

TEST(TracedRanks, AreWholePipelinesOfALargeOne) {
  // rank = ((pipeline * data) * context + context) * tensor + tensor
  const comm::GridShape shape{.pipeline = 4, .data = 3, .context = 1, .tensor = 2};
  EXPECT_EQ(TracedRanks(shape, 8), (std::vector<int>{0, 1, 6, 7, 12, 13, 18, 19}));
  EXPECT_EQ(TracedRanks(shape, 4), (std::vector<int>{0, 6, 12, 18}));
  EXPECT_EQ(TracedRanks(shape, 3).size(), 3u);
  EXPECT_EQ(TracedRanks({.pipeline = 16, .data = 512, .context = 1, .tensor = 4}).size(),
            static_cast<std::size_t>(kMostTracedRanks));
}

TEST(PeerOf, IsARankOfTheWorld) {
  const comm::GridShape shape{.pipeline = 4, .data = 3, .context = 2, .tensor = 2};
  device::Slice message;
  message.peer = 1;
  message.group = static_cast<std::int8_t>(comm::Group::kPipeline);
  EXPECT_EQ(PeerOf(message, 5, shape), 17);
  message.group = static_cast<std::int8_t>(comm::Group::kContext);
  EXPECT_EQ(PeerOf(message, 5, shape), 7);
  message.group = static_cast<std::int8_t>(comm::Group::kTensor);
  EXPECT_EQ(PeerOf(message, 5, shape), -1);
}

}  // namespace
}  // namespace trireme::tasks
