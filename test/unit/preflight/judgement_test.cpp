// Judgements from findings: tallies, bindings, tournaments, slow nodes, a bounded report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "trireme/tools/preflight.hpp"

namespace trireme::tools {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Tally, IsBoundedWhateverTheNumberOfRanks) {
  Tally all;
  for (int rank = 0; rank < 10'000; ++rank) {
    Tally one;
    one.Add("same", "the text\twith a tab", rank);
    one.Add("own", "text of " + std::to_string(rank), rank);
    all.Merge(Tally::Unpack(one.Pack()));
  }
  EXPECT_LT(all.Pack().size(), 4096U);
  ASSERT_THAT(all.Of("same"), SizeIs(1));
  EXPECT_EQ(all.Of("same")[0].count, 10'000);
  EXPECT_EQ(all.Of("same")[0].text, "the text with a tab");
  EXPECT_THAT(all.Of("same")[0].ranks, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  ASSERT_THAT(all.Of("own"), SizeIs(Tally::kMostTexts + 1));
  std::int64_t sum = 0;
  for (const Tally::Said& said : all.Of("own")) sum += said.count;
  EXPECT_EQ(sum, 10'000);
}

TEST(Binding, SaysWhoSharesWhat) {
  const std::vector<int> online = {0, 1, 2, 3, 4, 5, 6, 7}, ones = {1, 1};
  const Binding good = BindingOf({{0, 1, 2, 3}, {4, 5, 6, 7}}, std::vector<int>{4, 4}, online);
  EXPECT_EQ(good.text, "2 ranks on 4 cores each, 4 threads each");
  EXPECT_THAT(good.overlap + good.crowded + good.idle, IsEmpty());
  const Binding part = BindingOf({{0, 1, 2, 3, 4}, {4, 5, 6, 7}}, ones, online);
  EXPECT_THAT(part.overlap, HasSubstr("ranks 0 and 1 of a node share cores 4"));
  const Binding one_core = BindingOf({{0}, {0}}, ones, online);
  EXPECT_EQ(one_core.text, "2 ranks on cores 0 together, 1 thread each");
  EXPECT_THAT(one_core.overlap, IsEmpty());
  EXPECT_THAT(one_core.crowded, HasSubstr("2 threads"));
  EXPECT_THAT(one_core.idle, HasSubstr("may use 1 of its 8 cores"));
}

TEST(Tournament, EachMeetsEachOtherOnce) {
  for (const int players : {2, 3, 4, 7, 8, 15, 16}) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < Rounds(players); ++round) {
      for (int self = 0; self < players; ++self) {
        const int other = Partner(self, round, players);
        if (other < 0) continue;
        ASSERT_NE(other, self);
        ASSERT_EQ(Partner(other, round, players), self) << players << " players, round " << round;
        if (self < other) {
          EXPECT_TRUE(met.insert({self, other}).second);
        }
      }
    }
    EXPECT_EQ(static_cast<int>(met.size()), players * (players - 1) / 2);
  }
  EXPECT_THAT(ChosenRounds(1), IsEmpty());
  EXPECT_THAT(ChosenRounds(4), SizeIs(3));
  EXPECT_THAT(ChosenRounds(100'000), SizeIs(16));
}

Report ReportOf(int nodes) {
  std::vector<std::string> names;
  Report report;
  for (int node = 0; node < nodes; ++node) {
    names.push_back("node" + std::to_string(node));
    Unit& unit = report.measured.units.emplace_back();
    unit.rank = unit.slowest = node;
    unit.values = {1e12, 2e11, 5e10, 1e11};
  }
  report.ranks = nodes;
  report.hosts = comm::Hosts(names);
  return report;
}

TEST(Slow, MoreThanFivePercentBelowTheMedian) {
  Report report = ReportOf(5);
  report.measured.units[1].values[0] = 0.951e12;
  EXPECT_THAT(FindSlow(report.measured.units), IsEmpty());
  report.measured.units[3].values[0] = 0.94e12;
  report.measured.units[2].values[1] = 1e11;
  const std::vector<std::string> told = SlowSentences(report, 8);
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[0],
            "node3 (rank 3): matrix product, a rank 940 GFLOP/s, 6% below the median of 1000");
  EXPECT_EQ(told[1], "node2: memory 100 GB/s, 50% below the median of 200");
  report.measured.units[0].wrong = 1;
  EXPECT_THAT(SlowSentences(report, 8)[0], HasSubstr("node0: a matrix product is not finite"));
}

TEST(Slow, OfTwoTheSlower) {
  Report report = ReportOf(2);
  report.measured.units[0].values[2] = 4e10;
  ASSERT_THAT(FindSlow(report.measured.units), SizeIs(1));
  EXPECT_EQ(FindSlow(report.measured.units)[0].unit, 0U);
  EXPECT_THAT(SlowSentences(report, 8), SizeIs(1));
  // Of two ranks of one host none: nobody knows which is as it should be.
  report.measured.of_ranks = true;
  EXPECT_THAT(SlowSentences(report, 8), IsEmpty());
  EXPECT_THAT(LinesOf(report), testing::Contains(HasSubstr("messages in pairs")));
  EXPECT_THAT(LinesOf(report), testing::Not(testing::Contains(HasSubstr("network"))));
}

TEST(Report, IsBoundedForManyNodes) {
  Report report = ReportOf(10'000);
  for (std::size_t node = 0; node < 4000; ++node)
    report.measured.units[node].values[1] = 1e11 + node;
  for (int i = 0; i < 500; ++i) report.findings.warnings.push_back({"files", "a warning"});
  const std::vector<std::string> lines = LinesOf(report);
  EXPECT_LT(lines.size(), 50U);
  EXPECT_THAT(lines, testing::Contains(HasSubstr("slowest node0, fastest")));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("and 3992 more: see slow in preflight.json")));
  EXPECT_THAT(JsonOf(report), HasSubstr("\"hosts\": 10000"));
}

}  // namespace
}  // namespace trireme::tools
