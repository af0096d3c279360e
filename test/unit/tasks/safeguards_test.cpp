// Safeguards, and the ranks of a timeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "recovery.hpp"
#include "timeline.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tasks {
namespace {

using testing::HasSubstr;

// Safeguards: what may be answered how often, and the same answers after a stop.

train::SafeguardOptions Rollback() {
  return {.max_bad_steps = 2,
          .spike_window = 2,
          .spike_threshold = 6,
          .on_spike = train::OnSpike::kRollback,
          .max_rollbacks = 2};
}

// run.json of a checkpoint, as it is read.
app::RunRecord RecordOf(const Safeguards& safeguards, std::int64_t step, bool stop_only) {
  const nlohmann::json run = {{"step", step},
                              {"next_sample", 10 * step},
                              {"tokens", 100 * step},
                              {"safeguards", safeguards.Json(stop_only)}};
  return app::ParseRunRecord(nlohmann::json::parse(run.dump()), "run.json");
}

Safeguards Resumed(const app::RunRecord& record) {
  Safeguards resumed(Rollback());
  resumed.Restore(record);
  return resumed;
}

TEST(Safeguards, BadStepsAreCountedInARow) {
  Safeguards run(Rollback());
  EXPECT_FALSE(run.TakeBadStep());
  EXPECT_FALSE(run.TakeBadStep());
  run.TakeLoss(1);
  EXPECT_FALSE(run.TakeBadStep());
  EXPECT_FALSE(run.TakeBadStep());
  EXPECT_TRUE(run.TakeBadStep());
  EXPECT_EQ(run.BadSteps(), 5);
  EXPECT_TRUE(Safeguards(train::SafeguardOptions{}).TakeBadStep());  // the default
}

TEST(Safeguards, AStopDoesNotBeginTheRowAnew) {
  Safeguards run(Rollback());
  run.TakeBadStep();
  run.TakeBadStep();
  Safeguards resumed = Resumed(RecordOf(run, 7, false));
  EXPECT_EQ(resumed.BadSteps(), 2);
  EXPECT_TRUE(resumed.TakeBadStep());
}

TEST(Safeguards, GoesBackOnlySoOftenToOneCheckpoint) {
  Safeguards run(Rollback());
  EXPECT_EQ(run.WhyNot(), "there is no checkpoint to go back to");
  run.HaveWritten(10);
  const app::RunRecord record = RecordOf(run, 10, false);
  for (const std::int64_t next : {150, 170}) {
    EXPECT_EQ(run.WhyNot(), "");
    run.GoBack(record, next);
    run.HaveWritten(10);  // told again
  }
  EXPECT_THAT(run.WhyNot(), HasSubstr("run.max_rollbacks = 2 to the checkpoint of step 10"));
  // The same after a stop, and no more after another checkpoint.
  const Safeguards stopped = Resumed(RecordOf(run, 13, true));
  EXPECT_EQ(stopped.WhyNot(), run.WhyNot());
  EXPECT_EQ(stopped.GoesBackTo(), 10);
  EXPECT_EQ(Resumed(RecordOf(run, 20, false)).WhyNot(), "");
  run.HaveWritten(20);
  EXPECT_EQ(run.WhyNot(), "");
  // One range of samples, from those of the checkpoint on.
  const nlohmann::json skipped = run.Json(false).at("skipped");
  ASSERT_EQ(skipped.size(), 1U);
  EXPECT_EQ(skipped[0], (nlohmann::json{{"step", 10}, {"from_sample", 100}, {"to_sample", 170}}));
  EXPECT_THAT(run.Summary(), HasSubstr("2 rollbacks, 70 samples left out"));
}

TEST(Safeguards, AStopBeforeTheFirstCheckpointIsNoneToGoBackTo) {
  const Safeguards run(Rollback());
  EXPECT_EQ(Resumed(RecordOf(run, 3, true)).WhyNot(), "there is no checkpoint to go back to");
}

TEST(Safeguards, GoingBackRestoresTheLossesAndTheRow) {
  Safeguards run(Rollback());
  run.TakeLoss(1);
  run.TakeLoss(1.5);
  const nlohmann::json there = run.Json(false);
  run.HaveWritten(2);
  const app::RunRecord record = RecordOf(run, 2, false);
  EXPECT_TRUE(run.TakeLoss(100));
  run.TakeBadStep();
  run.GoBack(record, 50);
  const nlohmann::json back = run.Json(false);
  EXPECT_EQ(back.at("losses"), there.at("losses"));
  EXPECT_EQ(back.at("bad_steps_in_a_row"), 0);
  EXPECT_EQ(back.at("bad_steps"), 1);
  EXPECT_EQ(back.at("spikes"), 1);
  EXPECT_TRUE(run.HasGoneBack());
}

TEST(Safeguards, AnOlderCheckpointKnowsOfNothing) {
  const nlohmann::json run = {{"step", 5}};
  const Safeguards resumed = Resumed(app::ParseRunRecord(run, "run.json"));
  EXPECT_EQ(resumed.GoesBackTo(), 5);
  EXPECT_EQ(resumed.Summary(), "");
}

TEST(Safeguards, AFileThatLiesIsRefused) {
  const Safeguards run(Rollback());
  for (const auto& [member, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"losses", 7},
                                                           {"losses", {1.0, "high"}},
                                                           {"bad_steps", -1},
                                                           {"skipped", {3}},
                                                           {"goes_back_to", 8}}) {
    nlohmann::json json = {{"step", 7}, {"safeguards", run.Json(true)}};
    json["safeguards"][member] = value;
    const app::RunRecord record = app::ParseRunRecord(json, "run.json");
    Safeguards resumed(Rollback());
    try {
      resumed.Restore(record);
      ADD_FAILURE() << member;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("run.json")) << member;
      EXPECT_THAT(error.what(), HasSubstr(member));
    }
  }
}

// Ranks of a large job that a timeline takes, and the two ends of a message.

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
