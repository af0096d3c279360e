// Positions: every position of a sequence at one context rank, in order, and causal attention
// shared out evenly.
#include "trireme/base/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme {
namespace {

constexpr int kMostRanks = 9;

TEST(Positions, EveryPositionOnce) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    // Lengths that divide, that do not, and fewer than there are blocks.
    for (std::int64_t length = 0; length <= 5 * kMostRanks; ++length) {
      std::vector<int> times(static_cast<std::size_t>(length), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const Positions positions = PositionsOf(length, rank, ranks);
        std::int64_t last = -1;
        for (std::int64_t local = 0; local < positions.Count(); ++local) {
          const std::int64_t position = positions.At(local);
          ASSERT_GT(position, last) << rank << " of " << ranks << ", length " << length;
          ASSERT_LT(position, length);
          ++times[static_cast<std::size_t>(position)];
          last = position;
        }
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), length) << ranks << " ranks";
    }
  }
}

TEST(Positions, BlocksAreOneOfEachEnd) {
  const Positions first = PositionsOf(16, 0, 2), second = PositionsOf(16, 1, 2);
  EXPECT_EQ(first.early.begin, 0);
  EXPECT_EQ(first.early.end, 4);
  EXPECT_EQ(first.late.begin, 12);
  EXPECT_EQ(first.late.end, 16);
  EXPECT_EQ(second.early.begin, 4);
  EXPECT_EQ(second.late.end, 12);
  EXPECT_EQ(first.At(3), 3);
  EXPECT_EQ(first.At(4), 12);
  // A sequence shorter than the blocks: the counts still differ by two at most, one a block.
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (std::int64_t length = 0; length <= 5 * kMostRanks; ++length) {
      std::int64_t least = length, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        least = std::min(least, PositionsOf(length, rank, ranks).Count());
        most = std::max(most, PositionsOf(length, rank, ranks).Count());
      }
      EXPECT_LE(most - least, 2) << length << " on " << ranks;
    }
  }
}

TEST(Positions, OneRankHoldsEverything) {
  const Positions all = PositionsOf(7, 0, 1);
  EXPECT_EQ(all.Count(), 7);
  const Positions uncut;
  for (std::int64_t position = 0; position < 7; ++position) {
    EXPECT_EQ(all.At(position), position);
    EXPECT_EQ(uncut.At(position), position);
  }
  EXPECT_EQ(uncut.At(std::int64_t{1} << 40), std::int64_t{1} << 40);
}

// Pairs of a query and a key not behind it, the cost of causal attention: the same for all ranks
// where the blocks are equal, else within one query block's against all keys.
TEST(Positions, CausalAttentionIsBalanced) {
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (std::int64_t length = 2 * ranks; length <= 6 * ranks; ++length) {
      std::int64_t least = length * length, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Positions positions = PositionsOf(length, rank, ranks);
        std::int64_t pairs = 0;
        for (std::int64_t local = 0; local < positions.Count(); ++local) {
          pairs += positions.At(local) + 1;
        }
        least = std::min(least, pairs);
        most = std::max(most, pairs);
      }
      const std::int64_t block = CeilDivide(length, 2 * ranks);
      EXPECT_LE(most - least, length % (2 * ranks) == 0 ? 0 : block * length)
          << length << " on " << ranks;
    }
  }
}

}  // namespace
}  // namespace trireme
