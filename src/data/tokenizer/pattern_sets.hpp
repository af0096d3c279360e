// The parts of a pattern that stand for one character: escapes, sets and classes, read as Oniguruma
// does and written for PCRE2.
#ifndef TRIREME_SRC_DATA_TOKENIZER_PATTERN_SETS_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_PATTERN_SETS_HPP_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_PATTERN_SETS_HPP_
