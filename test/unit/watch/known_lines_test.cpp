// Lines of a file that was cut and goes on are told once.
#include "run_state.hpp"

#include <gtest/gtest.h>

#include <string>

namespace trireme::tools {
namespace {

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

}  // namespace
}  // namespace trireme::tools
