// From regular expressions of `tokenizers` (Oniguruma's, in Ruby's syntax) to those of PCRE2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace trireme::data {

// Characters that came to Unicode after the version that regular expressions know everywhere.

// Characters of Unicode 15 to 16, and one that changed its category; PCRE2 10.40 to 10.42 has the
// tables of Unicode 14, the `tokenizers` of today those of 16.
struct LateRange {
  char32_t first, last;
  const char* category;  // general category, "Lu"
};
std::span<const LateRange> LateCharacters();

// True if one of them is in a text of valid UTF-8.
bool HasLateCharacter(std::string_view text);

// Ranges for a class of PCRE2, "\x{1C89}\x{A7CB}-\x{A7CC}", of those in a general category or a
// group of them ("Lu", "L"), or of the script Han ("Han").
std::string LateRangesOf(std::string_view property);

// The parts of a pattern that stand for one character: escapes, sets and classes, read as Oniguruma
// does and written for PCRE2.

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
// True for a character that is itself in any pattern.
inline bool IsPlain(char c) { return IsDigit(c) || IsLetter(c) || (c & 0x80) != 0; }

template <typename List>
bool Contains(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Items of a class.
struct PatternItems {
  std::string plain, late;  // for texts without late characters; for any
  void Add(const PatternItems& more) {
    plain += more.plain;
    late += more.late;
  }
  void Add(const std::string& text) { Add({text, text}); }
};

class PatternSets {
 protected:
  static constexpr int kMostDepth = 50;  // of brackets

  explicit PatternSets(std::string_view expression) : in_(expression) {}

  [[noreturn]] static void Refuse(const std::string& what);
  [[noreturn]] static void Unsupported(std::string_view construct);  // by its name

  bool Ended() const { return at_ == in_.size(); }
  bool Next(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool Take(std::string_view text);  // moves on if it is next

  // Code of the escaped character at at_, or nothing for an escape that is a set.
  std::optional<std::uint32_t> EscapedCode();
  // Adds \d, \h, \s, \w, \p{...}; at_ is at the letter, which may be a capital.
  void Set(char letter, PatternItems& items);
  struct Class {
    PatternItems items;
    bool negated = false;
  };
  Class ReadClass(int depth);  // after its opening bracket
  // Beyond ASCII, several characters may be another's case.
  void RequireAscii(std::uint32_t code) const;

  std::string_view in_;
  std::size_t at_ = 0;
  bool caseless_ = false;  // within (?i)

 private:
  std::uint32_t HexDigits(std::size_t least, std::size_t most);
  void ClassItem(int depth, bool first, PatternItems& items);
  // Code of a character, or nothing for a set, whose items are added.
  std::optional<std::uint32_t> ClassCode(PatternItems& items);
};

// Expressions for PCRE2 with the options UTF and UCP, and end of line LF.
struct PcrePattern {
  std::string plain;          // for texts without late characters (LateCharacters)
  std::string late;           // for any text
  bool looks_behind = false;  // a match depends on the text before its begin
};

// Same matches as Oniguruma's. Throws InputError, with the construct's name alone, for what is not
// known to be the same in both: \b, (?m), &&, classes of POSIX, back references and others.
PcrePattern TranslatePattern(const std::string& expression);

// Expression of a literal.
std::string QuotePattern(const std::string& literal);

}  // namespace trireme::data
