// Reading of files within bounds: never more than that, and a reason for what is not read.
#include "entries.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "temporary_folder.hpp"

namespace trireme::test {
namespace {

using namespace trireme::tools;
using ::testing::HasSubstr;

TEST(SupportEntries, LongFilesKeepWholeLinesOfBothEnds) {
  const TemporaryFolder folder;
  const std::string path = folder.Path() + "/log.txt";
  std::ofstream log(path);
  for (int i = 0; i < 10'000; ++i) log << "line " << i << "\n";
  log.close();
  Contents contents;
  const auto file = ReadBounded(path, {.head = 100, .tail = 200}, true, contents);
  ASSERT_TRUE(file);
  EXPECT_LT(file->text.size(), 400U);
  EXPECT_TRUE(file->text.starts_with("line 0\nline 1\n")) << file->text;
  EXPECT_TRUE(file->text.ends_with("line 9998\nline 9999\n"));
  EXPECT_THAT(file->text, HasSubstr(std::string("\n") + kGapMark));
  EXPECT_THAT(file->note, HasSubstr("left out"));
  const auto whole = ReadBounded(path, {.head = 200'000}, true, contents);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->note, "");
  EXPECT_TRUE(contents.notes.empty());
  // One line longer than the bounds.
  std::ofstream(path) << std::string(1000, 'x');
  EXPECT_LT(ReadBounded(path, {.head = 10, .tail = 10}, true, contents)->text.size(), 100U);
}

TEST(SupportEntries, SaysWhatItDoesNotRead) {
  const TemporaryFolder folder;
  Contents contents;
  EXPECT_FALSE(ReadBounded(folder.Path() + "/none", {.head = 9}, false, contents));
  EXPECT_TRUE(contents.notes.empty());
  EXPECT_FALSE(ReadBounded(folder.Path() + "/none", {.head = 9}, true, contents));
  EXPECT_FALSE(ReadBounded(folder.Path(), {.head = 9}, true, contents));
  const std::string pipe = folder.Path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(ReadBounded(pipe, {.head = 9}, true, contents));
  EXPECT_THAT(contents.notes,
              testing::ElementsAre(HasSubstr("/none: not there"), HasSubstr("not a regular file"),
                                   HasSubstr("/pipe: not a regular file")));
}

}  // namespace
}  // namespace trireme::test
