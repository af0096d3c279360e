// The table of steps, and the page of a run.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "table.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

// The columns of the screen: the design's example to the letter, and no number that breaks them.

Record ExampleRecord() {
  Record record;
  record.step = 50;
  record.epoch = 0.39;
  record.loss = 6.8102;
  record.learning_rate = 1e-3;
  record.grad_norm = 0.84;
  record.step_seconds = 1;
  record.tokens_per_second = 5310;
  record.roof_fraction = 0.82;
  record.seconds_exposed_communication = 0.004;
  return record;
}

TEST(Table, IsTheDesignsExample) {
  EXPECT_EQ(TableHeader(),
            "    step   epoch     loss  perplexity    rate   |grad|  tokens/s  roof   comm  elapsed"
            "     left");
  EXPECT_EQ(StepLine(ExampleRecord(), 155, 242),
            "      50    0.39   6.8102       907.1  1.0e-03    0.84     5,310   82%   0.4%     2:35"
            "     4:02");
  Record valid;
  valid.kind = Record::Kind::kValid;
  valid.epoch = 1;
  valid.loss = 6.1204;
  EXPECT_EQ(EvaluationLine(valid), "   valid    1.00   6.1204       455.0");
  valid.kind = Record::Kind::kValidOther;
  valid.set = "code";
  EXPECT_EQ(EvaluationLine(valid), "   valid    1.00   6.1204       455.0  code");
  valid.windows = 512;
  valid.all_windows = 6801;
  EXPECT_EQ(EvaluationLine(valid),
            "   valid    1.00   6.1204       455.0  code  512 of 6,801 windows");
  valid.pairs = true;
  EXPECT_EQ(EvaluationLine(valid),
            "   valid    1.00   6.1204       455.0  code  512 of 6,801 pairs");
  valid.windows = 0;
  valid.set.clear();
  valid.kind = Record::Kind::kTest;
  EXPECT_EQ(EvaluationLine(valid), "    test    1.00   6.1204       455.0");
  valid.averaged = true;
  EXPECT_EQ(EvaluationLine(valid), "    test    1.00   6.1204       455.0  averaged");
  EXPECT_EQ(TableHeader().substr(0, ShortTableHeader().size()), ShortTableHeader());
}

// Columns end where the header's do (the rate's, one further) and stay apart by a blank.
TEST(Table, LongNumbersKeepTheirColumns) {
  const std::size_t width = TableHeader().size();
  Record record = ExampleRecord();
  record.step = 9999999;
  record.epoch = 12345.67;
  record.learning_rate = 1.23e-10;
  record.seconds_exposed_communication = 1;
  record.roof_fraction = 1.04;
  record.no_target = true;
  record.loss = std::nan("");
  EXPECT_EQ(StepLine(record, 1, 1).size(), width);
  EXPECT_NE(StepLine(record, 1, 1).find("-   no target"), std::string::npos);
  EXPECT_EQ(LiveLine(record, 0, 1).find("nan"), std::string::npos);
  record.no_target = false;
  for (const double loss : {1e-9, 10.4123, 123.4567, 2.5e6, 1e300, HUGE_VAL, std::nan("")}) {
    for (const double large : {1.0, 9999.994, 123456.0, 9999999.4, 9999999.9, 999999999.0, 1e300}) {
      record.loss = loss;
      record.grad_norm = large;
      record.tokens_per_second = std::min(large, 1e13);
      const std::string line = StepLine(record, std::min(large * 100, 1e9), large);
      EXPECT_EQ(line.size(), width) << line;
      for (const std::size_t column : {0, 8, 16, 25, 37, 46, 54, 64, 70, 77, 86}) {
        EXPECT_EQ(line[column], ' ') << line << "\ncolumn " << column;
      }
    }
  }
}

TEST(Table, PerplexityShortensInsteadOfOverflowing) {
  Record record = ExampleRecord();
  record.loss = std::log(33278.0);
  EXPECT_NE(StepLine(record, 0, 0).find("    33,278.0"), std::string::npos);
  record.loss = 69.0776;
  EXPECT_NE(StepLine(record, 0, 0).find("  69.0776     1.0e+30"), std::string::npos)
      << StepLine(record, 0, 0);
  record.loss = 1e4;
  EXPECT_NE(StepLine(record, 0, 0).find("  1.0e+04    8.2e+307  "), std::string::npos)
      << StepLine(record, 0, 0);
}

TEST(Table, UnknownFiguresAreDashes) {
  Record record = ExampleRecord();
  record.roof_fraction = 0;
  EXPECT_EQ(StepLine(record, 155, -1).substr(54), "     5,310     -   0.4%     2:35        -");
}

TEST(Table, StagesHaveTheirBubbleBesideTheCommunication) {
  Record record = ExampleRecord();
  record.seconds_bubble = 0.1234;
  const std::string header = TableHeader(true), line = StepLine(record, 155, 242, true);
  EXPECT_EQ(header.substr(64), "  roof   comm bubble  elapsed     left");
  EXPECT_EQ(line.substr(64), "   82%   0.4%  12.3%     2:35     4:02");
  EXPECT_EQ(header.substr(0, 77), TableHeader().substr(0, 77));
  EXPECT_EQ(line.substr(0, 77), StepLine(record, 155, 242).substr(0, 77));
}

TEST(Tally, MeansWeighTimesAndSpeeds) {
  Record record = ExampleRecord();
  Tally tally;
  record.step_seconds = 1;
  record.tokens_per_second = 100;
  record.roof_fraction = 0.5;
  record.seconds_compute = 1;
  tally.Add(record);
  record.step_seconds = 3;
  record.tokens_per_second = 20;
  record.roof_fraction = 0.1;
  record.seconds_compute = 2;
  record.memory_bytes = 7;
  tally.Add(record);
  const Record mean = tally.Mean(record);
  EXPECT_DOUBLE_EQ(mean.step_seconds, 2);
  EXPECT_DOUBLE_EQ(mean.tokens_per_second, 40);
  EXPECT_DOUBLE_EQ(mean.roof_fraction, 0.2);
  EXPECT_DOUBLE_EQ(mean.seconds_compute, 1.5);
  EXPECT_EQ(mean.memory_bytes, 7);
  EXPECT_DOUBLE_EQ(mean.loss, record.loss);
}

TEST(Summary, ReadsAsLines) {
  Record record = ExampleRecord();
  record.step = 1019;
  record.tokens = 2088627;
  Tally session;
  session.steps = 1019;
  session.seconds = 800;
  session.tokens = 2088627;
  session.compute = 780;
  session.communication = 10;
  session.data = 10;
  session.checkpoint = 50;
  session.validation = 140;
  session.memory = 309 << 20;
  Losses losses;
  for (const double loss : {10.4, 6.0}) {
    record.loss = loss;
    losses.Add(record);
  }
  record.kind = Record::Kind::kValid;
  record.loss = 5.5;
  record.step = 500;
  losses.Add(record);
  record.loss = 5.6;
  record.step = 1019;
  losses.Add(record);
  record.kind = Record::Kind::kTest;
  record.loss = 5.61;
  losses.Add(record);
  EXPECT_EQ(
      SummaryText("done", record, session, losses, 1000,
                  {{"log", "runs/a/log.txt"}, {"metrics", "runs/a/metrics.jsonl"}}),
      "done    1,019 steps, 2,088,627 tokens, 16:40; 2,611 tokens/s; peak memory 309 MiB per "
      "rank\n"
      "time    compute 78.0%, communication 1.0%, data 1.0%, checkpoint 5.0%, validation 14.0%, "
      "other 1.0%\n"
      "loss    train first 10.4000, last 6.0000; valid last 5.6000, best 5.5000 at step 500; "
      "test 5.6100\n"
      "files   log      runs/a/log.txt\n"
      "        metrics  runs/a/metrics.jsonl");
}

constexpr double kKibi = 1024;

TrafficRow TensorRow() {
  TrafficRow row;
  row.group = "tensor";
  row.transfer = "all-reduce";
  row.ranks = 8;
  row.calls = 8 * 36 * 10;
  row.bytes = 8 * 72 * kKibi * 10;
  row.seconds_waited = 0.5;
  row.longest_waited = 12.345;
  row.seconds_hidden = 0.0625;
  return row;
}

TEST(Traffic, IsATableWithALineARow) {
  TrafficRow receive = TensorRow();
  receive.group = "embedding";
  receive.transfer = "receive";
  receive.ranks = 4;
  receive.bytes = 0;
  EXPECT_EQ(
      TrafficTable({TensorRow(), receive}, 10, 4),
      "traffic group      transfer        calls/step sent/step      sent   waited  share  longest  "
      " "
      "hidden\n"
      "        tensor     all-reduce            36.0    72 KiB   5.6 MiB    0.500  12.5%    12.35  "
      "  "
      "0.062\n"
      "        embedding  receive               72.0         -         -    0.500  12.5%    12.35  "
      "  "
      "0.062\n"
      "        training steps only; calls, bytes per step: of one rank that takes part; sent: "
      "by all ranks;\n"
      "        waited, hidden: mean seconds of a rank; share: of the steps' time; longest: of one "
      "rank");
  EXPECT_EQ(TrafficTable({}, 10, 4), "");
  EXPECT_EQ(TrafficTable({TensorRow()}, 0, 0), "");
}

// Names as long as they come, a month on 10,000 ranks: every line within 100 columns, its numbers
// apart.
TEST(Traffic, LargeNumbersKeepTheirColumns) {
  constexpr std::int64_t kSteps = 1000000;
  constexpr double kRanks = 10000, kMonth = 30 * 86400.0;
  TrafficRow row = TensorRow();
  row.group = "key/value";
  row.transfer = "reduce-scatter";
  row.ranks = kRanks;
  row.calls = 123456 * kRanks * kSteps;
  row.bytes = 100 * kKibi * kKibi * kRanks * kSteps;
  row.seconds_waited = row.longest_waited = row.seconds_hidden = kMonth;
  const std::string text = TrafficTable({row}, kSteps, kMonth);
  EXPECT_NE(text.find("        key/value  reduce-scatter     123,456   100 MiB   931 PiB  2592000 "
                      "100.0%  2592000  2592000\n"),
            std::string::npos)
      << text;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Summary, HasTheTrafficBetweenLossesAndFiles) {
  Record record = ExampleRecord();
  Tally session;
  record.step_seconds = 4;
  session.Add(record);
  Losses losses;
  losses.Add(record);
  const std::string text =
      SummaryText("done", record, session, losses, 10, {{"log", "a"}}, {TensorRow()});
  EXPECT_NE(text.find("\nloss "), std::string::npos);
  EXPECT_NE(text.find("\n" + TrafficTable({TensorRow()}, 1, 4) + "\nfiles   log  a"),
            std::string::npos)
      << text;
  EXPECT_LT(text.find("\nloss "), text.find("\ntraffic "));
}

TEST(Summary, SaysHowManyGathersWereCompleteWhenNeeded) {
  Record record = ExampleRecord();
  Tally session;
  session.Add(record);
  session.Add(record);
  const auto text = [&](const Gathers& gathers) {
    return SummaryText("done", record, session, {}, 10, {{"log", "a"}}, {TensorRow()}, gathers);
  };
  EXPECT_NE(text({.count = 25, .ready = 22})
                .find("\ngathers 12.5 per step and rank, of sharded "
                      "parameters; 88.0% complete when needed\nfiles"),
            std::string::npos)
      << text({.count = 25, .ready = 22});
  EXPECT_EQ(text({}).find("gathers"), std::string::npos);
}

// Start of the page's script: where it is found, its bound in time, its failures, stops.

class Page : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "trireme_page_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    unsetenv("TRIREME_PYTHON");
    fs::remove_all(folder_);
  }

  // An executable shell script that stands for Python.
  std::string Fake(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    chmod(path.c_str(), 0755);
    return path.string();
  }
  std::string Touch(const std::string& name) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "\n";
    return (folder_ / name).string();
  }
  // The line of MakePage with a fake Python.
  static std::string LineOf(const std::string& python, double seconds, bool stop = false) {
    setenv("TRIREME_PYTHON", python.c_str(), 1);
    testing::internal::CaptureStdout();
    MakePage({.folder = "runs/a", .seconds = seconds}, [stop] { return stop; });
    return testing::internal::GetCapturedStdout();
  }

  fs::path folder_;
};

TEST_F(Page, ScriptAndPythonAreFoundInTheSourceTreeThenInThePrefix) {
  const std::string program = Touch("tree/build/trireme");
  EXPECT_EQ(FindPageCommand("r", program, "/nowhere").script, "");
  const std::string source = Touch("elsewhere/vis/report.py");
  EXPECT_EQ(FindPageCommand("r", program, (folder_ / "elsewhere").string()).script, source);
  const std::string tree = Touch("tree/vis/report.py");
  EXPECT_EQ(FindPageCommand("r", program, (folder_ / "elsewhere").string()).script, tree);
  const std::string python = Fake("tree/build/venv/bin/python3", "");
  EXPECT_EQ(FindPageCommand("r", program, "").python, python);

  const std::string installed = Touch("prefix/bin/trireme");
  const std::string shared = Touch("prefix/share/trireme/vis/report.py");
  EXPECT_EQ(FindPageCommand("r", installed, (folder_ / "elsewhere").string()).script, shared);
  const std::string venv = Fake("prefix/share/trireme/venv/bin/python3", "");
  EXPECT_EQ(FindPageCommand("r", installed, "").python, venv);
  setenv("TRIREME_PYTHON", "/some/python", 1);
  EXPECT_EQ(FindPageCommand("r", installed, "").python, "/some/python");
}

TEST_F(Page, TheCommandIsOneForAShell) {
  const PageCommand plain = {.python = "python3", .script = "/t/vis/report.py", .folder = "runs/a"};
  EXPECT_EQ(plain.Text(), "python3 /t/vis/report.py runs/a");
  const PageCommand odd = {.python = "", .script = "", .folder = "it's; here"};
  EXPECT_EQ(odd.Text(), "python3 vis/report.py 'it'\\''s; here'");
}

TEST_F(Page, IsAnnouncedIfTheScriptSucceeds) {
  const std::string python = Fake("python", "test \"$2\" = --seconds && test \"$5\" = runs/a");
  EXPECT_EQ(LineOf(python, 60), "page    runs/a/report.html\n");
}

TEST_F(Page, AFailureIsOneLineWithItsReasonAndTheCommand) {
  const std::string python = Fake("python", "echo no such module >&2; echo more >&2; exit 4");
  const std::string line = LineOf(python, 60);
  EXPECT_EQ(line.find("page    not made: no such module; by hand: " + python), 0U) << line;
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_NE(LineOf(folder_ / "none", 60).find("No such file"), std::string::npos);
  EXPECT_NE(LineOf(Fake("dies", "kill -9 $$"), 60).find("not made"), std::string::npos);
}

TEST_F(Page, ALongMessageIsCutAndDoesNotBlock) {
  const std::string python = Fake("python", "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1");
  EXPECT_LT(LineOf(python, 20).size(), 1200U);
}

TEST_F(Page, TheBoundEndsTheScriptAndWhatItStarted) {
  const std::string mark = (folder_ / "mark").string();
  const std::string python = Fake("python", "(sleep 1; echo late >" + mark + ") & sleep 30");
  const double start = Seconds();
  const std::string line = LineOf(python, 0.3);
  EXPECT_LT(Seconds() - start, 5);
  EXPECT_NE(line.find("longer than"), std::string::npos) << line;
  while (Seconds() - start < 2) usleep(50'000);
  EXPECT_FALSE(fs::exists(mark));
}

TEST_F(Page, ASignalEndsItAtOnce) {
  const double start = Seconds();
  EXPECT_NE(LineOf(Fake("python", "sleep 30"), 20, true).find("a signal came"), std::string::npos);
  int calls = 0;
  setenv("TRIREME_PYTHON", (folder_ / "python").c_str(), 1);
  testing::internal::CaptureStdout();
  MakePage({.folder = "runs/a", .seconds = 20}, [&] { return ++calls > 3; });
  EXPECT_NE(testing::internal::GetCapturedStdout().find("a signal came"), std::string::npos);
  EXPECT_LT(Seconds() - start, 5);
}

TEST_F(Page, WithoutTimeTheScriptIsNotStarted) {
  const std::string mark = (folder_ / "mark").string();
  const std::string line = LineOf(Fake("python", "echo started >" + mark), 0);
  EXPECT_NE(line.find("the job's time ends; by hand: "), std::string::npos) << line;
  EXPECT_FALSE(fs::exists(mark));
}

}  // namespace
}  // namespace trireme::report
