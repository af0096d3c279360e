// Tokenisation by the rules of mteval-v13a, counts of n-grams, and the scores; WikiText's rules.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "trireme/base/utf8.hpp"
#include "trireme/tasks/evaluate.hpp"

namespace trireme::tasks {

namespace {

using Characters = std::u32string;
using GramCounts = std::unordered_map<Characters, std::int64_t>;

// Decodes UTF-8; an invalid byte becomes U+DC00 + byte, as in Python's surrogateescape.
Characters Decode(std::string_view text) {
  Characters characters;
  for (std::size_t at = 0; at < text.size();) {
    if (const auto character = FirstCharacter(text.substr(at))) {
      characters += character->code;
      at += character->bytes;
    } else {
      characters += static_cast<char32_t>(0xDC00u + static_cast<unsigned char>(text[at]));
      ++at;
    }
  }
  return characters;
}

// Blanks as Python's str.split defines them: Unicode white space and U+001C to U+001F.
bool IsBlank(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsDigit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool IsStop(char32_t c) { return c == U'.' || c == U','; }

// Replaces all matches from left to right, without overlaps.
template <typename Char>
void ReplaceAll(std::basic_string<Char>& text,
                std::type_identity_t<std::basic_string_view<Char>> what,
                std::type_identity_t<std::basic_string_view<Char>> by) {
  std::basic_string<Char> result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, begin)) {
    result.append(text, begin, at - begin).append(by);
    begin = at + what.size();
  }
  text = std::move(result.append(text, begin));
}

// The blank, and ASCII punctuation and signs except ' , - and .
bool IsSign(char32_t c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
         (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

// Puts a blank between neighbouring characters that fit `first` and `second`, and `before` and
// `after` around the two. Scans from the left; a pair does not overlap with the next.
template <typename First, typename Second>
Characters Separate(const Characters& text, First first, Second second, const Characters& before,
                    const Characters& after) {
  Characters separated;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (at + 1 < text.size() && first(text[at]) && second(text[at + 1])) {
      separated += before;
      separated += text[at++];
      separated += U' ';
      separated += text[at];
      separated += after;
    } else {
      separated += text[at];
    }
  }
  return separated;
}

std::vector<Characters> WordsOf(const Characters& text) {
  std::vector<Characters> words;
  bool inside = false;
  for (const char32_t c : text) {
    const bool blank = IsBlank(c);
    if (!blank && !inside) words.emplace_back();
    if (!blank) words.back() += c;
    inside = !blank;
  }
  return words;
}

// Tokenises as sacrebleu's 13a.
std::vector<Characters> Tokenise(Characters text) {
  while (!text.empty() && IsBlank(text.back())) text.pop_back();
  ReplaceAll(text, U"<skipped>", U"");
  ReplaceAll(text, U"-\n", U"");
  ReplaceAll(text, U"\n", U" ");
  ReplaceAll(text, U"&quot;", U"\"");
  ReplaceAll(text, U"&amp;", U"&");
  ReplaceAll(text, U"&lt;", U"<");
  ReplaceAll(text, U"&gt;", U">");
  Characters spaced = U" ";
  for (const char32_t c : text) spaced += IsSign(c) ? Characters{U' ', c, U' '} : Characters{c};
  spaced += U' ';
  const auto other = [](char32_t c) { return !IsDigit(c); };
  spaced = Separate(spaced, other, IsStop, U"", U" ");
  spaced = Separate(spaced, IsStop, other, U" ", U"");
  spaced = Separate(
      spaced, IsDigit, [](char32_t c) { return c == U'-'; }, U"", U" ");
  return WordsOf(spaced);
}

GramCounts WordGrams(const std::vector<Characters>& words, std::size_t order) {
  GramCounts counts;
  for (std::size_t at = 0; at + order <= words.size(); ++at) {
    Characters gram;
    for (std::size_t i = at; i < at + order; ++i) gram += words[i] + U' ';
    ++counts[gram];
  }
  return counts;
}

GramCounts CharacterGrams(const Characters& text, std::size_t order) {
  GramCounts counts;
  for (std::size_t at = 0; at + order <= text.size(); ++at) ++counts[text.substr(at, order)];
  return counts;
}

ScoreCounts::Grams Match(const GramCounts& hypothesis, const GramCounts& reference) {
  ScoreCounts::Grams grams;
  for (const auto& [gram, count] : reference) grams.reference += count;
  for (const auto& [gram, count] : hypothesis) {
    grams.hypothesis += count;
    const auto found = reference.find(gram);
    if (found != reference.end()) grams.matches += std::min(count, found->second);
  }
  return grams;
}

Characters WithoutBlanks(Characters text) {
  std::erase_if(text, IsBlank);
  return text;
}

template <std::size_t n>
void Add(std::array<ScoreCounts::Grams, n>& to, const std::array<ScoreCounts::Grams, n>& from) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i].hypothesis += from[i].hypothesis;
    to[i].reference += from[i].reference;
    to[i].matches += from[i].matches;
  }
}

using Rule = std::pair<std::string_view, std::string_view>;

// Bytes of the white-space character at offset `at`; 0 if there is none.
std::size_t WhiteAt(std::string_view text, std::size_t at) {
  const auto character = FirstCharacter(text.substr(at));
  return character && IsBlank(character->code) ? character->bytes : 0;
}

std::string_view Trimmed(std::string_view text) {
  while (const std::size_t bytes = WhiteAt(text, 0)) text.remove_prefix(bytes);
  for (bool more = true; more;) {
    more = false;
    for (std::size_t bytes = 1; bytes <= 3 && bytes <= text.size() && !more; ++bytes) {
      more = WhiteAt(text, text.size() - bytes) == bytes;
      if (more) text.remove_suffix(bytes);
    }
  }
  return text;
}

// Trims blanks inside each pair of marks.
std::string TrimBetween(const std::string& text, char opening, char closing) {
  std::string result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = text.find(opening); at != std::string::npos;
       at = text.find(opening, begin)) {
    const std::size_t end = text.find(closing, at + 1);
    if (end == std::string::npos) break;
    result.append(text, begin, at + 1 - begin);
    result.append(Trimmed(std::string_view(text).substr(at + 1, end - at - 1)));
    result += closing;
    begin = end + 1;
  }
  return result.append(text, begin);
}

constexpr std::array<Rule, 10> kBefore = {{{"s '", "s'"},
                                           {" @-@ ", "-"},
                                           {" @,@ ", ","},
                                           {" @.@ ", "."},
                                           {" : ", ": "},
                                           {" ; ", "; "},
                                           {" . ", ". "},
                                           {" ! ", "! "},
                                           {" ? ", "? "},
                                           {" , ", ", "}}};
constexpr std::array<Rule, 8> kAfter = {{{"= = = =", "===="},
                                         {"= = =", "==="},
                                         {"= =", "=="},
                                         {" \xC2\xB0 ", "\xC2\xB0"},  // degree sign
                                         {" \n", "\n"},
                                         {"\n ", "\n"},
                                         {" N ", " 1 "},
                                         {" 's", "'s"}}};

}  // namespace

ScoreCounts& ScoreCounts::operator+=(const ScoreCounts& other) {
  texts += other.texts;
  exact += other.exact;
  hypothesis_words += other.hypothesis_words;
  reference_words += other.reference_words;
  Add(words, other.words);
  Add(characters, other.characters);
  return *this;
}

ScoreCounts CountMatches(std::string_view hypothesis, std::string_view reference) {
  const Characters theirs = Decode(hypothesis), wanted = Decode(reference);
  ScoreCounts counts{.texts = 1, .exact = hypothesis == reference ? 1 : 0};
  const std::vector<Characters> their_words = Tokenise(theirs), words = Tokenise(wanted);
  counts.hypothesis_words = std::ssize(their_words);
  counts.reference_words = std::ssize(words);
  for (std::size_t i = 0; i < counts.words.size(); ++i) {
    counts.words[i] = Match(WordGrams(their_words, i + 1), WordGrams(words, i + 1));
  }
  const Characters their_text = WithoutBlanks(theirs), text = WithoutBlanks(wanted);
  for (std::size_t i = 0; i < counts.characters.size(); ++i) {
    ScoreCounts::Grams& grams = counts.characters[i];
    grams = Match(CharacterGrams(their_text, i + 1), CharacterGrams(text, i + 1));
    // If the reference is too short for this order, the text does not count for it.
    if (grams.reference == 0) grams.hypothesis = 0;
  }
  return counts;
}

double Bleu(const ScoreCounts& counts) {
  // Geometric mean of the precisions. The first order without a match counts as 1/2 match, the next
  // one as 1/4, and so on (sacrebleu's "exp", mteval's smoothing).
  double halves = 1, logarithms = 0;
  bool matches = false;
  for (const ScoreCounts::Grams& grams : counts.words) {
    if (grams.hypothesis == 0) return 0;
    matches = matches || grams.matches > 0;
    double precision = static_cast<double>(grams.matches);
    if (grams.matches == 0) precision = 1 / (halves *= 2);
    logarithms += std::log(100 * precision / static_cast<double>(grams.hypothesis));
  }
  if (!matches) return 0;
  const auto theirs = static_cast<double>(counts.hypothesis_words);
  const auto wanted = static_cast<double>(counts.reference_words);
  const double brevity = theirs < wanted ? std::exp(1 - wanted / theirs) : 1;
  return brevity * std::exp(logarithms / ScoreCounts::kWordOrders);
}

double ChrF(const ScoreCounts& counts) {
  constexpr double kFactor = 4;  // beta squared: recall counts twice as much as precision
  double precision = 0, recall = 0;
  int orders = 0;
  for (const ScoreCounts::Grams& grams : counts.characters) {
    if (grams.hypothesis == 0 || grams.reference == 0) continue;
    precision += static_cast<double>(grams.matches) / static_cast<double>(grams.hypothesis);
    recall += static_cast<double>(grams.matches) / static_cast<double>(grams.reference);
    ++orders;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * (1 + kFactor) * precision * recall / (kFactor * precision + recall);
}

double ExactMatch(const ScoreCounts& counts) {
  if (counts.texts == 0) return 0;
  return 100 * static_cast<double>(counts.exact) / static_cast<double>(counts.texts);
}

std::string ExactMatchText(const ScoreCounts& counts) {
  constexpr std::int64_t kTenths = 1000;  // 100% in tenths of a per cent
  const std::int64_t tenths = counts.texts == 0 ? 0 : counts.exact * kTenths / counts.texts;
  return fmt::format("{}.{}", tenths / 10, tenths % 10);
}

std::string DetokeniseWikitext(std::string text) {
  for (const auto& [what, by] : kBefore) ReplaceAll(text, what, by);
  for (const char* marks : {"()", "[]", "{}", "\"\"", "''"}) {
    text = TrimBetween(text, marks[0], marks[1]);
  }
  for (const auto& [what, by] : kAfter) ReplaceAll(text, what, by);
  return text;
}

}  // namespace trireme::tasks
