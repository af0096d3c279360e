// Choice of a card for each rank of a node.
#include "trireme/app/placement.hpp"

#include <gtest/gtest.h>

namespace trireme::app {
namespace {

using Visible = std::vector<std::vector<std::string>>;

std::vector<std::string> Taken(const Visible& visible) {
  std::vector<std::string> cards;
  for (int rank = 0; rank < static_cast<int>(visible.size()); ++rank) {
    const auto device = static_cast<std::size_t>(AssignGpu(visible, rank));
    cards.push_back(visible[static_cast<std::size_t>(rank)].at(device));
  }
  return cards;
}

using Cards = std::vector<std::string>;

TEST(GpuChoice, RanksThatSeeAllCardsTakeThemInOrder) {
  EXPECT_EQ(Taken({{"a", "b"}, {"a", "b"}}), (Cards{"a", "b"}));
  // CUDA_VISIBLE_DEVICES=1,0: its order is kept.
  EXPECT_EQ(Taken({{"b", "a"}, {"b", "a"}}), (Cards{"b", "a"}));
}

TEST(GpuChoice, ABatchSystemsBindingIsKept) {
  EXPECT_EQ(Taken({{"a"}, {"b"}, {"c"}}), (Cards{"a", "b", "c"}));
  // Two ranks see one pair of cards, two the other.
  EXPECT_EQ(Taken({{"a", "b"}, {"c", "d"}, {"a", "b"}, {"c", "d"}}), (Cards{"a", "c", "b", "d"}));
}

TEST(GpuChoice, MoreRanksThanCardsGoRound) {
  EXPECT_EQ(Taken({{"a", "b"}, {"a", "b"}, {"a", "b"}}), (Cards{"a", "b", "a"}));
  EXPECT_EQ(Taken({{"a"}, {"a"}}), (Cards{"a", "a"}));
}

TEST(GpuChoice, RanksThatSeeApartAreFound) {
  EXPECT_TRUE(SeeApart({{"a"}, {"b"}}));
  EXPECT_FALSE(SeeApart({{"a", "b"}, {"a", "b"}}));
  EXPECT_FALSE(SeeApart({{"a"}}));
  EXPECT_FALSE(SeeApart({{"a", "b"}, {"b"}}));
}

}  // namespace
}  // namespace trireme::app
