// The objects of the training loop, each by itself, on a small model in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint_policy.hpp"
#include "evaluations.hpp"
#include "folders.hpp"
#include "plan_of.hpp"
#include "recovery.hpp"
#include "reporter.hpp"
#include "run_session.hpp"
#include "runtime.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::tasks {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kDeck =
    "[run]\nseed=11\nmax_bad_steps=1\nspike_window=2\non_spike=rollback\n"
    "[data]\nsequence_length=7\nmicro_batch=2\nbatch=4\n"
    "[schedule]\nsteps=8\nwarmup_steps=2\n[checkpoint]\nevery_steps=2\nkeep=0\n"
    "[monitor]\nevery_steps=2\nvalidate_every_steps=4\nsample_tokens=0\ntensorboard=no\n"
    "[model]\nlayers=1\nheads=2\nhead_dim=4\ndim=8\nffn=12\nmax_positions=7\n";

data::TokenData SmallTokens() {
  constexpr std::int32_t kTypes = 23;
  data::TokenData data;
  for (std::size_t split = 0; split < 3; ++split) {
    std::int32_t token = static_cast<std::int32_t>(split) + 3;
    for (int i = 0; i < (split == 0 ? 200 : 30); ++i) {
      data.tokens[split].push_back(token);
      token = (token * 7 + i % 3) % kTypes;
    }
  }
  for (int id = 0; id < kTypes; ++id) data.vocabulary.words.push_back("w" + std::to_string(id));
  data.vocabulary.eos = 0;
  data.vocabulary.unk = 1;
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, '0');
  return data;
}

app::RunRecord RecordOf(const nlohmann::json& run) {
  return app::ParseRunRecord(nlohmann::json::parse(run.dump()), "run.json");
}

// Everything that the objects of a loop are made from.
class LoopObjects : public test::FolderTest {
 protected:
  LoopObjects()
      : world_(test::TestRuntime().World()),
        schema_(DeclareAll()),
        tokens_(world_, SmallTokens()),
        own_split_{.name = {}, .tokens = &tokens_} {
    job_.ranks = {&test::TestRuntime(), &signals_};
    job_.request.schema = &schema_;
    job_.request.deck = test::ParsedDeck(kDeck, {"job.output=" + In("run")});
    static_cast<app::DeckOptions&>(job_.request) = app::ReadAll(job_.request.deck);
    job_.device.stream.threads = 1;
    plan_ = train::MakePlan({job_.request,
                             job_.request.deck,
                             1,
                             {.vocabulary = tokens_.VocabularySize(),
                              .train = tokens_.Size(data::Split::kTrain),
                              .source = "tokens in memory"},
                             {.dtype = Dtype::kFloat32, .stream = job_.device.stream}});
    grid_.emplace(world_, plan_.grid, plan_.sharing);
    state_.emplace(*grid_, plan_.training, job_.device.stream);
    step_.emplace(*state_, data::Corpus(tokens_));
    data_.emplace(job_.request.data, plan_.training, data::Corpus(tokens_), *step_);
    loop_.reset(new LoopParts{job_, plan_, *data_, *state_, *step_, progress_});
    progress_.last = plan_.training.options.schedule.Last();
    progress_.watch = [this](comm::Phase phase) { watched_.push_back(phase); };
  }

  RunSession Session() { return RunSession(job_); }
  // A monitor whose records lie in the run folder.
  void OpenMonitor(const RunSession& session) {
    report::MakeRunFolder(session.Folder());
    loop_->monitor.emplace(
        report::Session{.root = true, .folder = session.Folder(), .total_steps = 8});
  }
  // The policy of the run folder; run.json says what was asked for.
  void MakePolicy(const RunSession& session) {
    loop_->session = &session;
    const auto run = [this](bool stop_only) {
      nlohmann::json run = data_->Json(progress_.step);
      run["step"] = progress_.step;
      run["stop_only"] = stop_only;
      policy_->AddTo(run);
      return run;
    };
    const auto written = [this](std::int64_t step) {
      told_.push_back(step);
      if (recovery_) recovery_->HaveWritten(step);
    };
    policy_.emplace(*loop_, BestLoss({}), run, written);
  }
  train::StepResult TrainTo(std::int64_t step) {
    train::StepResult result;
    while (progress_.step < step) result = step_->Run(progress_.step++);
    return result;
  }
  // The member of every record of a kind in the run's metrics.jsonl.
  std::vector<nlohmann::json> Records(const std::string& kind, const std::string& member) {
    loop_->monitor->SyncRecords();
    std::ifstream file(In("run/metrics.jsonl"));
    std::vector<nlohmann::json> found;
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (record.at("kind") == kind) found.push_back(record.at(member));
    }
    return found;
  }

  const comm::Communicator& world_;
  const deck::Schema schema_;
  const data::TokenFile tokens_;
  const app::ValidSplit own_split_;
  device::StopSignals signals_;
  app::Job job_;
  train::Plan plan_;
  std::optional<comm::ProcessGrid> grid_;
  std::optional<train::TrainingState> state_;
  std::optional<train::TrainingStep> step_;
  std::optional<TrainingData> data_;
  std::vector<comm::Phase> watched_;
  std::vector<std::int64_t> told_;  // checkpoints that the policy has told of
  Progress progress_{.deadline = app::Deadline(std::nullopt, 0, 0), .watch = {}};
  std::unique_ptr<LoopParts> loop_;
  std::optional<CheckpointPolicy> policy_;
  std::optional<Recovery> recovery_;
};

using RunSessionTest = LoopObjects;

TEST_F(RunSessionTest, ANewRunHasItsFolderForItself) {
  RunSession session = Session();
  EXPECT_EQ(session.Folder(), In("run"));
  EXPECT_FALSE(session.Continues() || session.Resumes());
  EXPECT_FALSE(fs::exists(In("run")));  // so far nothing is changed
  session.Lock();
  session.Begin(0);
  EXPECT_TRUE(fs::exists(In("run/deck.in")));
  RunSession other = Session();
  EXPECT_THROW(other.Lock(), Error);
  EXPECT_NO_THROW(session.HoldLock(true));
}

TEST_F(RunSessionTest, WithoutItsLockItWritesNothing) {
  RunSession session = Session();
  session.Lock();
  fs::remove(In("run/run.lock"));
  EXPECT_THAT([&] { session.HoldLock(false); },
              testing::ThrowsMessage<Error>(HasSubstr("is not this job's any more")));
  fs::remove_all(In("run"));
  EXPECT_THAT([&] { session.HoldLock(false); },
              testing::ThrowsMessage<Error>(HasSubstr("was removed or moved")));
}

TEST_F(RunSessionTest, StartsThatLeadNowhereAreCounted) {
  job_.request.checkpoint.max_restarts = 2;
  Session().Lock();
  job_.request.line.resume = In("run") + "/";
  for (const int start : {1, 2}) {
    RunSession session = Session();
    EXPECT_TRUE(session.Continues());
    session.Lock();
    session.Begin(0);
    EXPECT_EQ(session.StartsHere(), start);
  }
  RunSession third = Session();
  third.Lock();
  EXPECT_THAT([&] { third.Begin(0); },
              testing::ThrowsMessage<Error>(HasSubstr("start 3 in a row at step 0")));
}

TEST_F(RunSessionTest, AnotherOutputIsABranch) {
  job_.request.line.resume = In("first");
  job_.start.candidates = {In("first/checkpoints/step_00000004")};
  job_.start.record = RecordOf({{"step", 4}});
  job_.request.job.output_given = false;
  EXPECT_EQ(fs::absolute(Session().Folder()), In("first"));
  EXPECT_TRUE(Session().Continues());
  job_.request.job.output_given = true;
  const RunSession branch = Session();
  EXPECT_EQ(branch.Folder(), In("run"));
  EXPECT_TRUE(branch.Resumes() && !branch.Continues());
  EXPECT_EQ(branch.DescribeStart(), job_.start.candidates.front());
  job_.request.checkpoint.start_from = In("second");
  EXPECT_THAT([&] { Session(); },
              testing::ThrowsMessage<Error>(HasSubstr("checkpoint.start_from")));
}

TEST_F(RunSessionTest, KnowsWhenNothingIsLeftToDo) {
  job_.request.line.resume = In("run");
  job_.request.job.output_given = true;
  job_.start.candidates = {In("first/checkpoints/step_00000008")};
  job_.start.record = RecordOf({{"step", 8}});
  progress_.step = 7;
  EXPECT_FALSE(Session().HasEnded(progress_));
  progress_.step = 8;
  EXPECT_TRUE(Session().HasEnded(progress_));  // a branch at the schedule's end
  // In its own folder, only with the last record there.
  job_.request.job.output_given = false;
  job_.start.candidates = {In("run/checkpoints/step_00000008")};
  EXPECT_FALSE(Session().HasEnded(progress_));
}

TEST(BestLoss, IsThatOfTheCheckpointThatWasWritten) {
  BestLoss best({});
  best.Note(3);
  EXPECT_TRUE(best.IsNew());
  best.Begin(true);
  EXPECT_FALSE(best.IsNew());
  best.Written(true);
  EXPECT_EQ(best.Kept(), 3);
  best.Note(2);
  best.Begin(true);
  best.Written(false);  // 3 is the best again
  best.Note(2.5);
  EXPECT_TRUE(best.IsNew());
  best.Begin(true);
  best.Note(2);  // a better state meanwhile
  best.Written(false);
  best.Note(2.2);
  nlohmann::json run;
  best.AddTo(run);
  EXPECT_EQ(run.at("best_loss"), 2);
}

TEST(BestLoss, OfAnotherSetDoesNotCount) {
  const app::Decider now{.set = "b", .sha256 = std::string(64, '1'), .tokens = 10};
  nlohmann::json run = {{"step", 6}, {"best_loss", 1.5}, {"validation", app::DeciderJson(now)}};
  BestLoss same(now);
  same.Take(RecordOf(run));
  EXPECT_EQ(same.Kept(), 1.5);
  BestLoss other({.set = "a", .sha256 = std::string(64, '2'), .tokens = 10});
  other.Take(RecordOf(run));
  EXPECT_EQ(other.Kept(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(other.Decider().since, 6);
  run["validation_due"] = true;
  other = BestLoss({.set = "a", .sha256 = std::string(64, '2'), .tokens = 10});
  other.Take(RecordOf(run));
  EXPECT_EQ(other.Decider().since, 5);  // that validation is of the new set
}

using CheckpointPolicyTest = LoopObjects;

TEST_F(CheckpointPolicyTest, SaysWhyOneIsDue) {
  const RunSession session = Session();
  OpenMonitor(session);
  MakePolicy(session);
  progress_.step = 1;
  EXPECT_FALSE(policy_->Due());
  progress_.stop = true;
  EXPECT_TRUE(policy_->Due()->stop_only);
  progress_.stop = false;
  progress_.checkpoint_now = true;
  EXPECT_FALSE(policy_->Due()->stop_only);
  progress_.checkpoint_now = false;
  policy_->Best().Note(4);
  EXPECT_TRUE(policy_->Due()->best);
  policy_->Best().Begin(false);
  progress_.step = 2;
  EXPECT_FALSE(policy_->Due()->stop_only || policy_->Due()->best);
}

TEST_F(CheckpointPolicyTest, WritesTheBestAndTellsOfTheLastRegularOne) {
  const RunSession session = Session();
  OpenMonitor(session);
  MakePolicy(session);
  TrainTo(2);
  policy_->Best().Note(4);
  policy_->Write({.best = true});
  EXPECT_EQ(policy_->Best().Kept(), 4);
  EXPECT_TRUE(told_.empty());
  const nlohmann::json run = checkpoint::ReadRun(In("run/checkpoints/best"));
  EXPECT_EQ(run.at("step"), 2);
  EXPECT_EQ(run.at("best_loss"), 4);
  EXPECT_FALSE(run.at("stop_only"));
  progress_.step = 3;
  policy_->Write({.stop_only = true});
  EXPECT_THAT(told_, ElementsAre(2));
  EXPECT_TRUE(checkpoint::ReadRun(In("run/checkpoints/latest")).at("stop_only"));
  EXPECT_GT(policy_->TakeSeconds(), 0);
  EXPECT_EQ(policy_->TakeSeconds(), 0);
  EXPECT_THAT(policy_->Summary().front(), HasSubstr("2 checkpoints of"));
}

TEST_F(CheckpointPolicyTest, DrainsLocalCheckpointsToTheRunFolder) {
  fs::create_directory(In("node"));
  job_.request.checkpoint.local = In("node");
  job_.request.checkpoint.drain_every = 2;
  const RunSession session = Session();
  OpenMonitor(session);
  MakePolicy(session);
  for (std::int64_t step = 2; step <= 6; step += 2) {
    progress_.step = step;
    policy_->Write(*policy_->Due());
  }
  // The first one, and that of step 4; all are on the node.
  EXPECT_THAT(Records("event", "event"),
              ElementsAre("local checkpoint", "checkpoint", "local checkpoint", "checkpoint",
                          "local checkpoint"));
  EXPECT_FALSE(fs::exists(In("run/checkpoints/step_00000006")));
  EXPECT_TRUE(checkpoint::ReadRun(In("run/checkpoints/latest")).contains(app::kRunName));
  policy_->RemoveLocal();
  EXPECT_TRUE(fs::is_empty(In("node")));
}

class RecoveryTest : public LoopObjects {
 protected:
  RecoveryTest() : session_(Session()) {
    OpenMonitor(session_);
    MakePolicy(session_);
  }
  void MakeRecovery() {
    recovery_.emplace(
        *loop_, *policy_, Safeguards(job_.request.training),
        [this](const app::RunRecord& record) { returned_to_.push_back(record.step); });
  }

  const RunSession session_;
  std::vector<std::int64_t> returned_to_;
};

TEST_F(RecoveryTest, ABadStepTooManyEndsTheRun) {
  MakeRecovery();
  const train::Fault fault{.rank = 0, .what = "the loss is not finite", .more = {}};
  progress_.step = 1;
  recovery_->AnswerFault(fault);
  EXPECT_THAT(Records("event", "event"), ElementsAre("bad step"));
  progress_.step = 2;
  EXPECT_THAT([&] { recovery_->AnswerFault(fault); },
              testing::ThrowsMessage<AgreedError>(
                  HasSubstr("bad step 2 in a row, with run.max_bad_steps = 1")));
  EXPECT_EQ(recovery_->BadSteps(), 2);
}

TEST_F(RecoveryTest, ASpikeGoesBackToTheLastRegularCheckpoint) {
  MakeRecovery();
  TrainTo(2);
  policy_->Write({});
  const auto weights = [&] {
    const train::StateOnHost blocks = state_->ModelBlocks();
    const auto* values = static_cast<const float*>(blocks[0].data);
    return std::vector<float>(values, values + (blocks[0].end - blocks[0].begin));
  };
  const std::vector<float> of_step_two = weights();
  train::StepResult result = TrainTo(3);
  result.loss = 3;
  EXPECT_FALSE(recovery_->GoesBack(result));
  TrainTo(4);
  result.loss = 3.1;
  EXPECT_FALSE(recovery_->GoesBack(result));
  EXPECT_NE(weights(), of_step_two);
  progress_.validation_due = progress_.checkpoint_now = true;
  const std::int64_t next_sample = data_->Order().NextSample(4);
  result.loss = 50;
  EXPECT_TRUE(recovery_->GoesBack(result));
  EXPECT_EQ(progress_.step, 2);
  EXPECT_FALSE(progress_.validation_due || progress_.checkpoint_now);
  EXPECT_EQ(weights(), of_step_two);
  EXPECT_EQ(data_->Order().NextSample(2), next_sample);  // samples of two steps are left out
  EXPECT_THAT(returned_to_, ElementsAre(2));
  EXPECT_TRUE(recovery_->HasGoneBack());
  EXPECT_THAT(Records("event", "event"), ElementsAre("checkpoint", "spike", "rollback"));
  EXPECT_THAT(recovery_->Summary(), Contains(HasSubstr("1 rollback, 8 samples left out")));
}

TEST_F(RecoveryTest, ASpikeIsOnlyReportedIfTheDeckSaysSo) {
  job_.request.training.on_spike = train::OnSpike::kReport;
  MakeRecovery();
  TrainTo(2);
  policy_->Write({});
  train::StepResult result = TrainTo(4);
  for (const double loss : {3.0, 3.1, 50.0}) {
    result.loss = loss;
    EXPECT_FALSE(recovery_->GoesBack(result));
  }
  EXPECT_EQ(progress_.step, 4);
  EXPECT_TRUE(returned_to_.empty());
  EXPECT_THAT(Records("event", "text"), Contains(HasSubstr("run.on_spike = report")));
}

TEST_F(RecoveryTest, OneRankHasNoReplicas) {
  MakeRecovery();
  progress_.step = job_.request.checkpoint.check_replicas_every;
  EXPECT_FALSE(recovery_->ReplicasDiffer());
  EXPECT_THAT(recovery_->Summary(), testing::Each(""));
}

class EvaluationsTest : public LoopObjects {
 protected:
  EvaluationsTest() { OpenMonitor(Session()); }
  Evaluations Make() {
    return {*loop_, {&own_split_, 1}, best_, [this](report::Record& record) {
              record.step = progress_.step;
            }};
  }

  BestLoss best_{app::Decider{}};
};

TEST_F(EvaluationsTest, AValidationDecidesOnTheBest) {
  Evaluations evaluations = Make();
  TrainTo(3);
  evaluations.ValidateIfDue();
  EXPECT_TRUE(Records("valid", "step").empty());
  TrainTo(4);
  evaluations.ValidateIfDue();
  EXPECT_THAT(Records("valid", "step"), ElementsAre(4));
  EXPECT_TRUE(best_.IsNew());
  EXPECT_FALSE(progress_.validation_due);
  nlohmann::json run;
  best_.AddTo(run);
  EXPECT_NEAR(run.at("best_loss").get<double>(), Records("valid", "loss").front().get<double>(),
              1e-6);
  EXPECT_THAT(watched_, ElementsAre(comm::Phase::kValidation));
}

TEST_F(EvaluationsTest, AStopDoesNotWaitForOne) {
  Evaluations evaluations = Make();
  progress_.step = 4;
  progress_.stop = true;
  evaluations.ValidateIfDue();
  EXPECT_TRUE(progress_.validation_due);
  EXPECT_TRUE(Records("valid", "step").empty());
  // After the schedule's last step there is nothing else to do.
  progress_.step = progress_.last;
  evaluations.ValidateIfDue();
  EXPECT_FALSE(progress_.validation_due);
  EXPECT_THAT(Records("valid", "step"), ElementsAre(8));
}

TEST_F(EvaluationsTest, TheDeadlineKnowsOfThem) {
  Evaluations evaluations = Make();
  std::vector<bool> near;
  for (progress_.step = 0; progress_.step < 5; ++progress_.step) {
    near.push_back(evaluations.IsNear());
  }
  EXPECT_THAT(near, ElementsAre(false, false, true, true, false));
  near.clear();
  progress_.last = 7;  // whose validation is not one of every four
  for (progress_.step = 4; progress_.step < 7; ++progress_.step) {
    near.push_back(evaluations.IsNear());
  }
  EXPECT_THAT(near, ElementsAre(false, true, true));
  train::StepResult step;
  step.tokens = 10;
  step.times.total = 2;
  evaluations.Expect(step);
  EXPECT_EQ(progress_.deadline.LongestValidation(), 2 * 30 / 10.0);  // 30 tokens of the split
}

TEST_F(EvaluationsTest, TheTestIsOfTheWholeSplit) {
  Evaluations evaluations = Make();
  EXPECT_TRUE(evaluations.Test());
  EXPECT_EQ(Records("test", "step").size(), 1u);
  EXPECT_FALSE(best_.IsNew());
  job_.request.monitor.validate_every_steps = 0;
  EXPECT_TRUE(evaluations.Test());
  EXPECT_EQ(Records("test", "step").size(), 1u);  // the deck wants none
}

using ReporterTest = LoopObjects;

TEST_F(ReporterTest, TellsOfASessionFromItsStartToItsEnd) {
  RunSession session = Session();
  session.Lock();
  session.Begin(0);
  Reporter reporter(*loop_);
  loop_->session = &session;
  loop_->monitor.emplace(report::Session{
      .root = true, .folder = session.Folder(), .every_steps = 2, .total_steps = 8});
  reporter.MeterEnergy();
  job_.start.warnings = {"the deck is odd"};
  reporter.Begin(1e9);
  reporter.SayStart();
  reporter.SayMixed("cards differ");
  reporter.BeginSteps();
  for (const double seconds : {0.0, 0.25}) {
    reporter.BeginStep();
    const train::StepResult result = step_->Run(progress_.step++);
    reporter.Step(result, 1, seconds);
    reporter.EndStep();
  }
  progress_.stop = true;
  progress_.stop_reason = "a signal";
  report::Summary summary = reporter.SummarySoFar();
  EXPECT_EQ(summary.facts.total_steps, 8);
  EXPECT_THAT(summary.facts.deck, Contains(testing::Pair("schedule.steps", "8")));
  reporter.Done({.bad_steps = 1, .writer_bytes = 7, .lines = {"", "checkpoints, in a line"}},
                std::move(summary));
  reporter.SayStopped();
  const std::string log = test::ReadBytes(In("run/log.txt"));
  for (const char* text : {"GFLOP/s per rank", "warning: the deck is odd", "warning: cards differ",
                           "checkpoints, in a line", "stopped by a signal after step 2"}) {
    EXPECT_THAT(log, HasSubstr(text));
  }
  const nlohmann::json written = nlohmann::json::parse(test::ReadBytes(In("run/summary.json")));
  EXPECT_EQ(written.at("bad_steps"), 1) << written.dump(1);
}

TEST_F(ReporterTest, SaysWhatAContinuedRunChanges) {
  const RunSession session = Session();
  Reporter reporter(*loop_);
  report::MakeRunFolder(session.Folder());
  loop_->session = &session;
  loop_->monitor.emplace(report::Session{.root = true, .folder = session.Folder()});
  nlohmann::json run = data_->Json(0);
  run["step"] = 4;
  run["ranks"] = 1;
  nlohmann::json before = run;
  before["ranks"] = 2;
  before["sequence_length"] = 14;
  reporter.SayChanges(RecordOf(before), run, {});
  loop_->monitor->SyncRecords();
  EXPECT_THAT(test::ReadBytes(In("run/log.txt")), HasSubstr("the windows are others: epoch 1"));
  EXPECT_THAT(test::ReadBytes(In("run/metrics.jsonl")), HasSubstr("\"layout\""));
}

}  // namespace
}  // namespace trireme::tasks
