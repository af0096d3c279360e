// The run folder and its summary.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <vector>

#include "call_record.hpp"
#include "folders.hpp"
#include "metrics_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {
namespace {

using test::FolderTest;
using test::ReadBytes;
using test::WriteBytes;
using testing::ElementsAre;
using testing::HasSubstr;

// summary.json: members, unknown values, replacement.

class SummaryTest : public FolderTest {
 protected:
  nlohmann::json Written() const { return nlohmann::json::parse(ReadBytes(In("summary.json"))); }
  Session TwoSteps() const {
    return {.root = true, .folder = folder_, .every_steps = 1, .total_steps = 2};
  }
};

Record StepRecord(std::int64_t step, double loss) {
  Record record;
  record.step = step;
  record.loss = loss;
  record.step_seconds = 2;
  record.tokens_per_second = 100;
  record.seconds_compute = 1.5;
  record.seconds_data = 0.25;
  return record;
}

Record DoneRecord(std::int64_t step) {
  Record record;
  record.kind = Record::Kind::kDone;
  record.step = step;
  record.sources = {{"a.h5", 30}};
  return record;
}

TEST_F(SummaryTest, OfAWholeRunHasWhatTheMonitorSaw) {
  testing::internal::CaptureStdout();
  Monitor monitor(TwoSteps());
  monitor.Step(StepRecord(1, 5));
  monitor.Step(StepRecord(2, 4));
  Record valid = StepRecord(2, 4.5);
  valid.kind = Record::Kind::kValid;
  monitor.Evaluation(valid);
  monitor.Sample(2, "a <script> \xFF");
  Summary summary;
  summary.facts.entropy_floor = 3.5;
  summary.facts.hosts = {"node1", "node2"};
  summary.facts.deck = {{"data.batch", "8"}, {"run.seed", "1"}};
  summary.facts.deck_given = {"data.batch"};
  summary.facts.planned_memory = {{"parameters", 100}};
  summary.ranks = {{.rank = 1, .host = "node2", .data = 1, .planned_bytes = 7, .used_bytes = 9}};
  summary.traffic = {{.group = "data", .transfer = "all-reduce", .ranks = 2, .bytes = 64}};
  summary.files = {{"run folder", folder_}, {"log", folder_ + "/log.txt"}, {"best", "/x/best"}};
  monitor.Done(DoneRecord(2), summary);
  testing::internal::GetCapturedStdout();
  const nlohmann::json json = Written();
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["outcome"], "done");
  EXPECT_TRUE(json["reason"].is_null());
  EXPECT_EQ(json["step"], 2);
  EXPECT_THAT(json["hosts"], ElementsAre("node1", "node2"));
  EXPECT_EQ(json["losses"]["first"], 5.0);
  EXPECT_EQ(json["losses"]["last"], 4.0);
  EXPECT_EQ(json["losses"]["best_valid"], 4.5);
  EXPECT_EQ(json["losses"]["best_valid_step"], 2);
  EXPECT_TRUE(json["losses"]["test"].is_null());
  EXPECT_EQ(json["losses"]["entropy_floor"], 3.5);
  EXPECT_THAT(json["samples"], ElementsAre("a <script> \uFFFD"));
  EXPECT_EQ(json["time"]["compute"], 3.0);
  EXPECT_EQ(json["time"]["data"], 0.5);
  EXPECT_EQ(json["time"]["validation"], 2.0);
  EXPECT_EQ(json["speed"]["tokens_per_second"], 100.0);
  EXPECT_EQ(json["memory"]["planned"][0]["term"], "parameters");
  EXPECT_EQ(json["memory"]["ranks"][0]["used_bytes"], 9);
  EXPECT_EQ(json["memory"]["ranks"][0]["data"], 1);
  EXPECT_EQ(json["traffic"][0]["bytes"], 64.0);
  EXPECT_EQ(json["energy"]["not_available"], "not measured");
  EXPECT_EQ(json["sources"]["a.h5"], 30);
  EXPECT_EQ(json["files"]["run folder"], folder_);
  EXPECT_EQ(json["files"]["log"], "log.txt");
  EXPECT_EQ(json["files"]["best"], "/x/best");
  EXPECT_EQ(json["deck"]["data.batch"], "8");
  EXPECT_THAT(json["deck_given"], ElementsAre("data.batch"));
  EXPECT_THAT(json["ended"].get<std::string>(), testing::MatchesRegex("....-..-..T..:..:..Z"));
  EXPECT_FALSE(std::filesystem::exists(In("summary.json.tmp")));
}

TEST_F(SummaryTest, OfARunThatStopsSaysWhy) {
  testing::internal::CaptureStdout();
  {
    Monitor monitor(TwoSteps());
    monitor.Step(StepRecord(1, NAN));
    Summary summary;
    summary.reason = "a signal";
    summary.energy = {.numbers = {{"joules", 5}}, .not_available = ""};
    monitor.Done(DoneRecord(1), summary);
  }
  nlohmann::json json = Written();
  EXPECT_EQ(json["outcome"], "stopped");
  EXPECT_EQ(json["reason"], "a signal");
  EXPECT_TRUE(json["losses"]["first"].is_null());
  EXPECT_TRUE(json["losses"]["last"].is_null());
  EXPECT_TRUE(json["losses"]["best_valid_step"].is_null());
  EXPECT_EQ(json["energy"]["joules"], 5.0);

  // The next session removes it: nobody takes it for that session's, should it be killed.
  Session again = TwoSteps();
  again.resumed = true;
  again.resume_step = 1;
  {
    Monitor monitor(again);
    EXPECT_FALSE(std::filesystem::exists(In("summary.json")));
    monitor.Step(StepRecord(2, 4));
    monitor.Done(DoneRecord(2));
  }
  EXPECT_EQ(Written()["step"], 2);
  { Monitor anew(TwoSteps()); }
  EXPECT_FALSE(std::filesystem::exists(In("summary.json"))) << "of an earlier run in this folder";
  testing::internal::GetCapturedStdout();
}

TEST_F(SummaryTest, AFolderThatCannotBeWrittenCostsTheSummaryAlone) {
  std::filesystem::create_directory(In("summary.json"));
  WriteBytes(In("summary.json/x"), "");
  testing::internal::CaptureStdout();
  Monitor monitor(TwoSteps());
  monitor.Step(StepRecord(1, 4));
  monitor.Done(DoneRecord(1));
  const std::string screen = testing::internal::GetCapturedStdout();
  EXPECT_THAT(screen, testing::HasSubstr("warning: " + In("summary.json") + ": cannot be written"));
  EXPECT_THAT(screen, testing::HasSubstr("\nstopped 1 step"));
}

TEST(SummaryRanks, OfALargeJobAreThoseWithMostAndLeastMemory) {
  Summary summary;
  for (int rank = 0; rank < 1024; ++rank) {
    summary.ranks.push_back({.rank = rank, .used_bytes = 1000 + rank % 7});
  }
  LeaveOutRanks(summary);
  EXPECT_EQ(summary.ranks.size(), 1024U);
  EXPECT_EQ(summary.ranks_left_out, 0);
  summary.ranks.push_back({.rank = 1024, .used_bytes = 5});
  summary.ranks[500].used_bytes = 5000;
  LeaveOutRanks(summary);
  ASSERT_EQ(summary.ranks.size(), 128U);
  EXPECT_EQ(summary.ranks_left_out, 1025 - 128);
  EXPECT_EQ(summary.ranks[0].rank, 500);
  EXPECT_EQ(summary.ranks[1].rank, 6) << "the first of those with 1006 bytes";
  EXPECT_EQ(summary.ranks.back().rank, 1024);
}

// Run folders: made, refused, resumed.

void ExpectRefused(const std::string& folder, const std::string& message) {
  try {
    PrepareRunFolder(folder, false, "deck");
    ADD_FAILURE() << folder << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(DeckEnd, IsMissingWhereverATextWasCut) {
  const std::string whole = MarkEnds("[job]\nname = a\n");
  EXPECT_EQ(EndOf(whole), DeckEnd::kThere);
  for (std::size_t size = 0; size + 1 < whole.size(); ++size) {
    EXPECT_EQ(EndOf(whole.substr(0, size)), DeckEnd::kMissing) << size;
  }
  EXPECT_EQ(EndOf(whole.substr(0, whole.size() - 1)), DeckEnd::kThere) << "all but a newline";
  EXPECT_EQ(EndOf(whole + "[optimizer]\nbeta1 = 0.8\n"), DeckEnd::kThere) << "changed";
  EXPECT_EQ(EndOf("[job]\nname = a\n"), DeckEnd::kUnmarked);
  EXPECT_EQ(EndOf("# mine\n"), DeckEnd::kUnmarked);
  EXPECT_EQ(MarkEnds("a = 1"), MarkEnds("a = 1\n"));
}

using RunFolder = FolderTest;

TEST_F(RunFolder, IsMadeWithItsDeck) {
  PrepareRunFolder(In("runs/a"), false, "[job]\n");
  EXPECT_EQ(ReadBytes(In("runs/a/deck.in")), MarkEnds("[job]\n"));
  EXPECT_TRUE(std::filesystem::is_directory(In("runs/a/checkpoints")));
}

// Folders that `make` makes within `folder`, by relative path, in their order; each must then be
// synced into the folder above it.
std::vector<std::string> DurablyMade(const std::string& folder, const std::function<void()>& make) {
  test::CallRecord record(std::filesystem::canonical(folder).string());
  make();
  const std::vector<test::Call> calls = record.Stop();
  std::vector<std::string> made;
  for (auto call = calls.begin(); call != calls.end(); ++call) {
    if (call->kind != test::Call::Kind::kMakeFolder) continue;
    made.push_back(call->path);
    const std::string parent = std::filesystem::path(call->path).parent_path().string();
    EXPECT_TRUE(std::any_of(call, calls.end(),
                            [&](const test::Call& later) {
                              return later.kind == test::Call::Kind::kSync && later.path == parent;
                            }))
        << call->path << " is not synced into the folder above it";
  }
  return made;
}

TEST_F(RunFolder, IsDurableInTheFoldersAboveIt) {
  using Names = std::vector<std::string>;
  const auto make = [&] { MakeRunFolder(In("runs/a")); };
  EXPECT_EQ(DurablyMade(folder_, make), (Names{"runs", "runs/a", "runs/a/checkpoints"}));
  EXPECT_EQ(DurablyMade(folder_, make), Names{});
  const auto prepare = [&] { PrepareRunFolder(In("runs/b"), false, "deck"); };
  EXPECT_EQ(DurablyMade(folder_, prepare), (Names{"runs/b", "runs/b/checkpoints"}));
}

// A checkpoint on the disk without the records of the steps before it would lose them: nobody
// computes these steps again.
TEST_F(RunFolder, RecordsAreFlushedWhenAsked) {
  Monitor monitor(Session{.root = true, .folder = folder_});
  test::CallRecord record(std::filesystem::canonical(folder_));
  monitor.Happened({.name = "restart", .host = "node1", .text = ""});
  monitor.SyncRecords();
  std::vector<std::string> calls;
  for (const test::Call& call : record.Stop()) {
    calls.push_back(fmt::format("{} {}", NameOf(call.kind), call.path));
  }
  EXPECT_THAT(calls, testing::ElementsAre("write metrics.jsonl", "sync metrics.jsonl"));
}

TEST_F(RunFolder, PlantedTemporaryIsNotFollowed) {
  WriteBytes(In("victim"), "precious");
  for (const char* target : {"victim", "nowhere"}) {
    std::filesystem::create_symlink(In(target), In("deck.in.tmp"));
    PrepareRunFolder(folder_, false, "deck");
    EXPECT_EQ(ReadBytes(In("deck.in")), MarkEnds("deck"));
    EXPECT_FALSE(std::filesystem::is_symlink(In("deck.in")));
  }
  EXPECT_EQ(ReadBytes(In("victim")), "precious");
  EXPECT_FALSE(std::filesystem::exists(In("nowhere")));
}

TEST_F(RunFolder, MayExistWithoutARun) {
  WriteBytes(In("notes.txt"), "mine");
  PrepareRunFolder(folder_, false, "deck");
  EXPECT_EQ(ReadBytes(In("notes.txt")), "mine");
  EXPECT_EQ(ReadBytes(In("deck.in")), MarkEnds("deck"));
}

TEST_F(RunFolder, IsRefusedWhenItHoldsARun) {
  PrepareRunFolder(In("a"), false, "first");
  std::filesystem::create_directory(In("a/checkpoints/step_00000010"));
  ExpectRefused(In("a"), In("a") + ": holds a run already\n  continue it with -r " + In("a") +
                             ", or choose another job.name or job.output");
  EXPECT_EQ(ReadBytes(In("a/deck.in")), MarkEnds("first"));
  EXPECT_THROW(CheckRunFolder(In("a"), false), Error);
  EXPECT_NO_THROW(CheckRunFolder(In("a"), true));
}

TEST_F(RunFolder, IsFreeWhenItsRunDiedBeforeACheckpoint) {
  PrepareRunFolder(In("a"), false, "first");
  CheckRunFolder(In("a"), false);
  EXPECT_EQ(ReadBytes(In("a/deck.in")), MarkEnds("first")) << "checking changes nothing";
  PrepareRunFolder(In("a"), false, "second");
  EXPECT_EQ(ReadBytes(In("a/deck.in")), MarkEnds("second"));
}

TEST_F(RunFolder, IsTakenOverOnResume) {
  PrepareRunFolder(In("a"), false, "first");
  PrepareRunFolder(In("a"), true, "second");
  EXPECT_EQ(ReadBytes(In("a/deck.in")), MarkEnds("second"));
}

TEST_F(RunFolder, ImpossiblePathsAreInputErrors) {
  WriteBytes(In("file"), "");
  ExpectRefused(In("file"), "is a file, not a folder");
  ExpectRefused(In("file/run"), "cannot be made: Not a directory");
  ExpectRefused("", "job.output is empty");
}

}  // namespace
}  // namespace trireme::report
