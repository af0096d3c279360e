// The monitor as the driver uses it: which steps are printed and recorded, and where lines go.
#include "trireme/report/monitor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "folder_test.hpp"
#include "table.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"

namespace trireme::report {
namespace {

using test::FolderTest;
using test::ReadBytes;
using test::WriteBytes;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::StartsWith;

// The (kind, step) of every record.
std::vector<std::pair<std::string, int>> Records(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::pair<std::string, int>> records;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    records.emplace_back(json["kind"], json["step"]);
  }
  return records;
}

using Kinds = std::vector<std::pair<std::string, int>>;

// Every step, with an interval after those that have a line on the screen.
Kinds Steps(int first, int last, const std::set<int>& lines) {
  Kinds kinds;
  for (int step = first; step <= last; ++step) {
    kinds.emplace_back("step", step);
    if (lines.contains(step)) kinds.emplace_back("interval", step);
  }
  return kinds;
}

Kinds operator+(Kinds a, const Kinds& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Record MonitorStepRecord(std::int64_t step) {
  Record record;
  record.step = step;
  record.loss = 10.0 / static_cast<double>(step);
  record.step_seconds = 0.5;
  record.tokens_per_second = 100;
  record.seconds_compute = 0.5;
  return record;
}

Record MonitorValid(std::int64_t step) {
  Record record = MonitorStepRecord(step);
  record.kind = Record::Kind::kValid;
  return record;
}

class MonitorTest : public FolderTest {
 protected:
  Session RootSession() const {
    Session session;
    session.root = true;
    session.folder = folder_;
    session.every_steps = 10;
    session.total_steps = 25;
    return session;
  }
  // The last record of a kind.
  nlohmann::json LastOf(const std::string& kind) const {
    std::ifstream file(In("metrics.jsonl"));
    nlohmann::json last;
    for (std::string line; std::getline(file, line);) {
      auto json = nlohmann::json::parse(line);
      if (json["kind"] == kind) last = std::move(json);
    }
    return last;
  }
};

TEST_F(MonitorTest, PrintsAndRecordsFirstGridAndLastStep) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    monitor.Line("hello");
    for (int step = 1; step <= 25; ++step) monitor.Step(MonitorStepRecord(step));
    monitor.Evaluation(MonitorValid(25));
    monitor.Warn("careful");
    Record done = MonitorStepRecord(25);
    done.kind = Record::Kind::kDone;
    monitor.Done(done, {.files = {{"log", "there"}}});
  }
  const std::string screen = testing::internal::GetCapturedStdout();
  EXPECT_EQ(screen, ReadBytes(In("log.txt"))) << "a batch log and log.txt are the same";
  EXPECT_THAT(screen, StartsWith("hello\n" + TableHeader() + "\n       1 "));
  EXPECT_THAT(screen,
              HasSubstr("\n   valid    0.00   0.4000         1.5\nwarning: careful\ndone "));
  EXPECT_THAT(screen, testing::EndsWith("files   log  there\n"));
  EXPECT_EQ(screen.find('\r'), std::string::npos);
  EXPECT_THAT(Records(In("metrics.jsonl")),
              ElementsAreArray(Steps(1, 25, {1, 10, 20, 25}) + Kinds{{"valid", 25}, {"done", 25}}));
}

TEST_F(MonitorTest, APipelinesRunShowsItsBubbleAndItsTraffic) {
  Session session = RootSession();
  session.has_stages = true;
  testing::internal::CaptureStdout();
  {
    Monitor monitor(session);
    Record record = MonitorStepRecord(1);
    record.seconds_bubble = 0.05;
    monitor.Step(record);
    TrafficRow row;
    row.group = "pipeline";
    row.transfer = "send";
    row.ranks = row.calls = 1;
    monitor.Done(MonitorStepRecord(1), {.traffic = {row}});
  }
  const std::string screen = testing::internal::GetCapturedStdout();
  EXPECT_THAT(screen, StartsWith(TableHeader(true) + "\n       1 "));
  EXPECT_THAT(screen, HasSubstr("  10.0%     0:00"));
  EXPECT_THAT(screen, HasSubstr("\n        pipeline   send "));
}

TEST_F(MonitorTest, ARunStoppedEarlyIsNotDone) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    monitor.Step(MonitorStepRecord(1));
    Record done = MonitorStepRecord(1);
    done.kind = Record::Kind::kDone;
    monitor.Done(done, {});
  }
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("\nstopped 1 step, 0 tokens"));
  EXPECT_THAT(Records(In("metrics.jsonl")), ElementsAreArray(Steps(1, 1, {1})));
}

TEST_F(MonitorTest, AnIntervalHasTheRangesOfItsSteps) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    for (int step = 1; step <= 20; ++step) {
      Record record = MonitorStepRecord(step);
      record.tokens_per_second = 100.0 * step;
      record.step_seconds = step == 15 ? 9.5 : 0.5;
      if (step == 16) record.loss = record.grad_norm = NAN;
      if (step == 17) record.loss = INFINITY;
      monitor.Step(record);
    }
  }
  testing::internal::GetCapturedStdout();
  const auto json = LastOf("interval");
  EXPECT_EQ(json["step"], 20);
  EXPECT_EQ(json["steps"], 10);
  EXPECT_DOUBLE_EQ(json["loss_max"], 10.0 / 11);
  EXPECT_DOUBLE_EQ(json["loss_min"], 0.5);
  double sum = 0;
  for (const int step : {11, 12, 13, 14, 15, 18, 19, 20}) sum += 10.0 / step;
  EXPECT_DOUBLE_EQ(json["loss_mean"], sum / 8);
  EXPECT_EQ(json["grad_norm_max"], 0.0);
  EXPECT_DOUBLE_EQ(json["step_seconds_max"], 9.5);
  EXPECT_DOUBLE_EQ(json["step_seconds_mean"], 1.4);
  EXPECT_DOUBLE_EQ(json["tokens_per_second_min"], 1100);
  EXPECT_DOUBLE_EQ(json["tokens_per_second_max"], 2000);
  // All tokens over all seconds, not the mean of the speeds.
  EXPECT_DOUBLE_EQ(json["tokens_per_second_mean"], (0.5 * 14000 + 9.5 * 1500) / 14);
  const auto step = LastOf("step");
  EXPECT_EQ(step["tokens_per_second"], 2000) << "a step's own speed";
}

TEST_F(MonitorTest, AnIntervalWithoutAFiniteLossHasNone) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    Record record = MonitorStepRecord(1);
    record.loss = NAN;
    monitor.Step(record);
  }
  testing::internal::GetCapturedStdout();
  EXPECT_TRUE(LastOf("step")["loss"].is_null());
  for (const char* name : {"loss_min", "loss_max", "loss_mean"}) {
    EXPECT_TRUE(LastOf("interval")[name].is_null()) << name;
  }
}

TEST_F(MonitorTest, ResumeCutsMetricsAndAppendsToTheLog) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    for (int step = 1; step <= 23; ++step) monitor.Step(MonitorStepRecord(step));
  }
  Session session = RootSession();
  session.resumed = true;
  session.resume_step = 15;
  {
    Monitor monitor(session);
    monitor.Line("again");
    for (int step = 16; step <= 25; ++step) monitor.Step(MonitorStepRecord(step));
    monitor.Done(MonitorStepRecord(25), {});
  }
  const std::string screen = testing::internal::GetCapturedStdout();
  EXPECT_EQ(screen, ReadBytes(In("log.txt")));
  EXPECT_THAT(screen, HasSubstr("\nagain\n" + TableHeader() + "\n      20 "));
  EXPECT_THAT(screen, HasSubstr("25 steps (10 in this session)"));
  EXPECT_THAT(screen, HasSubstr("loss    train first 10.0000, last 0.4000"));
  auto records = Records(In("metrics.jsonl"));
  ASSERT_FALSE(records.empty());
  records.pop_back();
  EXPECT_THAT(records, ElementsAreArray(Steps(1, 25, {1, 10, 20, 25})));
}

TEST_F(MonitorTest, ANewRunStartsItsFilesAnew) {
  WriteBytes(In("log.txt"), "old\n");
  WriteBytes(In("metrics.jsonl"), "old\n");
  const Monitor monitor(RootSession());
  EXPECT_EQ(ReadBytes(In("log.txt")), "");
  EXPECT_EQ(ReadBytes(In("metrics.jsonl")), "");
}

TEST_F(MonitorTest, OtherRanksAreSilent) {
  Session session = RootSession();
  session.root = false;
  testing::internal::CaptureStdout();
  Monitor monitor(session);
  monitor.Banner({});
  monitor.Line("hello");
  monitor.Step(MonitorStepRecord(1));
  monitor.Evaluation(MonitorValid(1));
  monitor.Warn("careful");
  monitor.Done(MonitorStepRecord(1), {});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(MonitorTest, EvaluationWithoutARunFolderHasAShortHeader) {
  Session session;
  session.root = true;
  testing::internal::CaptureStdout();
  Monitor monitor(session);
  monitor.Evaluation(MonitorValid(25));
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            ShortTableHeader() + "\n   valid    0.00   0.4000         1.5\n");
}

TEST_F(MonitorTest, AFullDiskIsSaidOnceAndTheRunGoesOn) {
  std::filesystem::create_symlink("/dev/full", In("metrics.jsonl"));
  testing::internal::CaptureStdout();
  Monitor monitor(RootSession());
  for (int step = 1; step <= 20; ++step) {
    monitor.Step(MonitorStepRecord(step));
    if (step % 5 == 0) monitor.SyncRecords();
  }
  const std::string screen = testing::internal::GetCapturedStdout();
  const std::string warning = "warning: " + In("metrics.jsonl") +
                              ": cannot be written: No space left on device; the run goes on";
  const std::size_t at = screen.find(warning);
  ASSERT_NE(at, std::string::npos) << screen;
  EXPECT_EQ(screen.find("warning:", at + 1), std::string::npos) << screen;
  EXPECT_THAT(screen, HasSubstr("\n      20 "));
}

TEST_F(MonitorTest, AFolderThatIsMissingIsAnError) {
  Session session = RootSession();
  session.folder = In("missing");
  EXPECT_THROW(Monitor monitor(session), Error);
}

TEST(MonitorKeys, HaveTheDocumentedDefaults) {
  deck::Schema schema;
  Declare(schema);
  EXPECT_EQ(schema.Find("monitor.every_steps")->fallback, "50");
  EXPECT_EQ(schema.Find("monitor.validate_every_steps")->fallback, "500");
  EXPECT_EQ(schema.Find("monitor.sample_tokens")->fallback, "40");
}

}  // namespace
}  // namespace trireme::report
