// What is known of a hang: the flight recorder, the verdict, and the launcher's variables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "flight_tables.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/runtime.hpp"

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// FlightRecorder: what a rank records, as another process of the node would read it.

class FlightRecorderTest : public testing::Test {
 protected:
  RankTable Read() const { return ReadTables(recorder_.Memory(), {"here"}).at(0); }

  Communicator self_ = Communicator::Adopt(MPI_COMM_SELF);
  FlightRecorder recorder_{0, self_};
};

TEST_F(FlightRecorderTest, KeepsCallsOfItsGroup) {
  const int group = recorder_.AddGroup("tensor", recorder_.NewGroupId(), 1, 4);
  recorder_.Progress(Phase::kStep, 17);
  auto first = recorder_.Enter(group, Call::kAllReduce, 64);
  recorder_.Await(first);
  recorder_.Leave(first);
  auto second = recorder_.Enter(group, Call::kAllGather, 32);
  recorder_.Await(second);
  RankTable table = Read();
  ASSERT_TRUE(table.waiting);
  EXPECT_EQ(DescribeCall(*table.waiting), "all-gather 2 of group tensor (32 bytes)");
  EXPECT_EQ(table.waiting->step, 17);
  EXPECT_EQ(table.groups.at(0).entered, 2);
  EXPECT_EQ(table.groups.at(0).rank, 1);
  ASSERT_EQ(table.calls.size(), 2);
  EXPECT_TRUE(table.calls[0].left);
  EXPECT_FALSE(table.calls[1].left);
  recorder_.Leave(second);
  EXPECT_FALSE(Read().waiting);
}

TEST_F(FlightRecorderTest, CountsMessagesByPeerTagAndDirection) {
  const int group = recorder_.AddGroup("pipeline", recorder_.NewGroupId(), 0, 2);
  recorder_.EnterMessage(group, Call::kSend, 8, 1, 0);
  recorder_.EnterMessage(group, Call::kSend, 8, 1, 0);
  recorder_.EnterMessage(group, Call::kReceive, 8, 1, 0);
  EXPECT_EQ(recorder_.EnterMessage(group, Call::kSend, 8, 1, 1).sequence, 1);
  const RankTable table = Read();
  ASSERT_EQ(table.flows.size(), 2);
  EXPECT_EQ(table.flows[0].sent, 2);
  EXPECT_EQ(table.flows[0].received, 1);
}

// The ring is short: a transfer that was started long ago is recorded again when it is waited for.
TEST_F(FlightRecorderTest, FindsAnOldTransferAgain) {
  const int group = recorder_.AddGroup("data", recorder_.NewGroupId(), 0, 2);
  auto old = recorder_.Enter(group, Call::kReduceScatter, 1);
  for (int i = 0; i < 2 * kRing; ++i) recorder_.Enter(group, Call::kBarrier, 0);
  recorder_.Await(old);
  const RankTable table = Read();
  ASSERT_TRUE(table.waiting);
  EXPECT_EQ(DescribeCall(*table.waiting), "reduce-scatter 1 of group data (1 bytes)");
  EXPECT_EQ(table.groups.at(0).entered, 1 + 2 * kRing);
  EXPECT_EQ(table.calls.size(), kRing);
}

TEST_F(FlightRecorderTest, TakesGroupsAndMessagesWithoutEnd) {
  for (int round = 0; round < 3; ++round) {
    std::vector<int> groups;
    for (int i = 0; i < kMostGroups + 5; ++i) {
      groups.push_back(recorder_.AddGroup("g", recorder_.NewGroupId(), 0, 2));
      auto flight = recorder_.EnterMessage(groups.back(), Call::kSend, 1, 1, i);
      recorder_.Await(flight);
      recorder_.Leave(flight);
    }
    EXPECT_EQ(groups.back(), -1);
    for (const int group : groups) recorder_.RemoveGroup(group);
    EXPECT_THAT(Read().groups, testing::IsEmpty());
  }
}

TEST_F(FlightRecorderTest, RecordsCallsOfACommunicatorAndItsParts) {
  self_.RecordWith(recorder_, "world");
  const Communicator part = self_.Split(0, 0, "tensor");
  part.Sum(1.0);
  part.Together([] {});
  const RankTable table = Read();
  ASSERT_EQ(table.groups.size(), 2);
  EXPECT_EQ(table.groups[1].name, "tensor");
  EXPECT_EQ(table.groups[1].entered, 2);
  EXPECT_EQ(DescribeCall(table.calls.back()), "agreement 2 of group tensor (8 bytes)");
}

TEST(ProcessState, TellsStoppedAndGone) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto becomes = [&](auto is) {
    for (int i = 0; i < 500 && !is(LookAt(child).letter); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return is(LookAt(child).letter);
  };
  EXPECT_GT(LookAt(child).started, 0);
  ::kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(IsStopped));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(becomes(IsGone));
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(LookAt(child).letter, '-');
}

// A process that is short of descriptors takes nobody for dead.
TEST(ProcessState, IsNotKnownWithoutADescriptor) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const ProcessState state = LookAt(::getpid());
  ::setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(state.letter, '?');
  EXPECT_FALSE(IsGone(state.letter));
  EXPECT_FALSE(IsStopped(state.letter));
}

// Measured, not asked for closely: the figure is in doc/benchmarks.md.
TEST_F(FlightRecorderTest, CostsLittle) {
  const int group = recorder_.AddGroup("world", recorder_.NewGroupId(), 0, 2);
  constexpr int kCallsTimed = 100'000, kRounds = 20;
  double nanoseconds = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double start = Seconds();
    for (int i = 0; i < kCallsTimed; ++i) {
      auto flight = recorder_.Enter(group, Call::kAllReduce, 64);
      recorder_.Await(flight);
      recorder_.Leave(flight);
    }
    nanoseconds = std::min(nanoseconds, (Seconds() - start) / kCallsTimed * 1e9);
  }
  RecordProperty("nanoseconds_a_call", static_cast<int>(nanoseconds));
  std::printf("%.1f ns a call\n", nanoseconds);
  EXPECT_LT(nanoseconds, 2000);
}

// Judge: who holds a job up, from made-up tables.

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
  EXPECT_THAT(verdict.text, HasSubstr("diverged"));
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

// What launchers say in the environment, and processes that MPI does not know of each other.

using Variables = std::map<std::string, std::string>;

class LauncherTest : public testing::Test {
 protected:
  LauncherTest() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
                             "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "JSM_NAMESPACE_SIZE",
                             "JSM_NAMESPACE_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      names_.emplace_back(name);
    }
  }
  ~LauncherTest() override { Set(before_); }
  void Set(const Variables& variables) {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Launcher Read(const Variables& variables) {
    Set(variables);
    return ReadLauncher();
  }
  std::string Refusal(const Variables& variables) {
    try {
      EXPECT_FALSE(RefuseSingletons(Read(variables), 1));
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return "";
  }

 private:
  std::vector<std::string> names_;
  Variables before_;
};

TEST_F(LauncherTest, StepOfSlurmWithoutPmix) {
  const Variables step = {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}};
  EXPECT_THAT(Refusal(step), testing::HasSubstr("the Slurm step has 2 tasks, MPI sees 1"));
  EXPECT_THAT(Refusal(step), testing::HasSubstr("srun --mpi=pmix"));
  EXPECT_FALSE(RefuseSingletons(Read(step), 2));
  // One message is enough.
  EXPECT_TRUE(RefuseSingletons(Read({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}}), 1));
  // pmi2, which this MPI library does not speak.
  Variables pmi2 = step;
  pmi2["PMI_SIZE"] = "2";
  pmi2["PMI_RANK"] = "0";
  EXPECT_THAT(Refusal(pmi2), testing::HasSubstr("the Slurm step has 2 tasks"));
}

TEST_F(LauncherTest, AShellInAJobIsNoStep) {
  EXPECT_EQ(Refusal({}), "");
  EXPECT_EQ(Refusal({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_NUM_NODES", "2"}}), "");
  EXPECT_EQ(Refusal({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}), "");
  EXPECT_EQ(Refusal({{"SLURM_STEP_NUM_TASKS", "many"}}), "");
}

TEST_F(LauncherTest, TheNearestLauncherCounts) {
  // mpirun starts its daemons through a step of two nodes, and one rank.
  const Variables mpirun = {{"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_PROCID", "0"},
                            {"OMPI_COMM_WORLD_SIZE", "1"},
                            {"OMPI_COMM_WORLD_RANK", "0"}};
  EXPECT_EQ(Refusal(mpirun), "");
  const Variables hydra = {{"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "1"}, {"PMI_RANK", "0"}};
  EXPECT_EQ(Refusal(hydra), "");
}

TEST_F(LauncherTest, OtherLaunchers) {
  EXPECT_THAT(Refusal({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "0"}}),
              testing::HasSubstr("Open MPI's mpirun has 4 tasks, MPI sees 1"));
  EXPECT_THAT(Refusal({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}}),
              testing::HasSubstr("the launcher has 3 tasks"));
  EXPECT_THAT(Refusal({{"FLUX_JOB_SIZE", "3"}, {"FLUX_TASK_RANK", "0"}}),
              testing::HasSubstr("flux run has 3 tasks"));
  EXPECT_THAT(Refusal({{"JSM_NAMESPACE_SIZE", "6"}, {"JSM_NAMESPACE_RANK", "0"}}),
              testing::HasSubstr("jsrun has 6 tasks"));
  // Nobody says which process is the first: all speak.
  EXPECT_NE(Refusal({{"PMI_SIZE", "3"}}), "");
}

}  // namespace
}  // namespace trireme::comm
