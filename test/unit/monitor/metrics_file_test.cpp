// The records of metrics.jsonl and their cutting on resume.
#include "metrics_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "append_file.hpp"
#include "scratch.hpp"
#include "trireme/base/error.hpp"

namespace trireme::monitor {
namespace {

using testing::HasSubstr;

std::string Line(Record::Kind kind, std::int64_t step, double loss) {
  Record record;
  record.kind = kind;
  record.step = step;
  record.loss = loss;
  return ToJsonLine(record);
}

TEST(MetricsLine, HasTheDesignsKeysInOrder) {
  const auto json = nlohmann::ordered_json::parse(ToJsonLine(Record{}));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(
      keys, testing::ElementsAre("kind", "step", "epoch", "tokens", "loss", "perplexity",
                                 "learning_rate", "grad_norm", "step_seconds", "tokens_per_second",
                                 "flops_per_second", "roof_fraction", "memory_bytes",
                                 "seconds_compute", "seconds_exposed_communication",
                                 "seconds_bubble", "seconds_data", "seconds_checkpoint"));
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

using CutMetricsTest = Scratch;

TEST_F(CutMetricsTest, DropsLaterDoneAndTornRecords) {
  const std::string kept = Line(Record::Kind::kStep, 1, 10.0) + Line(Record::Kind::kStep, 50, 7.0) +
                           Line(Record::Kind::kValid, 50, 7.5) +
                           Line(Record::Kind::kValid, 60, 7.25);
  const std::string torn = Line(Record::Kind::kStep, 60, 6.0);
  WriteText(In("metrics.jsonl"), kept + Line(Record::Kind::kDone, 60, 7.0) + "not json\n[1]\n" +
                                     Line(Record::Kind::kStep, 61, 1.0) +
                                     Line(Record::Kind::kValid, 100, 1.0) +
                                     torn.substr(0, torn.size() / 2));
  const History history = CutMetrics(In("metrics.jsonl"), 60);
  EXPECT_EQ(ReadAll(In("metrics.jsonl")), kept);
  EXPECT_EQ(history.first_loss, 10.0);
  EXPECT_EQ(history.best_valid, 7.25);
  EXPECT_EQ(history.best_valid_step, 60);
  EXPECT_FALSE(std::filesystem::exists(In("metrics.jsonl.tmp")));
}

TEST_F(CutMetricsTest, WholeLineWithoutNewlineIsTorn) {
  const std::string line = Line(Record::Kind::kStep, 1, 10.0);
  WriteText(In("metrics.jsonl"), line + line.substr(0, line.size() - 1));
  CutMetrics(In("metrics.jsonl"), 60);
  EXPECT_EQ(ReadAll(In("metrics.jsonl")), line);
}

TEST_F(CutMetricsTest, LeavesAFileAloneThatHasNothingToCut) {
  WriteText(In("metrics.jsonl"), Line(Record::Kind::kStep, 1, 10.0));
  std::filesystem::create_hard_link(In("metrics.jsonl"), In("same"));
  CutMetrics(In("metrics.jsonl"), 1);
  EXPECT_TRUE(std::filesystem::equivalent(In("metrics.jsonl"), In("same")));
  EXPECT_EQ(CutMetrics(In("missing"), 1).first_loss, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(In("missing")));
}

using AppendFileTest = Scratch;

TEST_F(AppendFileTest, AppendsAndTruncates) {
  {
    AppendFile file(In("a"), true);
    EXPECT_EQ(file.Append("one\n"), "");
  }
  {
    AppendFile file(In("a"), false);
    EXPECT_EQ(file.Append("two\n"), "");
  }
  EXPECT_EQ(ReadAll(In("a")), "one\ntwo\n");
  AppendFile(In("a"), true);
  EXPECT_EQ(ReadAll(In("a")), "");
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

}  // namespace
}  // namespace trireme::monitor
