// WikiText's detokenisation: replacements of fixed strings, and blanks trimmed within brackets and
// quotation marks.
#include "trireme/tasks/detokenise.hpp"

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace trireme::tasks {

namespace {

using Rule = std::pair<std::string_view, std::string_view>;

// From left to right, each match after the end of the one before.
std::string Replace(const std::string& text, const Rule& rule) {
  std::string result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = text.find(rule.first); at != std::string::npos;
       at = text.find(rule.first, begin)) {
    result.append(text, begin, at - begin).append(rule.second);
    begin = at + rule.first.size();
  }
  return result.append(text, begin);
}

// Bytes of the white space that begins at `at`, 0 for other text: that of Unicode, as Python's
// regular expressions know it.
std::size_t WhiteAt(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.empty()) return 0;
  const auto byte = static_cast<unsigned char>(rest.front());
  if (byte == ' ' || (byte >= 0x09 && byte <= 0x0D) || (byte >= 0x1C && byte <= 0x1F)) return 1;
  if (rest.starts_with("\xC2\x85") || rest.starts_with("\xC2\xA0")) return 2;
  if (rest.size() < 3) return 0;
  if (rest.starts_with("\xE2\x80")) {  // U+2000 to U+200A, U+2028, U+2029, U+202F
    const auto last = static_cast<unsigned char>(rest[2]);
    return (last >= 0x80 && last <= 0x8A) || last == 0xA8 || last == 0xA9 || last == 0xAF ? 3 : 0;
  }
  for (const std::string_view other : {"\xE1\x9A\x80", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    if (rest.starts_with(other)) return 3;
  }
  return 0;
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

// Trims what stands between a mark and the next closing one.
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

std::string DetokeniseWikitext(std::string text) {
  for (const Rule& rule : kBefore) text = Replace(text, rule);
  text = TrimBetween(text, '(', ')');
  text = TrimBetween(text, '[', ']');
  text = TrimBetween(text, '{', '}');
  text = TrimBetween(text, '"', '"');
  text = TrimBetween(text, '\'', '\'');
  for (const Rule& rule : kAfter) text = Replace(text, rule);
  return text;
}

}  // namespace trireme::tasks
