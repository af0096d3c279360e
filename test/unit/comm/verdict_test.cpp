// Judge: who holds a job up, from made-up tables.
#include "flight_tables.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::uint64_t kWorld = 1, kTensor = 2, kPipeline = 3;

// A rank that has entered so many collectives of a group of `size` in which it has that number.
RankTable Rank(int rank, std::int64_t entered, int size = 4) {
  RankTable table;
  table.rank = rank;
  table.host = "node" + std::to_string(rank / 2);
  table.phase = Phase::kStep;
  table.step = 17;
  table.idle = 3;
  table.groups = {{kWorld, "world", rank, size, entered}};
  return table;
}

RankTable Waiting(int rank, std::int64_t sequence, Call call = Call::kAllReduce) {
  RankTable table = Rank(rank, sequence);
  table.waiting = CallRow{.number = 9,
                          .sequence = sequence,
                          .bytes = 64,
                          .step = 17,
                          .phase = Phase::kStep,
                          .call = call,
                          .group = kWorld,
                          .name = "world",
                          .seconds = 3};
  return table;
}

std::vector<int> Ranks(const Verdict& verdict) {
  std::vector<int> ranks;
  for (const Culprit& culprit : verdict.culprits) ranks.push_back(culprit.rank);
  return ranks;
}

TEST(Judge, NamesTheRankThatHasNotEntered) {
  const Verdict verdict = Judge({Waiting(0, 5), Waiting(1, 5), Rank(2, 4), Waiting(3, 5)}, {});
  EXPECT_THAT(Ranks(verdict), ElementsAre(2));
  EXPECT_THAT(verdict.culprits.front().waiting, ElementsAre(0, 1, 3));
  EXPECT_THAT(verdict.text,
              HasSubstr("rank 2 on node1 has not entered all-reduce 5 of group world (64 bytes) in "
                        "step 17: it sleeps, in no transfer for 3.0 s\n    ranks 0, 1, 3 wait"));
  EXPECT_EQ(verdict.where, "in step 17");
}

TEST(Judge, NamesAStoppedRankWhereverItStands) {
  std::vector<RankTable> ranks = {Waiting(0, 5), Waiting(1, 5), Waiting(2, 5), Waiting(3, 5)};
  ranks[1].process = 'T';
  const Verdict inside = Judge(ranks, {});
  EXPECT_THAT(Ranks(inside), ElementsAre(1));
  EXPECT_THAT(inside.text, HasSubstr("rank 1 on node0 has entered all-reduce 5"));
  EXPECT_THAT(inside.text, HasSubstr("is stopped"));
}

TEST(Judge, NamesADeadRankAndItsLastCall) {
  std::vector<RankTable> ranks = {Waiting(0, 5), Waiting(1, 5), Rank(2, 5), Waiting(3, 5)};
  ranks[2].process = '-';
  ranks[2].calls = {{.number = 1, .sequence = 5, .call = Call::kBarrier, .name = "world"}};
  const Verdict verdict = Judge(ranks, {});
  EXPECT_THAT(Ranks(verdict), ElementsAre(2));
  EXPECT_THAT(verdict.text, HasSubstr("the last one barrier 5 of group world: it is gone"));
}

TEST(Judge, NamesAllWhoAreMissing) {
  const Verdict verdict = Judge({Waiting(0, 5), Rank(1, 4), Rank(2, 4), Waiting(3, 5)}, {});
  EXPECT_THAT(Ranks(verdict), ElementsAre(1, 2));
}

// Rank 1 waits in the tensor group for rank 0, which waits for rank 3 in the world.
TEST(Judge, FollowsTheChainToItsEnd) {
  std::vector<RankTable> ranks = {Waiting(0, 5), Rank(1, 4), Waiting(2, 5), Rank(3, 4)};
  ranks[0].groups.push_back({kTensor, "tensor", 0, 2, 7});
  ranks[1].groups.push_back({kTensor, "tensor", 1, 2, 8});
  ranks[1].waiting =
      CallRow{.sequence = 8, .call = Call::kAllGather, .group = kTensor, .name = "tensor"};
  const Verdict verdict = Judge(ranks, {});
  EXPECT_THAT(Ranks(verdict), ElementsAre(3));
  EXPECT_THAT(verdict.culprits.front().waiting, ElementsAre(0, 2));
}

// A message that was sent is not what a receive waits for.
TEST(Judge, MatchesMessages) {
  std::vector<RankTable> ranks = {Rank(0, 4), Rank(1, 4)};
  for (int i = 0; i < 2; ++i) ranks[i].groups.push_back({kPipeline, "pipeline", i, 2, 0});
  ranks[1].waiting = CallRow{.sequence = 3,
                             .call = Call::kReceive,
                             .group = kPipeline,
                             .name = "pipeline",
                             .peer = 0,
                             .tag = 1};
  ranks[0].flows = {{kPipeline, 1, 1, 2, 0}, {kPipeline, 1, 0, 9, 0}};
  ranks[0].idle = 0.1;
  ranks[1].idle = 3;
  Verdict verdict = Judge(ranks, {});
  EXPECT_THAT(Ranks(verdict), ElementsAre(0));
  EXPECT_THAT(verdict.text, HasSubstr("has not answered receive 3 with tag 1 from member 0"));
  EXPECT_THAT(verdict.culprits.front().waiting, ElementsAre(1));
  ranks[0].flows[0].sent = 3;
  verdict = Judge(ranks, {});
  EXPECT_THAT(verdict.culprits.front().waiting, IsEmpty());
}

// A transfer started in time still waits for a rank that computes.
TEST(Judge, NamesTheOneThatComputesIfNobodyIsMissing) {
  std::vector<RankTable> ranks = {Waiting(0, 5), Waiting(1, 5), Rank(2, 5), Rank(3, 5)};
  ranks[3].idle = 0.01;
  EXPECT_THAT(Ranks(Judge(ranks, {})), ElementsAre(2));
}

TEST(Judge, SaysThatNobodyIsMissing) {
  const Verdict verdict = Judge({Waiting(0, 5), Waiting(1, 5)}, {});
  EXPECT_THAT(verdict.culprits, IsEmpty());
  EXPECT_THAT(verdict.text, HasSubstr("ranks 0, 1 have entered all-reduce 5"));
  EXPECT_THAT(verdict.text, HasSubstr("Nobody is missing"));
}

TEST(Judge, NamesACircle) {
  std::vector<RankTable> ranks = {Rank(0, 0), Rank(1, 0)};
  for (int i = 0; i < 2; ++i) {
    ranks[i].groups.push_back({kPipeline, "pipeline", i, 2, 0});
    ranks[i].waiting = CallRow{.sequence = 1,
                               .call = Call::kReceive,
                               .group = kPipeline,
                               .name = "pipeline",
                               .peer = 1 - i};
  }
  const Verdict verdict = Judge(ranks, {});
  EXPECT_THAT(verdict.culprits, IsEmpty());
  EXPECT_THAT(verdict.text, HasSubstr("wait for each other"));
}

TEST(Judge, TellsThatRanksHaveParted) {
  const Verdict verdict = Judge({Waiting(0, 5), Waiting(1, 5, Call::kBarrier)}, {});
  EXPECT_THAT(verdict.text, HasSubstr("rank 1 on node0 is in barrier 5"));
  EXPECT_THAT(verdict.text, HasSubstr("parted"));
}

TEST(Judge, NamesNodesThatSayNothing) {
  const Verdict verdict = Judge({Waiting(0, 5), Waiting(1, 5)}, {{"node1", {2, 3}}});
  EXPECT_THAT(verdict.text, HasSubstr("node1 (ranks 2, 3) says nothing"));
  EXPECT_THAT(verdict.text, Not(HasSubstr("Nobody")));
}

// The host waits for its GPU, whose queue holds what was started.
TEST(Judge, LooksBehindAWaitForTheDevice) {
  std::vector<RankTable> ranks = {Rank(0, 7), Rank(1, 5)};
  ranks[0].waiting = CallRow{.step = 17, .phase = Phase::kStep, .call = Call::kDevice};
  ranks[0].calls = {{.sequence = 6, .bytes = 32, .call = Call::kAllGather, .group = kWorld}};
  const Verdict verdict = Judge(ranks, {});
  EXPECT_THAT(Ranks(verdict), ElementsAre(1));
  EXPECT_THAT(verdict.text, HasSubstr("has not entered all-gather 6 of group world (32 bytes)"));
}

TEST(Judge, IsNotLostWithoutAnyRank) { EXPECT_THAT(Judge({}, {}).culprits, IsEmpty()); }

TEST(FlightTables, SurviveTheirFile) {
  std::vector<RankTable> ranks = {Waiting(0, 5), Rank(1, 4)};
  ranks[0].flows = {{kPipeline, 1, 2, 3, 4}};
  ranks[0].calls = {*ranks[0].waiting};
  ranks[0].calls[0].left = true;
  ranks[1].process = 'T';
  ranks[1].host = "ho\"st\xff";
  ranks[1].stack = "main +0x1\nstart +0x2\n";
  const auto read = FromText(ToText(3, "a \"reason\"", ranks));
  ASSERT_TRUE(read);
  EXPECT_EQ(Judge(*read, {}).culprits.size(), 1);
  EXPECT_EQ(Judge(*read, {}).culprits.front().rank, 1);
  EXPECT_EQ(read->at(0).waiting->sequence, 5);
  EXPECT_EQ(read->at(0).waiting->call, Call::kAllReduce);
  EXPECT_EQ(read->at(0).flows.at(0).received, 4);
  EXPECT_TRUE(read->at(0).calls.at(0).left);
  EXPECT_EQ(read->at(1).stack, ranks[1].stack);
  EXPECT_FALSE(FromText(ToText(3, "cut", ranks).substr(0, 200)));
  EXPECT_FALSE(FromText("{\"ranks\": [{}]}"));
}

}  // namespace
}  // namespace trireme::comm
