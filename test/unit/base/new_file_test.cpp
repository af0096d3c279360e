// New files under names that somebody else has taken first.
#include "trireme/base/new_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class NewFile : public testing::Test {
 protected:
  NewFile() : folder_((fs::temp_directory_path() / "new_file_XXXXXX").string()) {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~NewFile() override { fs::remove_all(folder_); }
  std::string In(const std::string& name) const { return folder_ + "/" + name; }
  std::string Text(const std::string& name) const {
    std::ifstream file(In(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Put(const std::string& name, const std::string& text) const {
    std::ofstream(In(name)) << text;
  }

  std::string folder_;
};

TEST_F(NewFile, FollowsNoLinkAndReusesNoFile) {
  Put("victim", "precious");
  Put("leftover", "half a file");
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
    EXPECT_EQ(Text(name), "new");
  }
  EXPECT_EQ(Text("victim"), "precious");
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
  Put("victim", "precious");
  fs::create_symlink(In("victim"), In("a"));
  fs::create_symlink(In("victim"), In("a.tmp"));
  {
    Replacement file(In("a"), In("a.tmp"));
    file.Write("one ");
    file.Write("two");
    EXPECT_EQ(file.Place(), std::error_code());
  }
  EXPECT_EQ(Text("a"), "one two");
  EXPECT_EQ(Text("victim"), "precious");
  EXPECT_FALSE(fs::is_symlink(In("a")));
  EXPECT_FALSE(fs::exists(fs::symlink_status(In("a.tmp"))));
}

TEST_F(NewFile, ReplacementLeavesNothingOnFailure) {
  Put("kept", "old");
  { Replacement(In("kept"), In("kept.tmp")).Write("abandoned"); }
  EXPECT_EQ(Text("kept"), "old");
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

}  // namespace
}  // namespace trireme
