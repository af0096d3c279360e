// UTF-8: what is well-formed, where a fault begins, code points and back.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "trireme/base/utf8.hpp"

namespace trireme {
namespace {

// Whether the four bytes at most are one character, by the arithmetic of RFC 3629 alone.
bool IsCharacter(const std::string& text) {
  std::size_t at = 0;
  const char32_t code = NextCodePoint(text, at);
  std::string again;
  AppendUtf8(code, again);
  return again == text && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

TEST(Utf8, EveryCodePointGoesThereAndBack) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    std::string text;
    AppendUtf8(code, text);
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    ASSERT_EQ(FirstCharacter(text + "x").has_value(), !surrogate) << static_cast<unsigned>(code);
    ASSERT_EQ(FirstInvalidUtf8("ab" + text), surrogate ? 2 : std::string::npos);
    if (surrogate) continue;
    ASSERT_EQ(FirstCharacter(text)->code, code);
    ASSERT_EQ(FirstCharacter(text)->bytes, text.size());
    ASSERT_EQ(CharacterBytes(text[0]), text.size());
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(WellFormedBytes(text.substr(0, cut)), cut);
      ASSERT_FALSE(FirstCharacter(text.substr(0, cut)).has_value());
    }
  }
}

// All sequences of three bytes, and of four with every second byte and chosen others.
TEST(Utf8, JudgesAllSequences) {
  const std::string some = {'\0', 'a', '\x7F', '\x80', '\x8F', '\x90', '\xBF', '\xC0', '\xFF'};
  for (int lead = 0x80; lead < 0x100; ++lead) {
    for (int second = 0; second < 0x100; ++second) {
      for (const char third : some) {
        std::string text = {static_cast<char>(lead), static_cast<char>(second), third};
        for (int more = 0; more < 2; ++more) {
          bool whole = false;
          for (std::size_t size = 2; size <= text.size() && !whole; ++size) {
            whole = size == CharacterBytes(text[0]) && IsCharacter(text.substr(0, size));
          }
          ASSERT_EQ(FirstCharacter(text).has_value(), whole) << lead << ' ' << second;
          text += '\x80';
        }
      }
    }
  }
}

TEST(Utf8, FaultsAreFoundAtTheirFirstByte) {
  const std::string ascii(37, 'a');
  EXPECT_EQ(FirstInvalidUtf8(""), std::string::npos);
  EXPECT_EQ(FirstInvalidUtf8(ascii), std::string::npos);
  for (const char* bad : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                          "\xF5\x80\x80\x80", "\xE2\x82", "\xFF"}) {
    for (std::size_t at = 0; at < ascii.size(); ++at) {
      const std::string before = ascii.substr(0, at) + "\xC3\xA9";
      EXPECT_EQ(FirstInvalidUtf8(before + bad + "z"), before.size()) << bad;
      EXPECT_EQ(FirstInvalidUtf8(before + bad), before.size()) << bad;
    }
  }
  EXPECT_EQ(WellFormedBytes("\xE0\x9F"), 1U);  // the second byte is at fault
  EXPECT_EQ(WellFormedBytes("\xF1\x80\x80z"), 3U);
  EXPECT_EQ(WellFormedBytes("\xC0"), 0U);
  EXPECT_EQ(WellFormedBytes(""), 0U);
}

TEST(Utf8, AsciiEndsAtTheFirstOtherByte) {
  for (std::size_t size = 0; size < 30; ++size) {
    const std::string ascii(size, 'a');
    for (std::size_t from = 0; from <= size; ++from) {
      EXPECT_EQ(AsciiEnd(ascii, from), size);
      EXPECT_EQ(AsciiEnd(ascii + "\x80" + ascii, from), size);
    }
  }
}

// Text of models and decks is shown safely.

TEST(Printable, LeavesTextAlone) {
  const std::string text = "Jos\xC3\xA9 , \xE2\x82\xAC 5\tand \xF0\x9F\x9A\xA2\n";
  EXPECT_EQ(Printable(text), text);
}

TEST(Printable, ReplacesWhatATerminalWouldObey) {
  EXPECT_EQ(Printable("a\x1B[2Jb"), "a\xEF\xBF\xBD[2Jb");
  EXPECT_EQ(Printable(std::string("\0\x7F", 2)), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "2Jb"),
            "\xEF\xBF\xBD"
            "2Jb")
      << "a control sequence in one character";
  EXPECT_EQ(Printable("a\tb\n\xC2\x9B", false, "?"), "a?b??");
}

TEST(Printable, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(Printable("\xFFz"), "\xEF\xBF\xBDz");
  EXPECT_EQ(Printable("\xE2\x82"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // cut off
}

}  // namespace
}  // namespace trireme
