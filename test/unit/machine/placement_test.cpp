// Cores that the ranks of a node get: pure, from the cores that each rank is bound to.
#include "trireme/app/placement.hpp"

#include <gtest/gtest.h>

namespace trireme::app {
namespace {

using device::HardwareThread;

// Cores [begin, end), each with one hardware thread.
std::vector<HardwareThread> Single(int begin, int end) {
  std::vector<HardwareThread> threads;
  for (int number = begin; number < end; ++number) threads.push_back({number, number});
  return threads;
}
// Cores 0 to 3, whose second hardware threads are 4 to 7; as DescribeThreads lists them.
std::vector<HardwareThread> Double() {
  std::vector<HardwareThread> threads;
  for (int core = 0; core < 4; ++core) {
    threads.push_back({core, core});
    threads.push_back({core + 4, core});
  }
  return threads;
}

std::vector<NodePlacement> All(const std::vector<RankThreads>& node, device::Pin pin) {
  std::vector<NodePlacement> all;
  for (std::size_t rank = 0; rank < node.size(); ++rank) {
    all.push_back(PlaceOnNode(node, static_cast<int>(rank), pin));
  }
  return all;
}

using Numbers = std::vector<int>;

TEST(Placement, SharesWhatRanksAreBoundToAlike) {
  const auto all = All({4, RankThreads{0, Single(0, 8)}}, device::Pin::kAuto);
  for (int rank = 0; rank < 4; ++rank) {
    const NodePlacement& placement = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(placement.threads, 2);
    EXPECT_EQ(placement.numbers, (Numbers{2 * rank, 2 * rank + 1}));
    EXPECT_EQ(placement.shortage, "");
  }
}

TEST(Placement, ABindingOfItsOwnIsUsed) {
  const auto all = All({{0, Single(4, 6)}, {0, Single(0, 1)}}, device::Pin::kAuto);
  EXPECT_EQ(all[0].numbers, (Numbers{4, 5}));
  EXPECT_EQ(all[1].numbers, (Numbers{0}));
}

// Two sockets, two ranks bound to each.
TEST(Placement, GroupsOfRanksShareApart) {
  const auto all = All({{0, Single(0, 4)}, {0, Single(0, 4)}, {0, Single(4, 8)}, {0, Single(4, 8)}},
                       device::Pin::kAuto);
  EXPECT_EQ(all[1].numbers, (Numbers{2, 3}));
  EXPECT_EQ(all[2].numbers, (Numbers{4, 5}));
}

// Cores that are left may be another program's; yes spreads the ranks over all of them.
TEST(Placement, AutoPinsWhereNoCoreIsLeft) {
  const std::vector<RankThreads> node(2, RankThreads{1, Single(0, 8)});
  for (const NodePlacement& placement : All(node, device::Pin::kAuto)) {
    EXPECT_EQ(placement.threads, 1);
    EXPECT_TRUE(placement.numbers.empty());
    EXPECT_EQ(placement.shortage, "");
  }
  const auto all = All(node, device::Pin::kYes);
  EXPECT_EQ(all[0].numbers, (Numbers{0}));
  EXPECT_EQ(all[1].numbers, (Numbers{4}));
}

TEST(Placement, NoPinsNothing) {
  for (const NodePlacement& placement : All({2, RankThreads{0, Single(0, 2)}}, device::Pin::kNo)) {
    EXPECT_EQ(placement.threads, 1);
    EXPECT_TRUE(placement.numbers.empty());
  }
}

TEST(Placement, SecondHardwareThreadsServeOnRequestOnly) {
  const auto share = All({2, RankThreads{0, Double()}}, device::Pin::kAuto);
  EXPECT_EQ(share[0].numbers, (Numbers{0, 1}));
  EXPECT_EQ(share[1].numbers, (Numbers{2, 3}));
  const auto twice = All({2, RankThreads{4, Double()}}, device::Pin::kAuto);
  EXPECT_EQ(twice[0].numbers, (Numbers{0, 4, 1, 5}));
  EXPECT_EQ(twice[1].numbers, (Numbers{2, 6, 3, 7}));
  EXPECT_EQ(PlaceOnNode({2, RankThreads{5, Double()}}, 0, device::Pin::kYes).shortage,
            "2 ranks x 5 threads on 4 cores");
}

TEST(Placement, UnequalRanksGetTheirProportion) {
  const auto all =
      All({{3, Single(0, 6)}, {1, Single(0, 6)}, {2, Single(0, 6)}}, device::Pin::kYes);
  EXPECT_EQ(all[0].numbers, (Numbers{0, 1, 2}));
  EXPECT_EQ(all[1].numbers, (Numbers{3}));
  EXPECT_EQ(all[2].numbers, (Numbers{4, 5}));
}

TEST(Placement, SaysWhatIsShort) {
  const auto says = [](const std::vector<RankThreads>& node, const std::string& text) {
    for (const NodePlacement& placement : All(node, device::Pin::kYes)) {
      EXPECT_EQ(placement.shortage, text);
      EXPECT_TRUE(placement.numbers.empty());
    }
  };
  says({2, RankThreads{2, Single(0, 2)}}, "2 ranks x 2 threads on 2 cores");
  says({2, RankThreads{0, Single(5, 6)}}, "2 ranks x 1 thread on 1 core");
  says({1, RankThreads{4, Single(0, 1)}}, "1 rank x 4 threads on 1 core");
  says({{2, Single(0, 2)}, {1, Single(0, 2)}}, "2 ranks with 3 threads in all on 2 cores");
}

TEST(Placement, AQuotaIsSharedByTheNodesRanks) {
  const auto all = All({2, RankThreads{0, Single(0, 8), 3}}, device::Pin::kAuto);
  EXPECT_EQ(all[0].threads, 2);  // ceil(3 / 2)
  EXPECT_TRUE(all[0].numbers.empty());
  EXPECT_EQ(All({1, RankThreads{0, Single(0, 2), 0.5}}, device::Pin::kYes)[0].threads, 1);
  EXPECT_EQ(All({1, RankThreads{0, Single(0, 2), 1}}, device::Pin::kYes)[0].shortage, "");
  EXPECT_EQ(All({1, RankThreads{2, Single(0, 2), 1.5}}, device::Pin::kYes)[0].shortage, "");
  EXPECT_EQ(All({1, RankThreads{2, Single(0, 2), 1}}, device::Pin::kYes)[0].shortage,
            "1 rank x 2 threads on a quota of 1 processor");
  EXPECT_EQ(All({4, RankThreads{0, Single(0, 8), 2.5}}, device::Pin::kYes)[0].shortage,
            "4 ranks x 1 thread on a quota of 2.5 processors");
}

// A rank that is bound to a part of what another one may use.
TEST(Placement, LeavesPartlySharedCoresAlone) {
  const auto all =
      All({{2, Single(0, 4)}, {0, Single(2, 6)}, {0, Single(6, 7)}}, device::Pin::kYes);
  EXPECT_EQ(all[0].threads, 2);
  EXPECT_TRUE(all[0].numbers.empty());
  EXPECT_EQ(all[1].threads, 2);
  EXPECT_TRUE(all[1].numbers.empty());
  EXPECT_EQ(all[2].numbers, (Numbers{6}));
}

}  // namespace
}  // namespace trireme::app
