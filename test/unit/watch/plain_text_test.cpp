// Text from files: nothing of it may reach a terminal as a command.
#include "run_state.hpp"

#include <gtest/gtest.h>

namespace trireme::tools {
namespace {

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

}  // namespace
}  // namespace trireme::tools
