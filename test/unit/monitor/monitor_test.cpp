// The monitor as the driver uses it: which steps are printed and recorded, and where lines go.
#include "trireme/monitor/monitor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "folder_test.hpp"
#include "table.hpp"
#include "trireme/base/error.hpp"
#include "trireme/monitor/options.hpp"

namespace trireme::monitor {
namespace {

using test::FolderTest;
using test::ReadBytes;
using test::WriteBytes;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
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

Record StepRecord(std::int64_t step) {
  Record record;
  record.step = step;
  record.loss = 10.0 / static_cast<double>(step);
  record.step_seconds = 0.5;
  record.tokens_per_second = 100;
  record.seconds_compute = 0.5;
  return record;
}

Record Valid(std::int64_t step) {
  Record record = StepRecord(step);
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
};

TEST_F(MonitorTest, PrintsAndRecordsFirstGridAndLastStep) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    monitor.Line("hello");
    for (int step = 1; step <= 25; ++step) monitor.Step(StepRecord(step));
    monitor.Evaluation(Valid(25));
    monitor.Warn("careful");
    Record done = StepRecord(25);
    done.kind = Record::Kind::kDone;
    monitor.Done(done, {{"log", "there"}});
  }
  const std::string screen = testing::internal::GetCapturedStdout();
  EXPECT_EQ(screen, ReadBytes(In("log.txt"))) << "a batch log and log.txt are the same";
  EXPECT_THAT(screen, StartsWith("hello\n" + TableHeader() + "\n       1 "));
  EXPECT_THAT(screen,
              HasSubstr("\n   valid    0.00   0.4000         1.5\nwarning: careful\ndone "));
  EXPECT_THAT(screen, testing::EndsWith("files   log  there\n"));
  EXPECT_EQ(screen.find('\r'), std::string::npos);
  EXPECT_THAT(Records(In("metrics.jsonl")),
              ElementsAre(Pair("step", 1), Pair("step", 10), Pair("step", 20), Pair("step", 25),
                          Pair("valid", 25), Pair("done", 25)));
}

TEST_F(MonitorTest, APipelinesRunShowsItsBubbleAndItsTraffic) {
  Session session = RootSession();
  session.has_stages = true;
  testing::internal::CaptureStdout();
  {
    Monitor monitor(session);
    Record record = StepRecord(1);
    record.seconds_bubble = 0.05;
    monitor.Step(record);
    TrafficRow row;
    row.group = "pipeline";
    row.transfer = "send";
    row.ranks = row.calls = 1;
    monitor.Done(StepRecord(1), {}, {row});
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
    monitor.Step(StepRecord(1));
    Record done = StepRecord(1);
    done.kind = Record::Kind::kDone;
    monitor.Done(done, {});
  }
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("\nstopped 1 step, 0 tokens"));
  EXPECT_THAT(Records(In("metrics.jsonl")), ElementsAre(Pair("step", 1)));
}

TEST_F(MonitorTest, SpeedsAreMeansSinceTheLastLine) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    for (int step = 1; step <= 10; ++step) {
      Record record = StepRecord(step);
      record.tokens_per_second = step == 1 ? 1.0 : 100.0 * step;
      monitor.Step(record);
    }
  }
  testing::internal::GetCapturedStdout();
  std::ifstream file(In("metrics.jsonl"));
  std::string first, second;
  std::getline(file, first);
  std::getline(file, second);
  const auto json = nlohmann::json::parse(second);
  EXPECT_DOUBLE_EQ(json["tokens_per_second"], 600.0);  // mean of 200 ... 1000
  EXPECT_DOUBLE_EQ(json["loss"], 1.0);                 // of step 10 alone
}

TEST_F(MonitorTest, ResumeCutsMetricsAndAppendsToTheLog) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(RootSession());
    for (int step = 1; step <= 23; ++step) monitor.Step(StepRecord(step));
  }
  Session session = RootSession();
  session.resumed = true;
  session.resume_step = 15;
  {
    Monitor monitor(session);
    monitor.Line("again");
    for (int step = 16; step <= 25; ++step) monitor.Step(StepRecord(step));
    monitor.Done(StepRecord(25), {});
  }
  const std::string screen = testing::internal::GetCapturedStdout();
  EXPECT_EQ(screen, ReadBytes(In("log.txt")));
  EXPECT_THAT(screen, HasSubstr("\nagain\n" + TableHeader() + "\n      20 "));
  EXPECT_THAT(screen, HasSubstr("25 steps (10 in this session)"));
  EXPECT_THAT(screen, HasSubstr("loss    train first 10.0000, last 0.4000"));
  auto records = Records(In("metrics.jsonl"));
  ASSERT_FALSE(records.empty());
  records.pop_back();
  EXPECT_THAT(records,
              ElementsAre(Pair("step", 1), Pair("step", 10), Pair("step", 20), Pair("step", 25)));
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
  monitor.Step(StepRecord(1));
  monitor.Evaluation(Valid(1));
  monitor.Warn("careful");
  monitor.Done(StepRecord(1), {});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(MonitorTest, EvaluationWithoutARunFolderHasAShortHeader) {
  Session session;
  session.root = true;
  testing::internal::CaptureStdout();
  Monitor monitor(session);
  monitor.Evaluation(Valid(25));
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            ShortTableHeader() + "\n   valid    0.00   0.4000         1.5\n");
}

TEST_F(MonitorTest, AFullDiskIsSaidOnceAndTheRunGoesOn) {
  std::filesystem::create_symlink("/dev/full", In("metrics.jsonl"));
  testing::internal::CaptureStdout();
  Monitor monitor(RootSession());
  for (int step = 1; step <= 20; ++step) monitor.Step(StepRecord(step));
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
  input::Schema schema;
  Declare(schema);
  EXPECT_EQ(schema.Find("monitor.every_steps")->fallback, "50");
  EXPECT_EQ(schema.Find("monitor.validate_every_steps")->fallback, "500");
  EXPECT_EQ(schema.Find("monitor.sample_tokens")->fallback, "40");
}

}  // namespace
}  // namespace trireme::monitor
