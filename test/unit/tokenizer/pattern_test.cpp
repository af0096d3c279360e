// Patterns: what is read as Oniguruma reads it, what is refused by name, characters of Unicode 15
// and 16, and matches that stay whatever follows.
#include "bpe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "pattern_syntax.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Matches(const std::string& expression, const std::string& text) {
  const Pattern pattern(expression, "here");
  Pattern::Search search;
  search.Begin(text);
  std::vector<std::string> matches;
  for (std::size_t from = 0;;) {
    const auto [begin, end] = search.First(pattern, text, from);
    if (begin == text.size()) return matches;
    matches.push_back(text.substr(begin, end - begin));
    from = end;
  }
}

// The expectations are those of `tokenizers` 0.23; test patterns_parity has more.
TEST(Pattern, IsReadAsInRubysSyntax) {
  EXPECT_THAT(Matches("^a", "a\na\n"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches("a$", "a\nab\na"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches("a{1,2}+", "aaaaa"), ElementsAre("aaaaa"));
  EXPECT_THAT(Matches("(?:ab){,2}+c", "ababababc"), ElementsAre("ababababc"));
  EXPECT_THAT(Matches("a++b|a?+", "aaab"), ElementsAre("aaab"));
  EXPECT_THAT(Matches("\\h+", "xfaceg"), ElementsAre("face"));
  EXPECT_THAT(Matches("\\w+", "a\u0301\u2460 b\u00B2_\u203F-"),
              ElementsAre("a\u0301", "b\u00B2_\u203F"));
  EXPECT_THAT(Matches("[^(\\s|[.,!])]+", "a|b(c).d"), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(Matches("[^\\S\\r\\n]+", "a \t\n\u180E "), ElementsAre(" \t", " "));
  EXPECT_THAT(Matches("\\p{Han}+", "\u6F22\u3001\u5B57"), ElementsAre("\u6F22", "\u5B57"));
  EXPECT_THAT(Matches("\\v|\\x41|\\u0042|\\x{43}", "\n\vABC"), ElementsAre("\v", "A", "B", "C"));
  EXPECT_THAT(Matches("(?i)a|b{x}", "AB{x}"), ElementsAre("A", "B{x}"));
  EXPECT_THAT(Matches(".", "a\r\n"), ElementsAre("a", "\r"));
}

TEST(Pattern, KnowsCharactersOfUnicode16) {
  const std::string capital = "\u1C89", letter = "\u1C8A", digit = "\U00010D40", mark = "\u0897";
  EXPECT_TRUE(HasLateCharacter("plain text " + capital));
  EXPECT_TRUE(HasLateCharacter("\U000323AF"));
  EXPECT_FALSE(HasLateCharacter("größer \u6F22 \U0001F600 \u1C88"));
  EXPECT_THAT(Matches("\\p{L}+|\\p{N}", "a" + capital + letter + digit),
              ElementsAre("a" + capital + letter, digit));
  EXPECT_THAT(Matches("[\\p{Lu}\\p{M}]+", "a" + capital + mark + letter),
              ElementsAre(capital + mark));
  EXPECT_THAT(Matches("[^\\p{L}\\p{N}]+|\\P{L}", capital + "!" + digit), ElementsAre("!", digit));
  EXPECT_THAT(Matches("\\w+|\\W", letter + digit + "!"), ElementsAre(letter + digit, "!"));
}

TEST(Pattern, RefusesConstructsByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\\bx", "\\b is not supported"},
      {"x\\Z", "\\Z is not supported"},
      {"\\Gx", "\\G is not supported"},
      {"(a)\\1", "\\1 is not supported"},
      {"\\pL", "\\p without braces is not supported"},
      {"\\p{Greek}", "\\p{Greek} is not supported"},
      {"\\p{^L}", "\\p{^L} is not supported"},
      {"\\p{Cn}", "\\p{Cn} is not supported"},
      {"(?m).", "(?m) is not supported"},
      {"a(?i)b", "(?i) is not supported"},
      {"(?<name>a)", "(?<n is not supported"},
      {"[a-z&&b]", "&& in a class is not supported"},
      {"[[:alpha:]]", "[:...:] is not supported"},
      {"[a[^b]]", "[^...] within a class is not supported"},
      {"[\\W_]", "\\W in a class is not supported"},
      {"[]a]", "']' at the beginning of a class"},
      {"[a-c-e]", "'-' within a class"},
      {"[z-a]", "a range in a class"},
      {"[a", "'[' without its ']'"},
      {"(a", "'(' without its ')'"},
      {"a)", "')' without its '('"},
      {"a+*", "a repeat of a repeat"},
      {"a{2}{3}", "a repeat of a repeat"},
      {"a{2}?", "{2}? is not supported"},
      {"a{3,1}", "{3,1} is not supported"},
      {"*a", "'*' has nothing to repeat"},
      {"\\xe9", "\\x of a byte beyond ASCII"},
      {"(?i:stra)", "'st' within (?i)"},
      {"(?i:\u00DF)", "a character beyond ASCII within (?i)"},
      {"(?i:\\p{Lu})", "\\p{Lu} within (?i)"},
      {std::string(100, '(') + "a" + std::string(100, ')'), "more than 50 open brackets"},
  };
  for (const auto& [expression, message] : cases) {
    try {
      const Pattern pattern(expression, "tokenizer.json: pre_tokenizer");
      ADD_FAILURE() << expression << " is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), HasSubstr("tokenizer.json: pre_tokenizer: the pattern '"));
      EXPECT_THAT(error.what(), HasSubstr(message)) << expression;
    }
  }
}

TEST(Pattern, LongRunsDoNotHitALimit) {
  const std::string blanks(12'000'000, ' ');
  EXPECT_THAT(Matches("\\s+(?!\\S)|\\s+", blanks + "x"), ElementsAre(blanks.substr(1), " "));
}

TEST(Pattern, TellsMatchesThatStayWhateverFollows) {
  const Pattern pattern("\\p{L}+|\\p{N}|\\s+(?!\\S)|\\s", "here");
  Pattern::Search search;
  const auto stays = [&](const std::string& text) {
    search.Begin(text);
    return search.FirstWhateverFollows(pattern, text, 0).second;
  };
  EXPECT_EQ(stays("ab "), 2U);
  EXPECT_EQ(stays("ab"), 2U) << "no match: the text's size";
  EXPECT_EQ(search.FirstWhateverFollows(pattern, "ab", 0).first, 2U);
  EXPECT_EQ(stays("12"), 1U);
  EXPECT_EQ(stays("  x"), 1U);
  EXPECT_TRUE(Pattern("(?<=a)b", "here").LooksBehind());
  EXPECT_TRUE(Pattern("b|^a", "here").LooksBehind());
  EXPECT_FALSE(pattern.LooksBehind());
}

}  // namespace
}  // namespace trireme::data
