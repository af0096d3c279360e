// What a run prints: banner, lines, screen, their formats and options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "folders.hpp"
#include "table.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {
namespace {

using test::FolderTest;
using test::ReadBytes;
using test::WriteBytes;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::StartsWith;

// The monitor as the driver uses it: which steps are printed and recorded, and where lines go.

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

// Batches that grow: 200 of 1,000 targets took ten seconds, so the rest takes forty.
TEST_F(MonitorTest, TheTimeLeftGoesByTheTargetsOfBatchesThatGrow) {
  Record record = MonitorStepRecord(1);
  record.step_seconds = 10;
  record.tokens = 200;
  record.tokens_per_second = 20;
  for (const auto& [tokens, left] : {std::pair(1000, "0:40"), std::pair(0, "4:00")}) {
    Session session = RootSession();
    session.folder.clear();
    session.total_tokens = tokens;
    testing::internal::CaptureStdout();
    Monitor(session).Step(record);
    EXPECT_THAT(testing::internal::GetCapturedStdout(),
                testing::EndsWith(std::string(left) + "\n"));
  }
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

// The banner, to the letter.

constexpr std::int64_t kMebi = 1 << 20;

BannerFacts Example() {
  BannerFacts facts;
  facts.version = "0.1.0";
  facts.commit = "3f2a9c1";
  facts.ranks = 2;
  facts.device = "cpu (AVX-512)";
  facts.precision = "fp32";
  facts.grid = "pipeline 1 x data 2 x context 1 x tensor 1";
  facts.model = "jsc: 2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters";
  facts.data =
      "wikitext2.h5: 2,088,628 / 217,646 / 245,569 tokens; 65,270 windows of 32, 128 steps per "
      "epoch";
  facts.memory = {{"parameters", 37 * kMebi},
                  {"gradients", 37 * kMebi},
                  {"moments", 74 * kMebi},
                  {"activations", 96 * kMebi},
                  {"vocabulary tile", 65 * kMebi}};
  facts.roof_flops = 98e9;
  return facts;
}

TEST(Banner, IsTheDesignsExample) {
  EXPECT_EQ(
      BannerText(Example()),
      "Trireme 0.1.0 (3f2a9c1)   2 ranks on 1 host, 1 thread each   device cpu (AVX-512)   "
      "precision fp32\n"
      "grid    pipeline 1 x data 2 x context 1 x tensor 1\n"
      "model   jsc: 2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters\n"
      "data    wikitext2.h5: 2,088,628 / 217,646 / 245,569 tokens; 65,270 windows of 32, 128 "
      "steps per epoch\n"
      "memory  per rank: parameters 37 + gradients 37 + moments 74 + activations 96 + vocabulary "
      "tile 65 = 309 MiB\n"
      "roof    98 GFLOP/s per rank (measured)");
}

TEST(Banner, OneRankAndNoFacts) {
  BannerFacts facts = Example();
  facts.ranks = 1;
  facts.hosts = 3;
  facts.threads = 16;
  facts.grid.clear();
  facts.memory.clear();
  facts.roof_flops = 0;
  const std::string text = BannerText(facts);
  EXPECT_EQ(text.substr(0, text.find("   device")),
            "Trireme 0.1.0 (3f2a9c1)   1 rank on 3 hosts, 16 threads");
  facts.ranks = 4;
  facts.pinned = true;
  const std::string pinned = BannerText(facts);
  EXPECT_EQ(pinned.substr(0, pinned.find("   device")),
            "Trireme 0.1.0 (3f2a9c1)   4 ranks on 3 hosts, 16 threads each, pinned");
  EXPECT_EQ(text.find("grid"), std::string::npos);
  EXPECT_EQ(text.find("memory"), std::string::npos);
  EXPECT_EQ(text.find("roof"), std::string::npos);
}

TEST(Banner, MemoryTermsAddUpToTheirSum) {
  BannerFacts facts = Example();
  facts.memory = {{"a", 20 * kMebi + kMebi / 2 - 1}, {"b", 20 * kMebi + kMebi / 2 - 1}};
  EXPECT_NE(BannerText(facts).find("a 20 + b 21 = 41 MiB"), std::string::npos) << BannerText(facts);
  facts.memory = {{"a", kMebi / 2}, {"b", 2 * kMebi}};
  EXPECT_NE(BannerText(facts).find("a 0.5 + b 2.0 = 2.5 MiB"), std::string::npos);
  facts.memory = {{"a", 512 * 1024 * kMebi}, {"b", 1536 * kMebi}};
  EXPECT_NE(BannerText(facts).find("a 512.0 + b 1.5 = 513.5 GiB"), std::string::npos);
}

TEST(Banner, TheLargestRanksMemoryIsCalledSo) {
  BannerFacts facts = Example();
  facts.memory = {{"parameters", 37 * kMebi}};
  facts.memory_differs = true;
  EXPECT_NE(BannerText(facts).find("\nmemory  largest rank: parameters 37 = 37 MiB\n"),
            std::string::npos)
      << BannerText(facts);
}

TEST(Banner, TheMapStandsInColumnsBehindTheGrid) {
  BannerFacts facts = Example();
  facts.ranks_map = {"rank 0   a", "rank 1   a", "rank 2   bcd", "rank 3   b"};
  const auto map = [&facts] {
    const std::string text = BannerText(facts);
    const std::size_t begin = text.find("\nmap     ");
    return text.substr(begin, text.find("\nmodel ") - begin);
  };
  EXPECT_EQ(map(), "\nmap     rank 0   a      rank 1   a      rank 2   bcd    rank 3   b");
  // Two of 44 characters and the gap between them fill a line of 100; a third goes below the first.
  const std::string wide(44, 'x');
  facts.ranks_map = {wide, wide, wide};
  EXPECT_EQ(map(), "\nmap     " + wide + "    " + wide + "\n        " + wide);
  facts.ranks_map = {"0", "1", "2", wide};
  EXPECT_EQ(map(),
            "\nmap     0" + std::string(47, ' ') + "2\n        1" + std::string(47, ' ') + wide);
  facts.ranks_map = {wide + "x", wide};
  EXPECT_EQ(map(), "\nmap     " + wide + "x\n        " + wide);
}

TEST(Banner, RoofScales) {
  BannerFacts facts = Example();
  facts.roof_flops = 3.14e9;
  EXPECT_NE(BannerText(facts).find("roof    3.1 GFLOP/s"), std::string::npos);
  facts.roof_flops = 312e12;
  EXPECT_NE(BannerText(facts).find("roof    312 TFLOP/s"), std::string::npos);
}

// The live line of a terminal and its absence from a batch log.

TEST(Screen, BatchLogHasNoLiveLine) {
  Screen screen(false);
  EXPECT_FALSE(screen.WantsLive());
  testing::internal::CaptureStdout();
  screen.Line("one");
  screen.Line("two\nthree");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "one\ntwo\nthree\n");
}

TEST(Screen, LiveLineIsClearedBeforeARealOne) {
  testing::internal::CaptureStdout();
  {
    Screen screen(true);
    EXPECT_TRUE(screen.WantsLive());
    EXPECT_FALSE(screen.WantsLive()) << "two live lines within 0.2 s";
    screen.Live("live");
    screen.Line("real");
    screen.Live(std::string(500, 'x'));
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "\r\x1b[Klive\r\x1b[Kreal\n\r\x1b[K" + std::string(79, 'x') + "\r\x1b[K");
}

TEST(Screen, OutlivesItsReader) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  std::fflush(stdout);
  const int kept = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  close(ends[0]);
  {
    Screen screen(false);
    screen.Line("nobody reads this");  // SIGPIPE would end the test
    screen.Line("nor this");
  }
  dup2(kept, STDOUT_FILENO);
  close(kept);
  SUCCEED();
}

// monitor.trace_steps: its forms, and what is refused.

StepWindow Window(const std::string& text) {
  deck::Schema schema;
  Declare(schema);
  const deck::Deck deck =
      deck::Deck::Parse(schema, "[monitor]\ntrace_steps = " + text + "\n", "test.in", {});
  return Read(deck).trace_steps;
}

TEST(TraceSteps, AreAWindowOrOneStepOrNone) {
  EXPECT_EQ(Window("10-12").first, 10);
  EXPECT_EQ(Window("10-12").last, 12);
  EXPECT_EQ(Window("7").first, 7);
  EXPECT_EQ(Window("7").last, 7);
  EXPECT_TRUE(Window("none").None());
  EXPECT_FALSE(Window("1-1").None());
}

TEST(TraceSteps, RefuseWhatNamesNoSteps) {
  for (const char* text : {"0", "0-3", "5-4", "a-b", "3-", "-3", "3-4-5", "1.5", "all", "3 - 4"}) {
    EXPECT_THROW(Window(text), Error) << text;
  }
}

// Numbers as they look on the screen.

TEST(Format, Thousands) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(2088628), "2,088,628");
  EXPECT_EQ(WithThousands(-999), "-999");
  EXPECT_EQ(WithThousands(-123456), "-123,456");
  EXPECT_EQ(WithThousands(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Format, Suffix) {
  EXPECT_EQ(WithSuffix(0), "0");
  EXPECT_EQ(WithSuffix(512), "512");
  EXPECT_EQ(WithSuffix(0.5), "0.50");
  EXPECT_EQ(WithSuffix(9710000), "9.71 M");
  EXPECT_EQ(WithSuffix(124.4e6), "124 M");
  EXPECT_EQ(WithSuffix(99.96e6), "100 M");
  EXPECT_EQ(WithSuffix(999499), "999 k");
  EXPECT_EQ(WithSuffix(999501), "1.00 M");
  EXPECT_EQ(WithSuffix(1.558e9), "1.56 G");
  EXPECT_EQ(WithSuffix(-2000), "-2.00 k");
  EXPECT_EQ(WithUnit(350, "W"), "350 W");
  EXPECT_EQ(WithUnit(5000, "J"), "5.00 kJ");
}

TEST(Format, Clock) {
  EXPECT_EQ(AsClock(0), "0:00");
  EXPECT_EQ(AsClock(4.6), "0:05");
  EXPECT_EQ(AsClock(155), "2:35");
  EXPECT_EQ(AsClock(3599.6), "1:00:00");
  EXPECT_EQ(AsClock(3723), "1:02:03");
  EXPECT_EQ(AsClock(99 * 3600.0 + 3599), "99:59:59");
  EXPECT_EQ(AsClock(100 * 3600.0 + 120), "4d 04:02");
  EXPECT_EQ(AsClock(115 * 86400.0 + 17 * 3600), "115d 17h");
  EXPECT_EQ(AsClock(-1), "-");
  EXPECT_EQ(AsClock(NAN), "-");
  EXPECT_EQ(AsClock(INFINITY), "-");
  EXPECT_EQ(AsClock(1e15), "-");
}

TEST(Format, Bytes) {
  EXPECT_EQ(AsBytes(0), "0 B");
  EXPECT_EQ(AsBytes(1023), "1023 B");
  EXPECT_EQ(AsBytes(1024), "1.0 KiB");
  EXPECT_EQ(AsBytes(309LL << 20), "309 MiB");
  EXPECT_EQ(AsBytes((1LL << 30) - 1), "1.0 GiB");
  EXPECT_EQ(AsBytes(3LL << 39), "1.5 TiB");
}

TEST(Format, PeakResidentBytesFollowsAnAllocation) {
  const std::int64_t before = PeakResidentBytes();
  EXPECT_GT(before, 1 << 20);
  constexpr std::size_t kBytes = 64 << 20;
  const std::vector<char> block(kBytes, 1);
  ASSERT_EQ(block[kBytes / 2], 1);
  EXPECT_GE(PeakResidentBytes(), before + static_cast<std::int64_t>(kBytes / 2));
}

}  // namespace
}  // namespace trireme::report
