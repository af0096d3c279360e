// Run folders: made, refused, resumed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "call_record.hpp"
#include "folder_test.hpp"
#include "trireme/base/error.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {
namespace {

using test::FolderTest;
using test::ReadBytes;
using test::WriteBytes;
using testing::HasSubstr;

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
                             ", or choose another job.output");
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
