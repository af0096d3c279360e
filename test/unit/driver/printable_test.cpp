// Text that a model writes is shown safely.
#include "generator.hpp"

#include <gtest/gtest.h>

namespace trireme::test {
namespace {

using tasks::Printable;

TEST(Printable, LeavesTextAlone) {
  const std::string text = "Jos\xC3\xA9 , \xE2\x82\xAC 5\tand \xF0\x9F\x9A\xA2\n";
  EXPECT_EQ(Printable(text), text);
}

TEST(Printable, ReplacesWhatATerminalWouldObey) {
  EXPECT_EQ(Printable("a\x1B[2Jb"), "a\xEF\xBF\xBD[2Jb");
  EXPECT_EQ(Printable(std::string("\0\x7F", 2)), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Printable, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(Printable("\xFFz"), "\xEF\xBF\xBDz");
  EXPECT_EQ(Printable("\xE2\x82"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // cut off
}

}  // namespace
}  // namespace trireme::test
