// New files under names that somebody else has taken first.
#include "trireme/base/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "folder_test.hpp"

namespace trireme {
namespace {

namespace fs = std::filesystem;

using test::ReadBytes;
using test::WriteBytes;
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

TEST(DraftNames, FitWhereverTheNameDoes) {
  EXPECT_EQ(DraftName("a/b"), "a/b.tmp");
  EXPECT_EQ(DraftName("b"), "b.tmp");
  const std::string longest(255, 'x');
  EXPECT_EQ(DraftName("a/" + longest), "a/" + longest.substr(4) + ".tmp");
  EXPECT_EQ(DraftName(longest.substr(4)), longest.substr(4) + ".tmp");
}

}  // namespace
}  // namespace trireme
