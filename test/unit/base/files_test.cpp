// Files: descriptors, files that appear whole or not at all, and the places of Trireme's own files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "call_record.hpp"
#include "folders.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/program.hpp"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using test::ReadBytes;
using test::WriteBytes;

// New files under names that somebody else has taken first.

using NewFile = test::FolderTest;

TEST_F(NewFile, FollowsNoLinkAndReusesNoFile) {
  WriteBytes(In("victim"), "precious");
  WriteBytes(In("leftover"), "half a file");
  fs::create_hard_link(In("victim"), In("hard"));
  fs::create_symlink(In("victim"), In("link"));
  fs::create_symlink(In("nowhere"), In("dangling"));
  for (const char* name : {"leftover", "hard", "link", "dangling", "fresh"}) {
    const int file = CreateNewFile(In(name));
    ASSERT_GE(file, 0) << name << ": " << errno;
    EXPECT_TRUE(WriteAll(file, "new"));
    EXPECT_NE(fcntl(file, F_GETFD) & FD_CLOEXEC, 0);
    close(file);
    EXPECT_FALSE(fs::is_symlink(In(name)));
    EXPECT_EQ(ReadBytes(In(name)), "new");
  }
  EXPECT_EQ(ReadBytes(In("victim")), "precious");
  EXPECT_FALSE(fs::exists(In("nowhere")));
}

TEST_F(NewFile, SaysWhyNot) {
  fs::create_directory(In("folder"));
  EXPECT_EQ(CreateNewFile(In("folder")), -1);
  EXPECT_EQ(errno, EISDIR);
  EXPECT_EQ(CreateNewFile(In("missing/file")), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(NewFile, ReplacementTakesThePlaceOfALink) {
  WriteBytes(In("victim"), "precious");
  fs::create_symlink(In("victim"), In("a"));
  fs::create_symlink(In("victim"), In("a.tmp"));
  {
    Replacement file(In("a"), In("a.tmp"));
    file.Write("one ");
    file.Write("two");
    EXPECT_EQ(file.Place(), std::error_code());
  }
  EXPECT_EQ(ReadBytes(In("a")), "one two");
  EXPECT_EQ(ReadBytes(In("victim")), "precious");
  EXPECT_FALSE(fs::is_symlink(In("a")));
  EXPECT_FALSE(fs::exists(fs::symlink_status(In("a.tmp"))));
}

TEST_F(NewFile, ReplacementLeavesNothingOnFailure) {
  WriteBytes(In("kept"), "old");
  { Replacement(In("kept"), In("kept.tmp")).Write("abandoned"); }
  EXPECT_EQ(ReadBytes(In("kept")), "old");
  fs::create_directory(In("folder"));
  fs::create_directory(In("folder/full"));
  Replacement file(In("folder"), In("folder.tmp"));
  file.Write("text");
  EXPECT_TRUE(file.Place());
  Replacement missing(In("no/file"), In("no/file.tmp"));
  missing.Write("text");
  EXPECT_EQ(missing.Place(), std::errc::no_such_file_or_directory);
  for (const char* name : {"kept.tmp", "folder.tmp"}) EXPECT_FALSE(fs::exists(In(name))) << name;
}

// "kind path" of each call within the folder that `work` makes.
std::vector<std::string> CallsOf(const std::string& folder, const std::function<void()>& work) {
  test::CallRecord record(fs::canonical(folder).string());
  work();
  std::vector<std::string> calls;
  for (const test::Call& call : record.Stop()) {
    calls.push_back(std::string(test::NameOf(call.kind)) + " " + call.path);
  }
  return calls;
}

// The text is on the disk before it gets its name; a durable name is on the disk, too.
TEST_F(NewFile, ReplacementIsOnTheDiskBeforeItsName) {
  const auto calls = [&](Replacement::Name name) {
    return CallsOf(folder_, [&] {
      Replacement file(In("a"), DraftName(In("a")));
      file.Write("text");
      EXPECT_FALSE(file.Place(name));
    });
  };
  using test::Call;
  const auto named = [](Call::Kind kind, const std::string& path) {
    return std::string(test::NameOf(kind)) + " " + path;
  };
  std::vector<std::string> wanted = {
      named(Call::Kind::kCreate, "a.tmp"), named(Call::Kind::kWrite, "a.tmp"),
      named(Call::Kind::kSync, "a.tmp"), named(Call::Kind::kRename, "a.tmp")};
  EXPECT_EQ(calls(Replacement::Name::kMayBeLost), wanted);
  wanted.push_back(named(Call::Kind::kSync, ""));
  EXPECT_EQ(calls(Replacement::Name::kDurable), wanted);
  const std::vector<std::string> renamed = {named(Call::Kind::kRename, "a"),
                                            named(Call::Kind::kSync, "")};
  EXPECT_EQ(CallsOf(folder_, [&] { RenameDurably(In("a"), In("b")); }), renamed);
  EXPECT_THROW(RenameDurably(In("a"), In("b")), Error);
}

TEST(DraftNames, FitWhereverTheNameDoes) {
  EXPECT_EQ(DraftName("a/b"), "a/b.tmp");
  EXPECT_EQ(DraftName("b"), "b.tmp");
  const std::string longest(255, 'x');
  EXPECT_EQ(DraftName("a/" + longest), "a/" + longest.substr(4) + ".tmp");
  EXPECT_EQ(DraftName(longest.substr(4)), longest.substr(4) + ".tmp");
}

// Descriptors, and folders that are durable in those above them.

using Folders = test::FolderTest;

TEST_F(Folders, AreMadeWithinMadeFolders) {
  EXPECT_EQ(MakeFolderDurably(In("a/b/c/")), 0);
  EXPECT_TRUE(fs::is_directory(In("a/b/c")));
  EXPECT_EQ(MakeFolderDurably(In("a/b/c")), 0);
  test::WriteBytes(In("file"), "");
  EXPECT_EQ(MakeFolderDurably(In("file/d")), ENOTDIR);
  EXPECT_EQ(MakeFolderDurably(In("file")), ENOTDIR);
}

TEST_F(Folders, ThatDoNotExistCannotBeSynced) {
  EXPECT_EQ(SyncToDisk(folder_), 0);
  EXPECT_EQ(SyncToDisk(In("none")), ENOENT);
}

TEST_F(Folders, AreClosedOnce) {
  Descriptor folder(folder_, O_RDONLY);
  ASSERT_TRUE(folder.Valid());
  Descriptor moved(std::move(folder));
  EXPECT_FALSE(folder.Valid());  // NOLINT(bugprone-use-after-move): what a move leaves
  EXPECT_EQ(moved.Close(), 0);
  EXPECT_EQ(moved.Close(), 0);
  EXPECT_FALSE(Descriptor(In("none"), O_RDONLY).Valid());
}

// Places of Trireme's own files, for a program in a prefix and in a build folder.

using Installation = test::FolderTest;

TEST_F(Installation, SharedFilesAreFoundFromTheProgramsPlace) {
  EXPECT_EQ(SharedFolder(""), "");
  EXPECT_EQ(SharedFolder(In("prefix/bin/trireme")), "");
  fs::create_directories(In("prefix/share/trireme/input"));
  fs::create_directories(In("prefix/bin"));
  EXPECT_EQ(SharedFolder(In("prefix/bin/trireme")), In("prefix/share/trireme"));
  fs::create_directories(In("tree/input"));
  fs::create_directories(In("tree/build"));
  EXPECT_EQ(SharedFolder(In("tree/build/trireme")), In("tree/"));
}

TEST_F(Installation, ThisProgramsFileIsThere) { EXPECT_TRUE(fs::is_regular_file(ProgramFile())); }

}  // namespace
}  // namespace trireme
