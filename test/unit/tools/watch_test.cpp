// --watch: what is read of a run, and the layout of the screen.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>

#include "folders.hpp"
#include "run_state.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// Records of a run, of this version and of older ones, as what a view shows.

std::string Step(std::int64_t step, double loss, double seconds = 0.5) {
  return fmt::format(
      R"({{"kind":"step","step":{},"epoch":{},"tokens":1,"loss":{},"perplexity":1.0,)"
      R"("learning_rate":0.001,"grad_norm":0.5,"step_seconds":{},"tokens_per_second":1000.0,)"
      R"("roof_fraction":0.8,"seconds_checkpoint":0.0,"bad_steps":2}})",
      step, static_cast<double>(step) / 100, loss, seconds);
}

constexpr const char* kInterval =
    R"({"kind":"interval","step":50,"steps":50,"loss_min":3.5,"loss_max":4.5,"loss_mean":4.0,)"
    R"("roof_fraction":0.7,"memory_bytes":1048576,"memory_rank":3,"memory_host":"node17",)"
    R"("joules":1000.0,"joules_per_token":0.5,"watts_per_node":400.0,"gpu_utilisation":0.9,)"
    R"("gpu_memory_bytes":2097152.0})";

TEST(RunState, StepsAndIntervals) {
  RunState state;
  for (int step = 1; step <= 50; ++step) state.Take(Step(step, 5 - step / 50.0));
  state.Take(kInterval);
  const Glance glance = state.Look({.steps = 100});
  EXPECT_EQ(glance.step, 50);
  EXPECT_EQ(glance.total_steps, 100);
  EXPECT_DOUBLE_EQ(glance.loss, 4);
  EXPECT_DOUBLE_EQ(glance.loss_least, 3.5);
  EXPECT_DOUBLE_EQ(glance.tokens_per_second, 1000);
  EXPECT_DOUBLE_EQ(glance.step_seconds, 0.5);
  EXPECT_DOUBLE_EQ(glance.seconds_left, 25);
  EXPECT_DOUBLE_EQ(glance.roof_fraction, 0.7);
  EXPECT_EQ(glance.bad_steps, 2);
  EXPECT_EQ(glance.memory_place, "rank 3 on node17");
  EXPECT_DOUBLE_EQ(glance.joules, 1000);
  EXPECT_DOUBLE_EQ(glance.watts_per_node, 400);
  EXPECT_DOUBLE_EQ(glance.gpu_utilisation, 0.9);
  EXPECT_FALSE(glance.some_joules);
  EXPECT_EQ(state.Records(), 51);
  EXPECT_EQ(state.Damaged(), 0);
}

TEST(RunState, ValidationsTakeTimeToo) {
  RunState state;
  for (int step = 1; step <= 50; ++step) state.Take(Step(step, 4));
  state.Take(R"({"kind":"valid","step":50,"loss":4.25,"step_seconds":25.0})");
  state.Take(R"({"kind":"valid_other","set":"code","step":50,"loss":2.5,"step_seconds":0.0})");
  EXPECT_DOUBLE_EQ(state.Look({.steps = 100}).seconds_left, 50);
  EXPECT_DOUBLE_EQ(state.Decider().best, 4.25);
  EXPECT_DOUBLE_EQ(state.OtherSets().at("code").last, 2.5);
  state.Take(R"({"kind":"valid","step":60,"loss":4.5,"step_seconds":25.0})");
  EXPECT_DOUBLE_EQ(state.Decider().best, 4.25);
  EXPECT_EQ(state.Decider().best_step, 50);
  EXPECT_DOUBLE_EQ(state.Decider().last, 4.5);
}

// Means over 50 steps, and more members.
TEST(RunState, RecordsOfOlderVersions) {
  RunState state;
  state.Take(Step(1, 9));
  for (int step = 50; step <= 500; step += 50) state.Take(Step(step, 4));
  const Glance glance = state.Look({.epochs = 10});
  EXPECT_DOUBLE_EQ(glance.step_seconds, 0.5);
  EXPECT_EQ(glance.total_steps, 1000);  // 100 steps per epoch
  EXPECT_TRUE(glance.about);
  EXPECT_DOUBLE_EQ(glance.seconds_left, 250);
  EXPECT_TRUE(std::isnan(glance.joules));
}

TEST(RunState, LossesThatAreNotFinite) {
  RunState state;
  state.Take(Step(1, 4));
  state.Take(R"({"kind":"step","step":2,"loss":null,"step_seconds":0.5,"tokens_per_second":10})");
  EXPECT_EQ(state.Damaged(), 0);
  EXPECT_TRUE(std::isnan(state.Look({}).loss));
  EXPECT_EQ(state.Losses().Bars(10, false), "_!");
}

TEST(RunState, DamagedLines) {
  RunState state;
  for (const char* line :
       {"", "{", "7", "[]", "null", "{}", R"({"kind":"step"})", R"({"kind":3,"step":1})",
        R"({"kind":"step","step":-1,"loss":1,"step_seconds":1,"tokens_per_second":1})",
        R"({"kind":"step","step":1e300,"loss":1,"step_seconds":1,"tokens_per_second":1})",
        R"({"kind":"step","step":5,"lo{"kind":"step","step":1,"loss":1})",
        R"({"kind":"step","step":1,"loss":4.{"kind":"step","step":2,"loss":1})",
        "{\"kind\":\"st\xff\xfe", R"({"kind":"valid","loss":1})"}) {
    state.Take(line);
  }
  EXPECT_EQ(state.Records(), 0);
  EXPECT_EQ(state.Damaged(), 14);
  state.Take(R"({"kind":"valid","step":1,"loss":"low"})");
  EXPECT_TRUE(std::isnan(state.Decider().last));
}

TEST(RunState, RecordsRewrittenWithBlanks) {
  RunState state;
  state.Take(
      R"({ "step": 7, "kind": "step", "loss": 4.5, "step_seconds": 1, "tokens_per_second": 8 })");
  EXPECT_EQ(state.Damaged(), 0);
  EXPECT_DOUBLE_EQ(state.Look({}).loss, 4.5);
  EXPECT_EQ(state.Look({}).step, 7);
}

TEST(RunState, StopsAndEnds) {
  RunState state;
  state.Take(Step(1, 4));
  state.Take(R"({"kind":"event","event":"stop","step":1,"text":"a signal"})");
  EXPECT_TRUE(state.Stopped());
  state.Take(R"({"kind":"event","event":"restart","step":1,"text":"start 2"})");
  EXPECT_FALSE(state.Stopped());
  ASSERT_EQ(state.LastEvents().size(), 2U);
  EXPECT_EQ(state.LastEvents().front().name, "restart");
  state.Take(R"({"kind":"done","step":1,"loss":4})");
  EXPECT_TRUE(state.Done());
  for (int i = 0; i < 1000; ++i) state.Take(R"({"kind":"event","event":"e","step":1})");
  EXPECT_LE(state.LastEvents().size(), 64U);
}

TEST(RunState, EventsArePrintable) {
  RunState state;
  state.Take(R"({"kind":"event","event":"a\u001b[2J","step":1,"text":"\u009b2J\nx"})");
  EXPECT_EQ(state.LastEvents().front().name, "a�[2J");
  EXPECT_EQ(state.LastEvents().front().text, "�2J x");
}

TEST(RunState, AMillionStepsTakeASecond) {
  const std::string line = Step(123456, 4);
  RunState state;
  const double start = Seconds();
  for (int i = 1; i <= 1'000'000; ++i) state.Take(line);
  const double seconds = Seconds() - start;
  fmt::print("1,000,000 records: {:.2f} s\n", seconds);
  EXPECT_LT(seconds, 5);
  EXPECT_EQ(state.Records(), 1'000'000);
}

TEST(Schedule, OfADeck) {
  const std::string deck =
      "# begins\n[checkpoint]\nsteps = 7\n[schedule]\nepochs           = 5       # from x\n"
      "stop_at          = 30\n[monitor]\nevery_steps = 3\n";
  const Schedule schedule = ReadSchedule(deck);
  EXPECT_EQ(schedule.steps, 0);
  EXPECT_EQ(schedule.epochs, 5);
  EXPECT_EQ(schedule.stop_at, 30);
  EXPECT_EQ(ReadSchedule("[schedule]\nsteps = 90\n").steps, 90);
  EXPECT_EQ(ReadSchedule("[schedule]\nsteps = -4\nepochs\n= 3\n").steps, 0);
}

// The curve of a run: a bounded number of bars, whatever the number of steps.

TEST(Curve, RisesAndFalls) {
  Curve curve;
  for (int step = 1; step <= 8; ++step) curve.Add(step, step);
  EXPECT_EQ(curve.Bars(8, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(curve.Bars(8, false), "_.-=+*%#");
  EXPECT_EQ(curve.Bars(100, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(curve.Bars(4, true), "▁▃▆█");
  EXPECT_EQ(curve.Bars(0, true), "");
  EXPECT_EQ(curve.Bars(-3, true), "");
}

TEST(Curve, OfOneValueAndOfNone) {
  Curve curve;
  EXPECT_EQ(curve.Bars(10, true), "");
  curve.Add(1, 3);
  EXPECT_EQ(curve.Bars(10, true), "▁");
}

TEST(Curve, WhatIsNotFiniteIsSeen) {
  Curve curve;
  for (int step = 1; step <= 100'000; ++step) curve.Add(step, step == 50'000 ? NAN : 1.0);
  const std::string bars = curve.Bars(10, false);
  EXPECT_EQ(bars.size(), 10U);
  EXPECT_EQ(std::count(bars.begin(), bars.end(), '!'), 1);
}

TEST(Curve, AMillionStepsKeepTheirShape) {
  Curve curve;
  for (int step = 1; step <= 1'000'000; ++step) curve.Add(step, step <= 500'000 ? 8 : 1);
  EXPECT_EQ(curve.Bars(8, false), "####____");
}

TEST(Curve, AnEarlierStepTakesBackLaterOnes) {
  Curve curve;
  for (int step = 1; step <= 8; ++step) curve.Add(step, step);
  curve.Add(3, 8);
  EXPECT_EQ(curve.Bars(8, false), "_.#");
}

// A followed file under all that happens to a run's records.

using State = FollowedFile::State;

class FollowedFileTest : public test::FolderTest {
 protected:
  void Append(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::app) << text;
  }
  // Reads all that is there; the lines of this call.
  std::vector<std::string> Read() {
    lines_.clear();
    const FollowedFile::Visit visit{
        .line = [this](std::string_view line) { lines_.emplace_back(line); },
        .restart = [this] { ++restarts_; }};
    do {
      state_ = file_.Read(visit);
    } while (state_ == State::kBehind);
    return lines_;
  }

  const std::string path_ = In("metrics.jsonl");
  FollowedFile file_{path_};
  std::vector<std::string> lines_;
  State state_ = State::kMissing;
  int restarts_ = 0;
};

TEST_F(FollowedFileTest, AppendedLinesComeOnce) {
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_EQ(state_, State::kMissing);
  Append("a\nb\n");
  EXPECT_THAT(Read(), ElementsAre("a", "b"));
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_EQ(state_, State::kCaughtUp);
  Append("c\n\nd\n");
  EXPECT_THAT(Read(), ElementsAre("c", "", "d"));
  EXPECT_EQ(restarts_, 0);
}

TEST_F(FollowedFileTest, ATornLineWaitsForItsEnd) {
  Append("a\n{\"kin");
  EXPECT_THAT(Read(), ElementsAre("a"));
  Append("d\":1");
  EXPECT_THAT(Read(), IsEmpty());
  Append("}\nb\n");
  EXPECT_THAT(Read(), ElementsAre("{\"kind\":1}", "b"));
}

TEST_F(FollowedFileTest, AReplacedFileBeginsAnew) {
  Append("a\nb\nc\n");
  Read();
  test::WriteBytes(In("new"), "a\nb\nd\ne\n");
  std::filesystem::rename(In("new"), path_);
  EXPECT_THAT(Read(), ElementsAre("a", "b", "d", "e"));
  EXPECT_EQ(restarts_, 1);
}

TEST_F(FollowedFileTest, ACutFileBeginsAnew) {
  Append("a\nb\nc\n");
  Read();
  std::filesystem::resize_file(path_, 2);
  EXPECT_THAT(Read(), ElementsAre("a"));
  EXPECT_EQ(restarts_, 1);
  std::filesystem::resize_file(path_, 0);
  EXPECT_THAT(Read(), IsEmpty());
  Append("x\n");
  EXPECT_THAT(Read(), ElementsAre("x"));
  EXPECT_EQ(restarts_, 2);
}

TEST_F(FollowedFileTest, AFileRewrittenInItsPlaceIsNoticed) {
  Append("a\nb\nc\n");
  Read();
  test::WriteBytes(path_, "a\nx\ny\nz\n");  // longer than what was read
  EXPECT_THAT(Read(), ElementsAre("a", "x", "y", "z"));
  EXPECT_EQ(restarts_, 1);
  test::WriteBytes(path_, "a\nx\nY\nz\n");  // as long
  EXPECT_THAT(Read(), ElementsAre("a", "x", "Y", "z"));
}

TEST_F(FollowedFileTest, AVanishedFileMayComeBack) {
  Append("a\nb\n");
  Read();
  std::filesystem::rename(path_, In("away"));
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_EQ(state_, State::kMissing);
  std::filesystem::rename(In("away"), path_);
  Append("c\n");
  EXPECT_THAT(Read(), ElementsAre("c"));
  EXPECT_EQ(restarts_, 0);
  std::filesystem::remove(path_);
  Read();
  Append("n\n");  // perhaps with the same inode
  EXPECT_THAT(Read(), ElementsAre("n"));
  EXPECT_EQ(restarts_, 1);
}

TEST_F(FollowedFileTest, ALineWithoutEndTakesNoMemory) {
  std::string begin = "a\n";
  begin.append(FollowedFile::kMaxLine + 10, 'x');
  Append(begin);
  EXPECT_THAT(Read(), ElementsAre("a"));
  Append("xxx\nb\n");
  EXPECT_THAT(Read(), ElementsAre("", "b"));
  Append(std::string(FollowedFile::kMaxLine, 'y') + "\n");
  ASSERT_EQ(Read().size(), 1U);
  EXPECT_EQ(std::ssize(lines_[0]), FollowedFile::kMaxLine);
}

TEST_F(FollowedFileTest, ALineThatSpansReadings) {
  std::string all;
  for (int i = 0; i < 1'000'000; ++i) all += std::to_string(i) + "\n";
  Append(all);
  const auto lines = Read();
  ASSERT_EQ(lines.size(), 1'000'000U);
  for (std::size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i], std::to_string(i));
}

TEST_F(FollowedFileTest, NoFile) {
  std::filesystem::create_directory(path_);
  Read();
  EXPECT_EQ(state_, State::kUnreadable);
  EXPECT_EQ(file_.Reason(), "Is a directory");
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  Read();  // and does not wait for a writer
  EXPECT_EQ(state_, State::kUnreadable);
}

// Lines of a file that was cut and goes on are told once.

std::string NewOnes(KnownLines& known, const std::string& lines) {
  std::string told;
  for (const char line : lines) {
    if (known.IsNew(std::string_view(&line, 1))) told += line;
  }
  return told;
}

TEST(KnownLines, ARunResumedTellsWhatIsNew) {
  KnownLines known;
  EXPECT_EQ(NewOnes(known, "abcdef"), "abcdef");
  known.BeginAnew();  // d, e and f are cut; then others come
  EXPECT_EQ(NewOnes(known, "abcxyz"), "xyz");
  known.BeginAnew();  // a line within is gone
  EXPECT_EQ(NewOnes(known, "acxyzm"), "m");
  known.BeginAnew();
  EXPECT_EQ(NewOnes(known, "acxyzm"), "");
  EXPECT_EQ(NewOnes(known, "n"), "n");
}

TEST(KnownLines, EqualLinesAreTwoRecords) {
  KnownLines known;
  EXPECT_EQ(NewOnes(known, "aaa"), "aaa");
  known.BeginAnew();
  EXPECT_EQ(NewOnes(known, "aaaa"), "a");
}

TEST(KnownLines, AnotherFileIsNewAsAWhole) {
  KnownLines known;
  EXPECT_EQ(NewOnes(known, "abc"), "abc");
  known.BeginAnew();
  EXPECT_EQ(NewOnes(known, "xabc"), "xabc");
}

// The view for terminals of all sizes.

class LayoutTest : public test::FolderTest {
 protected:
  // A run with records of all kinds.
  void Make(const std::string& name) {
    std::filesystem::create_directories(In(name));
    std::string text;
    for (int step = 1; step <= 60; ++step) {
      text += fmt::format(
          "{{\"kind\":\"step\",\"step\":{},\"epoch\":0.5,\"loss\":{},\"step_seconds\":1.0,"
          "\"tokens_per_second\":2000.0,\"roof_fraction\":0.5}}\n",
          step, 6.0 - 0.01 * step);
    }
    text +=
        "{\"kind\":\"interval\",\"step\":60,\"memory_bytes\":1048576,\"memory_rank\":1,"
        "\"joules\":5000.0,\"watts_per_node\":350.0}\n"
        "{\"kind\":\"valid\",\"step\":60,\"loss\":5.5,\"step_seconds\":0.0}\n"
        "{\"kind\":\"event\",\"event\":\"checkpoint\",\"step\":50,\"text\":\"one\"}\n"
        "{\"kind\":\"event\",\"event\":\"bad step\",\"step\":55,\"text\":\"two\"}\n";
    test::WriteBytes(In(name) + "/metrics.jsonl", text);
    test::WriteBytes(In(name) + "/deck.in", "[schedule]\nsteps = 100\n");
    runs_.emplace_back(In(name)).ReadOn(60);
    runs_.back().name = name;
  }
  std::vector<std::string> Show(int rows, int columns, std::int64_t first = 0) {
    std::vector<const FollowedRun*> shown;
    for (const FollowedRun& run : runs_) shown.push_back(&run);
    std::vector<std::string> texts;
    const std::int64_t now = runs_.empty() ? 0 : runs_.front().file.ModifiedAt() + 3;
    for (const Row& row :
         LayOut(shown, {.rows = rows, .columns = columns, .first = first, .now = now})) {
      texts.push_back(row.text);
    }
    return texts;
  }

  std::deque<FollowedRun> runs_;
};

TEST_F(LayoutTest, OneRunShowsAll) {
  Make("a");
  const auto rows = Show(24, 80);
  ASSERT_EQ(rows.size(), 9U);
  EXPECT_EQ(rows[0], "a: running, step 60 of 100 (60%), epoch 0.50");
  EXPECT_THAT(rows[1], StartsWith("loss    5.4000  █"));
  EXPECT_EQ(rows[2], "speed   2,000 tokens/s, roof 50%, 1 s per step, left 0:40");
  EXPECT_EQ(rows[3], "valid   5.5000 at step 60, best 5.5000 at step 60");
  EXPECT_EQ(rows[4], "memory  1.0 MiB per rank at most (rank 1)");
  EXPECT_EQ(rows[5], "energy  350 W per node, 5.00 kJ");
  EXPECT_EQ(rows[6], "event   step 55: bad step, two");
  EXPECT_EQ(rows[7], "        step 50: checkpoint, one");
  EXPECT_EQ(rows[8], "q ends");
}

TEST_F(LayoutTest, EverySizeIsKept) {
  for (const char* name : {"a", "b", "c", "d", "e"}) Make(name);
  for (int rows = 1; rows <= 60; ++rows) {
    for (const int columns : {1, 5, 20, 80, 300}) {
      for (const std::int64_t first : {0, 2, 4, 9}) {
        const auto shown = Show(rows, columns, first);
        EXPECT_LE(std::ssize(shown), rows);
        EXPECT_FALSE(shown.empty());
      }
    }
  }
}

TEST_F(LayoutTest, ManyRunsTakeARowEachAndCanBeMovedThrough) {
  for (const char* name : {"a", "b", "c", "d", "e"}) Make(name);
  auto rows = Show(4, 120);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_THAT(rows[0], StartsWith("a: running, step 60 of 100 (60%), loss 5.4000, valid 5.5000"));
  EXPECT_THAT(rows[2], StartsWith("c: "));
  EXPECT_EQ(rows[3], "q ends; arrows move through the runs, 1 to 3 of 5");
  rows = Show(4, 120, 99);
  EXPECT_THAT(rows[0], StartsWith("c: "));
  EXPECT_EQ(rows[3], "q ends; arrows move through the runs, 3 to 5 of 5");
}

TEST_F(LayoutTest, ARunWithoutRecords) {
  std::filesystem::create_directory(In("a"));
  test::WriteBytes(In("a") + "/deck.in", "");
  runs_.emplace_back(In("a")).ReadOn(1);
  EXPECT_THAT(Show(24, 80)[0], HasSubstr("no records yet"));
  EXPECT_THAT(Show(2, 80)[0], HasSubstr("no records yet"));
}

TEST_F(LayoutTest, AFileThatIsGoneKeepsWhatItSaid) {
  Make("a");
  std::filesystem::remove(In("a") + "/metrics.jsonl");
  runs_.front().ReadOn(1);
  const auto rows = Show(24, 80);
  EXPECT_EQ(rows[0], "a: metrics.jsonl is gone, step 60 of 100 (60%), epoch 0.50");
  EXPECT_EQ(rows.size(), 9U);
}

TEST_F(LayoutTest, APathThatIsNotThereIsRefused) {
  try {
    const FollowedRun run(In("nowhere\x1b[2J"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr("nowhere�[2J: no such run folder"));
  }
}

// Text from files: nothing of it may reach a terminal as a command.

TEST(OneLine, KeepsText) {
  EXPECT_EQ(OneLine("größer 東京 𝄞 \"<b>\""), "größer 東京 𝄞 \"<b>\"");
  EXPECT_EQ(OneLine("two\nlines\tand\rmore"), "two lines and more");
}

TEST(OneLine, TakesOutControls) {
  EXPECT_EQ(OneLine("\x1b[2J\x07\x7f"), "�[2J��");
  EXPECT_EQ(OneLine("\xc2\x9b"
                    "2J"),
            "�2J");  // CSI of one character
  EXPECT_EQ(OneLine("a\xe2\x80\xae"
                    "b"),
            "a�b");  // right to left
  EXPECT_EQ(OneLine("a\xe2\x80\xa8"
                    "b"),
            "a�b");  // separator of lines
  EXPECT_EQ(OneLine("a\xe2\x80\x8b"
                    "b"),
            "a�b");  // no width
  EXPECT_EQ(OneLine(std::string_view("a\0b", 3)), "a�b");
}

TEST(OneLine, TakesOutWhatIsNotUtf8) {
  EXPECT_EQ(OneLine("a\xff"
                    "b"),
            "a�b");
  EXPECT_EQ(OneLine("\xc0\x9b"), "��");            // overlong
  EXPECT_EQ(OneLine("\xe0\x80\x9b"), "���");       // overlong
  EXPECT_EQ(OneLine("\xed\xa0\x80"), "���");       // surrogate
  EXPECT_EQ(OneLine("\xf4\x90\x80\x80"), "����");  // beyond Unicode
  EXPECT_EQ(OneLine("end\xe6\x9d"), "end��");      // cut off
}

TEST(OneLine, IsCut) {
  EXPECT_EQ(OneLine("abcdef", 6), "abcdef");
  EXPECT_EQ(OneLine("abcdefg", 6), "abcde…");
  EXPECT_EQ(OneLine("äöüäöüä", 6), "äöüäö…");
}

TEST(Wide, HasACharacterEach) { EXPECT_EQ(Wide("aä東𝄞"), L"aä東𝄞"); }

// A line of text per record.

TEST(RecordLine, OfEachKind) {
  EXPECT_EQ(RecordLine(R"({"kind":"step","step":1200,"epoch":0.5,"loss":4.25,"grad_norm":1.5,)"
                       R"("learning_rate":0.001,"tokens_per_second":5310.4,"roof_fraction":0.82})"),
            "step 1,200  epoch 0.50  loss 4.2500  rate 1.0e-03  |grad| 1.50  5,310 tokens/s  roof "
            "82%");
  EXPECT_EQ(RecordLine(R"({"kind":"interval","step":50,"loss_mean":4,"loss_min":3,"loss_max":5,)"
                       R"("tokens_per_second_mean":100,"memory_bytes":1048576,)"
                       R"("watts_per_node":400.4,"joules_per_token":0.125})"),
            "interval 50  loss 4.0000  from 3.0000  to 5.0000  100 tokens/s  memory 1.0 MiB  400 W "
            "per node  0.125 J per token");
  EXPECT_EQ(RecordLine(R"({"kind":"valid_other","set":"code","step":5,"epoch":1,"loss":2})"),
            "valid_other 5  epoch 1.00  set code  loss 2.0000");
  EXPECT_EQ(RecordLine(R"({"kind":"event","event":"stop","step":5,"host":"n1","text":"a\nb"})"),
            "event 5  stop  a b  on n1");
  EXPECT_EQ(RecordLine(R"({"kind":"step","step":5,"loss":null})"), "step 5  loss not finite");
}

TEST(RecordLine, OfWhatIsNone) {
  EXPECT_EQ(RecordLine("{\"kind\":\"st"), "unreadable: a line of 11 bytes");
  EXPECT_EQ(RecordLine(""), "unreadable: an empty line, or one that is too long");
  EXPECT_EQ(RecordLine("7"), "unreadable: a line of 1 byte");
}

TEST(RecordLine, IsPrintable) {
  EXPECT_EQ(RecordLine(R"({"kind":"x\u001b]0;t\u0007","step":1})"), "x�]0;t� 1");
  EXPECT_EQ(RecordLine(R"({"kind":"event","event":"e","step":1,"text":"\u001b[31mred"})"),
            "event 1  e  �[31mred");
}

}  // namespace
}  // namespace trireme::tools
