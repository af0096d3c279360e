// metrics.jsonl: what is written, and what is read after a stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <utility>

#include "folders.hpp"
#include "metrics_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/report/append_file.hpp"
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

// The records of metrics.jsonl and their cutting on resume.

std::string Line(Record::Kind kind, std::int64_t step, double loss) {
  Record record;
  record.kind = kind;
  record.step = step;
  record.loss = loss;
  return ToJsonLine(record);
}

std::vector<std::string> KeysOf(const std::string& line) {
  const auto json = nlohmann::ordered_json::parse(line);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST(MetricsLine, HasTheDocumentedKeysInOrder) {
  EXPECT_THAT(KeysOf(ToJsonLine(Record{})),
              ElementsAre("kind", "step", "epoch", "tokens", "loss", "perplexity", "learning_rate",
                          "grad_norm", "step_seconds", "tokens_per_second", "flops_per_second",
                          "roof_fraction", "seconds_compute", "seconds_exposed_communication",
                          "seconds_bubble", "seconds_data", "seconds_checkpoint", "bad_steps"));
  Record valid;
  valid.kind = Record::Kind::kValid;
  EXPECT_THAT(KeysOf(ToJsonLine(valid)),
              ElementsAre("kind", "step", "epoch", "tokens", "loss", "perplexity", "learning_rate",
                          "grad_norm", "step_seconds", "tokens_per_second", "flops_per_second",
                          "roof_fraction", "memory_bytes", "seconds_compute",
                          "seconds_exposed_communication", "seconds_bubble", "seconds_data",
                          "seconds_checkpoint", "slowest_rank", "seconds_slowest", "bad_steps"));
}

TEST(MetricsLine, OfAnIntervalHasRangesMeansAndTheRanksSpread) {
  Interval interval;
  interval.last.step = 100;
  interval.last.more = {{"joules", 12.5}};
  interval.steps = 50;
  interval.loss = {.min = 1, .max = 3, .mean = 1.5};
  interval.grad_norm = {.min = NAN, .max = NAN, .mean = NAN};
  const std::string line = ToJsonLine(interval);
  EXPECT_THAT(
      KeysOf(line),
      ElementsAre("kind", "step", "steps", "epoch", "tokens", "loss_min", "loss_max", "loss_mean",
                  "grad_norm_min", "grad_norm_max", "grad_norm_mean", "step_seconds_min",
                  "step_seconds_max", "step_seconds_mean", "tokens_per_second_min",
                  "tokens_per_second_max", "tokens_per_second_mean", "flops_per_second",
                  "roof_fraction", "memory_bytes", "seconds_compute",
                  "seconds_exposed_communication", "seconds_bubble", "seconds_data",
                  "seconds_checkpoint", "slowest_rank", "seconds_slowest", "bad_steps",
                  "memory_rank", "memory_host", "slowest_host", "joules"));
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["kind"], "interval");
  EXPECT_EQ(json["steps"], 50);
  EXPECT_EQ(json["loss_mean"], 1.5);
  EXPECT_TRUE(json["grad_norm_mean"].is_null());
  EXPECT_TRUE(json["slowest_rank"].is_null());
  EXPECT_EQ(json["joules"], 12.5);
}

TEST(MetricsLine, NamesTheFilesOfAMixture) {
  Interval interval;
  interval.last.sources = {{"b.h5", 700}, {"a.h5", 300}, {"\xFF", 1}};
  const auto json = nlohmann::ordered_json::parse(ToJsonLine(interval));
  EXPECT_EQ(json["sources"].dump(), "{\"b.h5\":700,\"a.h5\":300,\"\uFFFD\":1}");
}

// Measured values keep a float's digits; those that training decides keep a double's.
TEST(MetricsLine, OfAStepIsShort) {
  Record record;
  record.step = 999'999;
  record.tokens = 123'456'789'012;
  record.epoch = 100.0 / 3;
  record.loss = record.grad_norm = record.learning_rate = 1.0 / 3;
  record.step_seconds = record.seconds_compute = record.seconds_data = 0.1 / 3;
  record.tokens_per_second = 1e5 / 3;
  record.flops_per_second = 1e14 / 3;
  const std::string line = ToJsonLine(record);
  EXPECT_LT(line.size(), 500U) << line;
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["grad_norm"].get<double>(), record.grad_norm);
  EXPECT_EQ(json["learning_rate"].get<double>(), record.learning_rate);
  EXPECT_EQ(json["epoch"].get<double>(), record.epoch);
  EXPECT_EQ(json["tokens"].get<std::int64_t>(), record.tokens);
  EXPECT_EQ(static_cast<float>(json["step_seconds"].get<double>()),
            static_cast<float>(record.step_seconds));
  EXPECT_EQ(static_cast<float>(json["flops_per_second"].get<double>()),
            static_cast<float>(record.flops_per_second));
}

TEST(MetricsLine, KeepsEveryBitOfALoss) {
  Record record;
  record.kind = Record::Kind::kTest;
  record.step = 1LL << 40;
  record.tokens = (1LL << 53) + 1;
  record.loss = 6.8102345678901234;
  const std::string line = ToJsonLine(record);
  EXPECT_EQ(line.back(), '\n');
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["kind"], "test");
  EXPECT_EQ(json["step"], 1LL << 40);
  EXPECT_EQ(json["tokens"], (1LL << 53) + 1);
  EXPECT_EQ(json["loss"].get<double>(), record.loss);
  EXPECT_EQ(json["perplexity"].get<double>(), std::exp(record.loss));
}

TEST(MetricsLine, IsJsonForDivergedRuns) {
  Record record;
  record.loss = 1e5;
  EXPECT_TRUE(std::isfinite(nlohmann::json::parse(ToJsonLine(record))["perplexity"].get<double>()));
  record.loss = std::nan("");
  EXPECT_TRUE(nlohmann::json::parse(ToJsonLine(record))["loss"].is_null());
}

using CutMetricsTest = FolderTest;

TEST_F(CutMetricsTest, DropsLaterDoneAndTornRecords) {
  const std::string kept = Line(Record::Kind::kStep, 1, 10.0) + Line(Record::Kind::kStep, 50, 7.0) +
                           Line(Record::Kind::kValid, 50, 7.5) +
                           Line(Record::Kind::kValid, 60, 7.25);
  const std::string torn = Line(Record::Kind::kStep, 60, 6.0);
  WriteBytes(In("metrics.jsonl"), kept + Line(Record::Kind::kDone, 60, 7.0) + "not json\n[1]\n" +
                                      Line(Record::Kind::kStep, 61, 1.0) +
                                      Line(Record::Kind::kValid, 100, 1.0) +
                                      torn.substr(0, torn.size() / 2));
  const History history = CutMetrics(In("metrics.jsonl"), 60);
  EXPECT_EQ(ReadBytes(In("metrics.jsonl")), kept);
  EXPECT_EQ(history.first_loss, 10.0);
  EXPECT_EQ(history.best_valid, 7.25);
  EXPECT_EQ(history.best_valid_step, 60);
  EXPECT_FALSE(std::filesystem::exists(In("metrics.jsonl.tmp")));
  // Of another validation set from step 50 on.
  EXPECT_EQ(CutMetrics(In("metrics.jsonl"), 60, 50).best_valid, 7.25);
  EXPECT_EQ(CutMetrics(In("metrics.jsonl"), 60, 60).best_valid, std::nullopt);
}

TEST_F(CutMetricsTest, KnowsTheStepsWithoutRecords) {
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const auto steps = [&](std::initializer_list<std::int64_t> of, const std::string& before = {}) {
    std::string text = before;
    for (const std::int64_t step : of) text += Line(Record::Kind::kStep, step, 1.0);
    WriteBytes(In("metrics.jsonl"), text);
    return CutMetrics(In("metrics.jsonl"), 6).missing;
  };
  EXPECT_EQ(steps({1, 2, 3, 4, 5, 6, 7}), Ranges());
  EXPECT_EQ(steps({3, 4, 6}), (Ranges{{1, 2}, {5, 5}}));
  EXPECT_EQ(steps({1, 2}), (Ranges{{3, 6}}));
  EXPECT_EQ(steps({}), (Ranges{{1, 6}}));
  EXPECT_EQ(CutMetrics(In("missing"), 6).missing, (Ranges{{1, 6}}));
  // A branch begins later.
  const std::string branch = ToJsonLine(Event{.name = kBranchedOff, .step = 4, .text = "run"});
  EXPECT_EQ(steps({5, 6}, branch), Ranges());
  EXPECT_EQ(steps({6}, branch), (Ranges{{5, 5}}));
}

TEST_F(CutMetricsTest, WholeLineWithoutNewlineIsTorn) {
  const std::string line = Line(Record::Kind::kStep, 1, 10.0);
  WriteBytes(In("metrics.jsonl"), line + line.substr(0, line.size() - 1));
  CutMetrics(In("metrics.jsonl"), 60);
  EXPECT_EQ(ReadBytes(In("metrics.jsonl")), line);
}

TEST_F(CutMetricsTest, LeavesAFileAloneThatHasNothingToCut) {
  WriteBytes(In("metrics.jsonl"), Line(Record::Kind::kStep, 1, 10.0));
  std::filesystem::create_hard_link(In("metrics.jsonl"), In("same"));
  CutMetrics(In("metrics.jsonl"), 1);
  EXPECT_TRUE(std::filesystem::equivalent(In("metrics.jsonl"), In("same")));
  EXPECT_EQ(CutMetrics(In("missing"), 1).first_loss, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(In("missing")));
}

// Lines of no record: of any length, depth and type, cut without taking memory or time.
TEST_F(CutMetricsTest, HostileLinesAreCut) {
  const std::string good = Line(Record::Kind::kStep, 1, 10.0);
  const std::string later = Line(Record::Kind::kValid, 2, 7.0);
  std::string longest = R"({"kind":"step","step":2,"text":")";
  longest += std::string(kMaxLineBytes - longest.size() - 2, 'x') + "\"}\n";
  std::string too_long = longest;
  too_long.insert(too_long.size() - 3, "x");
  const std::string unused = std::string(100'000, '[') + std::string(100'000, ']') + "\n" +
                             std::string(1'000, '[') + "\n" +
                             R"({"kind":"step","step":"2","loss":1.0})"
                             "\n"
                             R"({"kind":"step","step":2.0,"loss":1.0})"
                             "\n"
                             R"({"kind":"step","step":18446744073709551615,"loss":1.0})"
                             "\n"
                             R"({"kind":7,"step":2,"loss":1.0})"
                             "\n"
                             R"({"kind":"step","step":2,"step":2})"
                             "\n\n" +
                             too_long;
  // Kept, but not part of the history: a diverged step, and a loss of another type.
  const std::string kept = R"({"kind":"valid","step":2,"loss":null})"
                           "\n"
                           R"({"kind":"valid","step":2,"loss":"low"})"
                           "\n"
                           R"({"kind":"event","event":"restart","step":2,"text":"x"})"
                           "\n";
  WriteBytes(In("metrics.jsonl"),
             good + unused + kept + longest + std::string("a\0b\n", 4) + later + too_long);
  const History history = CutMetrics(In("metrics.jsonl"), 60);
  EXPECT_EQ(ReadBytes(In("metrics.jsonl")), good + kept + longest + later);
  EXPECT_EQ(history.first_loss, 10.0);
  EXPECT_EQ(history.best_valid, 7.0);
}

TEST_F(CutMetricsTest, OneLineOfGigabytesTakesNoMemory) {
  WriteBytes(In("metrics.jsonl"), Line(Record::Kind::kStep, 1, 10.0));
  std::filesystem::resize_file(In("metrics.jsonl"), std::uint64_t{1} << 30);  // zeros, on no disk
  struct rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  CutMetrics(In("metrics.jsonl"), 60);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10);  // KiB
  EXPECT_EQ(ReadBytes(In("metrics.jsonl")), Line(Record::Kind::kStep, 1, 10.0));
}

TEST_F(CutMetricsTest, PlantedTemporaryIsNotFollowed) {
  WriteBytes(In("victim"), "precious");
  WriteBytes(In("metrics.jsonl"), "torn");
  std::filesystem::create_symlink(In("victim"), In("metrics.jsonl.tmp"));
  CutMetrics(In("metrics.jsonl"), 60);
  EXPECT_EQ(ReadBytes(In("victim")), "precious");
  EXPECT_EQ(ReadBytes(In("metrics.jsonl")), "");
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(In("metrics.jsonl.tmp"))));
}

// A user may keep a long file on another disk: cutting leaves the link as it is.
TEST_F(CutMetricsTest, LinkToAFileStaysALink) {
  const std::string line = Line(Record::Kind::kStep, 1, 10.0);
  WriteBytes(In("elsewhere"), line + "torn");
  std::filesystem::create_symlink(In("elsewhere"), In("metrics.jsonl"));
  CutMetrics(In("metrics.jsonl"), 60);
  EXPECT_TRUE(std::filesystem::is_symlink(In("metrics.jsonl")));
  EXPECT_EQ(ReadBytes(In("elsewhere")), line);
}

// Nothing is parsed that need not be.
TEST_F(CutMetricsTest, AMillionRecordsTakeSeconds) {
  constexpr int kMany = 1'000'000;
  {
    std::ofstream file(In("metrics.jsonl"));
    file << ToJsonLine(Event{.name = "checkpoint", .step = 1, .rank = 0, .host = "", .text = ""});
    std::string block;
    Record record;
    record.loss = 1.0 / 3;
    for (record.step = 1; record.step <= kMany; ++record.step) {
      AppendStepLine(record, block);
      if (record.step % 1000 != 0) continue;
      file << block;
      block.clear();
    }
  }
  auto seconds = [start = std::chrono::steady_clock::now()]() mutable {
    const auto before = std::exchange(start, std::chrono::steady_clock::now());
    return std::chrono::duration<double>(start - before).count();
  };
  seconds();
  EXPECT_FALSE(HasEnded(folder_));
  EXPECT_LT(seconds(), 2);
  EXPECT_EQ(LastCheckpoint(folder_), 1);
  EXPECT_LT(seconds(), 2);
  const History history = CutMetrics(In("metrics.jsonl"), kMany - 1);
  EXPECT_LT(seconds(), 10);
  EXPECT_EQ(history.first_loss, 1.0 / 3);
  std::ofstream(In("metrics.jsonl"), std::ios::app) << Line(Record::Kind::kDone, kMany, 1);
  seconds();
  EXPECT_TRUE(HasEnded(folder_));
  EXPECT_LT(seconds(), 1) << "the end comes first";
}

TEST_F(CutMetricsTest, KnowsAStepsLineFromOneThatIsSpoiled) {
  Record record;
  record.step = 7;
  std::string line = ToJsonLine(record);
  line.pop_back();
  ASSERT_TRUE(ReadStepLine(line).has_value());
  EXPECT_EQ(ReadStepLine(line)->step, 7);
  EXPECT_EQ(ReadStepLine(line)->loss, 0.0);
  record.loss = NAN;
  std::string without = ToJsonLine(record);
  without.pop_back();
  ASSERT_TRUE(ReadStepLine(without).has_value());
  EXPECT_EQ(ReadStepLine(without)->loss, std::nullopt);
  for (std::size_t at = 0; at < line.size(); ++at) {
    EXPECT_FALSE(ReadStepLine(line.substr(0, at)).has_value()) << at;
    if (line[at] >= '0' && line[at] <= '9') continue;
    std::string spoiled = line;
    spoiled[at] = '\0';
    EXPECT_FALSE(ReadStepLine(spoiled).has_value()) << at;
  }
  EXPECT_FALSE(ReadStepLine(line + line).has_value());
  EXPECT_FALSE(ReadStepLine(line + " ").has_value());
}

// Every block's end falls within a line somewhere.
TEST_F(CutMetricsTest, FindsTheEndWhereverBlocksBegin) {
  const std::string done = Line(Record::Kind::kDone, 60, 7.0);
  for (const int shift : {0, 1, 100, static_cast<int>(done.size()) - 1}) {
    std::string text = done;
    const std::size_t size = (std::size_t{1} << 20) + done.size() - static_cast<std::size_t>(shift);
    while (text.size() < size) text += Line(Record::Kind::kStep, 1, 1);
    text.resize(size - 1, 'x');
    WriteBytes(In("metrics.jsonl"), text + "\n");
    EXPECT_TRUE(HasEnded(folder_)) << shift;
  }
}

using AppendFileTest = FolderTest;

TEST_F(AppendFileTest, FollowsALinkToAFileOnly) {
  const auto message = [&](const std::string& name) {
    try {
      AppendFile(In(name), false).Append("text");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  WriteBytes(In("elsewhere"), "kept ");
  std::filesystem::create_symlink(In("elsewhere"), In("link"));
  std::filesystem::create_symlink(In("nowhere"), In("dangling"));
  ASSERT_EQ(mkfifo(In("pipe").c_str(), 0600), 0);
  EXPECT_EQ(message("link"), "");
  EXPECT_EQ(ReadBytes(In("elsewhere")), "kept text");
  EXPECT_THAT(message("dangling"), HasSubstr("it is a link that leads nowhere"));
  EXPECT_FALSE(std::filesystem::exists(In("nowhere")));
  EXPECT_THAT(message("pipe"), HasSubstr("pipe: cannot be written: No such device"));
}

TEST_F(AppendFileTest, AppendsAndTruncates) {
  {
    AppendFile file(In("a"), true);
    EXPECT_EQ(file.Append("one\n"), "");
  }
  {
    AppendFile file(In("a"), false);
    EXPECT_EQ(file.Append("two\n"), "");
  }
  EXPECT_EQ(ReadBytes(In("a")), "one\ntwo\n");
  AppendFile(In("a"), true);
  EXPECT_EQ(ReadBytes(In("a")), "");
}

TEST_F(AppendFileTest, NamesThePathItCannotOpen) {
  try {
    AppendFile file(In("missing/a"), true);
    FAIL() << "opened a file in a folder that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr(In("missing/a") + ": cannot be written: No such file"));
  }
}

TEST(AppendFile, SaysThatADiskIsFull) {
  AppendFile file("/dev/full", false);
  EXPECT_EQ(file.Append("text"), "No space left on device");
}

using HasEndedTest = FolderTest;

TEST_F(HasEndedTest, TakesAWholeRecordOfTheEnd) {
  EXPECT_FALSE(HasEnded(folder_)) << "no file";
  const std::string done = Line(Record::Kind::kDone, 60, 7.0);
  std::string too_long = done;
  too_long.insert(too_long.size() - 2, R"(,"text":")" + std::string(kMaxLineBytes, 'x') + "\"");
  const std::string records = Line(Record::Kind::kStep, 60, 7.0) +
                              R"({"kind":"event","event":"done","step":60})" + "\n[\"done\"]\n" +
                              R"({"kind":"done","step":)" + "\n" + too_long;
  for (const std::size_t torn : {done.size() / 2, done.size() - 1}) {
    WriteBytes(In("metrics.jsonl"), records + done.substr(0, torn));
    EXPECT_FALSE(HasEnded(folder_)) << "no whole record of an end";
  }
  WriteBytes(In("metrics.jsonl"), records + done);
  EXPECT_TRUE(HasEnded(folder_));
  WriteBytes(In("metrics.jsonl"), done + records);
  EXPECT_TRUE(HasEnded(folder_)) << "before later records";
}

using LastCheckpointTest = FolderTest;

TEST_F(LastCheckpointTest, IsOfTheLastWholeEventOfOne) {
  EXPECT_EQ(LastCheckpoint(folder_), std::nullopt) << "no file";
  const auto event = [](const std::string& name, std::int64_t step) {
    return ToJsonLine(
        Event{.name = name, .step = step, .rank = 0, .host = "a", .text = "checkpoint"});
  };
  const std::string others = event("checkpoint failed", 5) + event("restart", 6) +
                             R"({"kind":"checkpoint","step":7})" + "\n[\"checkpoint\"]\n" +
                             R"({"kind":"event","event":"checkpoint","step":"8"})" + "\n";
  const std::string torn = event("checkpoint", 9);
  WriteBytes(In("metrics.jsonl"), others + torn.substr(0, torn.size() - 1));
  EXPECT_EQ(LastCheckpoint(folder_), std::nullopt);
  WriteBytes(In("metrics.jsonl"),
             event("checkpoint", 3) + others + event("checkpoint", 4) + others);
  EXPECT_EQ(LastCheckpoint(folder_), 4);
}

// When records reach metrics.jsonl, what becomes of those that cannot be written, and how sinks are
// called.

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
