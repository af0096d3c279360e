// When records reach metrics.jsonl, what becomes of those that cannot be written, and how sinks are
// called.
#include "metrics_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <thread>
#include <utility>

#include "folder_test.hpp"
#include "full_disk.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {
namespace {

using test::FolderTest;
using test::FullDisk;
using test::ReadBytes;
using test::WriteBytes;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Record StepRecord(std::int64_t step) {
  Record record;
  record.step = step;
  record.loss = 2;
  record.step_seconds = 0.01;
  return record;
}

Record Valid(std::int64_t step) {
  Record record = StepRecord(step);
  record.kind = Record::Kind::kValid;
  return record;
}

Event Something(std::int64_t step) {
  return {.name = "signal", .step = step, .rank = 0, .host = "a", .text = "x"};
}

// Steps of the step records of a file, in its order.
std::vector<int> StepsIn(const std::string& path) {
  std::ifstream file(path);
  std::vector<int> steps;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["kind"] == "step") steps.push_back(json["step"]);
  }
  return steps;
}

class MetricsSinkTest : public FolderTest {
 protected:
  std::string Path() const { return In("metrics.jsonl"); }
};

TEST_F(MetricsSinkTest, StepsWaitInMemoryForEverythingElse) {
  MetricsSink sink(Path(), true);
  const auto step_then = [&](std::int64_t step, const auto& act) {
    sink.Step(StepRecord(step));
    EXPECT_THAT(ReadBytes(Path()), Not(HasSubstr("\"step\":" + std::to_string(step) + ",")));
    act();
    EXPECT_THAT(ReadBytes(Path()), HasSubstr("\"step\":" + std::to_string(step) + ","));
  };
  step_then(1, [&] { sink.Evaluation(Valid(1)); });
  step_then(2, [&] { sink.Happened(Something(2)); });
  step_then(3, [&] { sink.Sync(); });
  step_then(5, [&] { sink.Flush(); });
  step_then(4, [&] { sink.Done({.done = false}); });
}

TEST_F(MetricsSinkTest, LeavesNothingBehindInMemory) {
  { MetricsSink(Path(), true).Step(StepRecord(1)); }
  EXPECT_THAT(StepsIn(Path()), ElementsAre(1));
}

TEST_F(MetricsSinkTest, WritesAfterTwoSecondsWithoutAnEvent) {
  MetricsSink sink(Path(), true);
  sink.Step(StepRecord(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  sink.Step(StepRecord(2));
  EXPECT_THAT(StepsIn(Path()), ElementsAre(1, 2));
}

TEST_F(MetricsSinkTest, ManyFastStepsTakeLittleMemory) {
  MetricsSink sink(Path(), true);
  for (int step = 1; step <= 1000; ++step) sink.Step(StepRecord(step));
  EXPECT_GT(StepsIn(Path()).size(), 500U);
}

TEST_F(MetricsSinkTest, CutsBothKindsOfRecordsAndGoesOn) {
  MetricsSink sink(Path(), true);
  for (int step = 1; step <= 20; ++step) {
    sink.Step(StepRecord(step));
    if (step % 5 == 0) sink.Interval({.last = StepRecord(step), .steps = 5});
  }
  sink.CutTo(12, 0);
  sink.Step(StepRecord(13));
  sink.Sync();
  EXPECT_THAT(StepsIn(Path()), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13));
  const std::string text = ReadBytes(Path());
  EXPECT_THAT(text, HasSubstr("\"kind\":\"interval\",\"step\":10,"));
  EXPECT_THAT(text, Not(HasSubstr("\"kind\":\"interval\",\"step\":15,")));
}

TEST_F(MetricsSinkTest, RecordsOfAFullDiskComeOnceThereIsRoom) {
  MetricsSink sink(Path(), true);
  sink.Step(StepRecord(1));
  sink.Sync();
  const std::string whole = ReadBytes(Path());
  {
    const FullDisk full(whole.size() + 100);
    sink.Step(StepRecord(2));
    EXPECT_THROW(sink.Happened(Something(2)), Error);
    EXPECT_EQ(ReadBytes(Path()), whole) << "no torn line";
    sink.Step(StepRecord(3));
  }
  sink.Sync();
  EXPECT_THAT(StepsIn(Path()), ElementsAre(1, 2, 3));
  EXPECT_THAT(ReadBytes(Path()), HasSubstr("\"event\":\"signal\""));
  EXPECT_THAT(ReadBytes(Path()), Not(HasSubstr("records lost")));
}

TEST_F(MetricsSinkTest, ALongFullDiskCostsRecordsAndSaysSo) {
  constexpr int kMany = 20'000;  // several times as many bytes as are kept
  MetricsSink sink(Path(), true);
  {
    const FullDisk full(0);
    for (int step = 1; step <= kMany; ++step) {
      sink.Step(StepRecord(step));
      if (step % 100 == 0) {
        EXPECT_THROW(sink.Sync(), Error);
      }
    }
  }
  sink.Happened(Something(kMany));
  const std::vector<int> steps = StepsIn(Path());
  ASSERT_FALSE(steps.empty());
  EXPECT_LT(ReadBytes(Path()).size(), std::size_t{1} << 21);
  EXPECT_EQ(steps.back(), kMany) << "the latest are kept";
  EXPECT_EQ(steps.back() - steps.front() + 1, std::ssize(steps)) << "without a gap";
  EXPECT_THAT(ReadBytes(Path()),
              HasSubstr("\"records\":" + std::to_string(kMany - std::ssize(steps)) + ".0"));
}

// Steps that a rollback made void are in the file until there is room to cut them, and not longer.
TEST_F(MetricsSinkTest, CutsLaterIfTheDiskIsFull) {
  MetricsSink sink(Path(), true);
  for (int step = 1; step <= 20; ++step) sink.Step(StepRecord(step));
  sink.Sync();
  {
    const FullDisk full(1000);
    for (int step = 21; step <= 30; ++step) sink.Step(StepRecord(step));
    EXPECT_THROW(sink.CutTo(12, 0), Error);
    for (int step = 13; step <= 16; ++step) sink.Step(StepRecord(step));
    EXPECT_THROW(sink.CutTo(14, 0), Error);
    sink.Step(StepRecord(15));
  }
  sink.Sync();
  std::vector<int> steps(15);
  std::iota(steps.begin(), steps.end(), 1);
  EXPECT_EQ(StepsIn(Path()), steps);
}

TEST_F(MetricsSinkTest, IsCalledByAnotherThread) {
  MetricsSink sink(Path(), true);
  std::atomic<bool> stop = false;
  std::thread syncs([&] {
    while (!stop) sink.Sync();
  });
  for (int step = 1; step <= 2000; ++step) {
    sink.Step(StepRecord(step));
    if (step == 1000) sink.CutTo(900, 0);
  }
  stop = true;
  syncs.join();
  sink.Sync();
  const std::vector<int> steps = StepsIn(Path());
  EXPECT_EQ(steps.size(), 1900U);
}

// Notes its calls; fails on demand.
class Notes : public Sink {
 public:
  explicit Notes(std::vector<std::string>& calls) : calls_(calls) {}
  void Step(const Record& record) override { Note("step", record.step); }
  void Interval(const report::Interval& interval) override { Note("interval", interval.last.step); }
  void Evaluation(const Record& record) override { Note("evaluation", record.step); }
  void Sample(std::int64_t step, const std::string& text) override { Note(text, step); }
  void Happened(const Event& event) override { Note(event.name, event.step); }
  void GoBack(std::int64_t step) override { Note("back", step); }
  void Sync() override { Note("sync", 0); }
  void Done(const Summary& summary) override {
    Note(summary.done ? "done" : "stopped", summary.last.step);
  }

 private:
  void Note(const std::string& what, std::int64_t step) {
    calls_.push_back(what + " " + std::to_string(step));
    if (what == "evaluation" || what == "sync") throw RunError(what + " failed");
  }
  std::vector<std::string>& calls_;
};

TEST_F(MetricsSinkTest, EverySinkHearsEverything) {
  std::vector<std::string> calls;
  testing::internal::CaptureStdout();
  {
    Monitor monitor({.root = true, .folder = folder_, .every_steps = 2, .total_steps = 3});
    monitor.Attach(std::make_unique<Notes>(calls));
    monitor.Step(StepRecord(1));
    monitor.Step(StepRecord(2));
    monitor.Evaluation(Valid(2));
    monitor.Happened(Something(2));
    monitor.GoBack(1);
    monitor.Step(StepRecord(2));
    monitor.SyncRecords();
    monitor.Sample(2, "once");
    Record done = StepRecord(2);
    done.kind = Record::Kind::kDone;
    monitor.Done(done);
  }
  EXPECT_THAT(
      calls, ElementsAre("step 1", "interval 1", "step 2", "interval 2", "evaluation 2", "signal 2",
                         "back 1", "step 2", "interval 2", "sync 0", "once 2", "stopped 2"));
  const std::string screen = testing::internal::GetCapturedStdout();
  EXPECT_THAT(screen, HasSubstr("warning: evaluation failed; the run goes on without it\n"));
  EXPECT_THAT(screen, Not(HasSubstr("sync failed"))) << "the first failure of a sink alone is said";
  EXPECT_THAT(screen, HasSubstr("\nsample  once\n"));
  EXPECT_THAT(StepsIn(Path()), ElementsAre(1, 2)) << "a sink that fails stops no other";
}

}  // namespace
}  // namespace trireme::report
