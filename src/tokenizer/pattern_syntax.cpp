// A descent through the expression: alternatives, atoms with their repeats, classes.
#include "pattern_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "byte_alphabet.hpp"
#include "late_characters.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tokenizer {

namespace {

constexpr int kMostDepth = 50;       // of brackets
constexpr int kMostRepeats = 65535;  // PCRE2's

// Unicode's White_Space, as Rust and Oniguruma understand \s, and its complement. PCRE2 adds
// U+180E.
constexpr const char* kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
// \w of Oniguruma; PCRE2 has neither marks nor letter-like numbers in its own.
constexpr const char* kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";
constexpr std::array kWordCategories = {"L", "M", "Nd", "Nl", "Pc"};
constexpr const char* kHexDigit = "0-9A-Fa-f";

constexpr std::array kProperties = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                    "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                    "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                    "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Han"};
constexpr std::array kCased = {"Lu", "Ll", "Lt"};
// Beginnings of letters that one character may stand for, if case does not count.
constexpr std::array kLigatures = {"ff", "fi", "fl", "ss", "st"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsPlain(char c) { return IsDigit(c) || IsLetter(c) || (c & 0x80) != 0; }

template <typename List>
bool Contains(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Items of a class.
struct Items {
  std::string plain, late;
  void Add(const Items& more) {
    plain += more.plain;
    late += more.late;
  }
  void Add(const std::string& text) { Add({text, text}); }
};

class Translation {
 public:
  explicit Translation(const std::string& expression) : in_(expression) {}

  PcrePattern Result() {
    Alternatives();
    if (at_ != in_.size()) Refuse("')' without its '('");
    return {plain_, late_, looks_behind_};
  }

 private:
  [[noreturn]] static void Refuse(const std::string& what) { throw InputError(what); }
  [[noreturn]] static void Unsupported(std::string_view construct) {
    Refuse(fmt::format("{} is not supported", construct));
  }
  bool Ended() const { return at_ == in_.size(); }
  bool Next(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  void Put(const std::string& text) { Put(Items{text, text}); }
  void Put(const Items& items) {
    plain_ += items.plain;
    late_ += items.late;
  }

  void Alternatives() {
    const std::size_t begin = at_;
    for (;;) {
      while (!Ended() && !Next("|") && !Next(")")) Piece(begin);
      letters_.clear();
      if (!Take("|")) return;
      Put("|");
    }
  }

  // An atom and its repeat. `begin`: of the alternatives.
  void Piece(std::size_t begin) {
    const std::size_t plain = plain_.size(), late = late_.size();
    if (!Atom(begin)) return;
    Repeat(plain, late);
  }

  // False for what cannot be repeated.
  bool Atom(std::size_t begin) {
    const std::size_t from = at_;
    const char c = in_[at_];
    if (!IsPlain(c)) letters_.clear();
    if (c == '(') return Group(begin);
    ++at_;
    if (c == '[') {
      const auto [items, negated] = Class(1);
      Put(negated ? "[^" : "[");
      Put(items);
      Put("]");
      return true;
    }
    if (c == '\\') return Escape();
    if (c == '^' || c == '$') {
      looks_behind_ = looks_behind_ || c == '^';
      Put(c == '^' ? "(?m:^)" : "(?m:$)");
      return false;
    }
    if (c == '*' || c == '+' || c == '?') Refuse(fmt::format("'{}' has nothing to repeat", c));
    if (c == '.') {
      Put(".");
      return true;
    }
    at_ = from;
    Literal();
    return true;
  }

  // The character at at_.
  void Literal() {
    const std::size_t begin = at_;
    const char32_t code = NextCodePoint(in_, at_);
    if (caseless_) {
      RequireAscii(code);
      letters_ += static_cast<char>(code | (code >= 'A' && code <= 'Z' ? 0x20 : 0));
      if (letters_.size() > 2) letters_.erase(0, 1);
      if (Contains(kLigatures, letters_)) {
        Refuse(fmt::format("'{}' within (?i) is not supported", letters_));
      }
    }
    if (IsPlain(in_[begin])) return Put(std::string(in_.substr(begin, at_ - begin)));
    Put(fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(code)));
  }

  bool Group(std::size_t begin) {
    struct Kind {
      const char* opening;
      bool behind, repeats;
    };
    constexpr std::array kKinds = {Kind{"(?:", false, true},  Kind{"(?>", false, true},
                                   Kind{"(?i:", false, true}, Kind{"(?=", false, false},
                                   Kind{"(?!", false, false}, Kind{"(?<=", true, false},
                                   Kind{"(?<!", true, false}};
    if (Next("(?i)") && at_ == begin) {
      at_ += 4;
      Put("(?i)");
      caseless_ = true;  // until the group ends
      return false;
    }
    if (++depth_ > kMostDepth) Refuse(fmt::format("more than {} open brackets", kMostDepth));
    const bool caseless = caseless_;
    const auto* kind = std::find_if(kKinds.begin(), kKinds.end(),
                                    [&](const Kind& one) { return Next(one.opening); });
    if (kind == kKinds.end() && Next("(?")) Unsupported(in_.substr(at_, 4));
    const bool named = kind != kKinds.end();
    const std::string opening = named ? kind->opening : "(?:";
    at_ += named ? opening.size() : 1;
    caseless_ = caseless_ || opening == "(?i:";
    looks_behind_ = looks_behind_ || (named && kind->behind);
    Put(opening);
    Alternatives();
    if (!Take(")")) Refuse("'(' without its ')'");
    Put(")");
    caseless_ = caseless;
    --depth_;
    return !named || kind->repeats;
  }

  // After the backslash, outside of classes. False for what cannot be repeated.
  bool Escape() {
    if (Ended()) Refuse("a backslash at the end");
    const char c = in_[at_];
    if (c == 'A' || c == 'z') {
      ++at_;
      looks_behind_ = looks_behind_ || c == 'A';
      Put(c == 'A' ? "\\A" : "\\z");
      return false;
    }
    Items items;
    if (const auto code = EscapedCode()) {
      RequireAscii(*code);
      Put(fmt::format("\\x{{{:X}}}", *code));
      return true;
    }
    // The capital is the complement; \S, \P and the like are classes here.
    const bool negated = c >= 'A' && c <= 'Z';
    Set(static_cast<char>(c | 0x20), items);
    const std::string open = negated ? "[^" : "[";
    // PCRE2 is faster with a property by itself.
    const bool alone = c == 'p';
    plain_ += alone ? items.plain : open + items.plain + "]";
    late_ += alone && items.plain == items.late ? items.late : open + items.late + "]";
    return true;
  }

  // The code of an escaped character, or nothing for an escape that is a set.
  std::optional<std::uint32_t> EscapedCode() {
    constexpr std::string_view kNames = "nrtfaev", kCodes = "\n\r\t\f\a\x1B\v";
    const char c = in_[at_];
    if (const std::size_t name = kNames.find(c); name != std::string_view::npos) {
      ++at_;
      return kCodes[name];
    }
    if (!IsPlain(c)) {
      ++at_;
      return c;
    }
    if ((c & 0x80) != 0) return NextCodePoint(in_, at_);
    if (c == 'u') return ++at_, HexDigits(4, 4);
    if (c == 'x' && in_.substr(at_ + 1).starts_with("{")) {
      at_ += 2;
      const std::uint32_t code = HexDigits(1, 6);
      if (!Take("}")) Unsupported("a list of codes in \\x{}");
      return code;
    }
    if (c == 'x') {
      ++at_;
      const std::uint32_t code = HexDigits(1, 2);
      if (code >= 0x80) Unsupported("\\x of a byte beyond ASCII");
      return code;
    }
    return std::nullopt;
  }

  // Beyond it, several characters may be another's case.
  void RequireAscii(std::uint32_t code) const {
    if (caseless_ && code >= 0x80) Unsupported("a character beyond ASCII within (?i)");
  }

  std::uint32_t HexDigits(std::size_t least, std::size_t most) {
    std::uint32_t code = 0;
    const std::string_view digits = in_.substr(at_, most);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    const auto count = static_cast<std::size_t>(read.ptr - digits.data());
    if (count < least) Refuse("hexadecimal digits are missing");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) Refuse("a code that is no character");
    at_ += count;
    return code;
  }

  // Items of \d, \h, \s, \w, \p{...}; at_ is at the letter, which may be a capital.
  void Set(char letter, Items& items) {
    const std::string name = fmt::format("\\{}", in_[at_]);
    ++at_;
    if (letter == 's') return items.Add(kSpace);
    if (letter == 'h') return items.Add(kHexDigit);
    if (letter == 'd') return AddProperty("Nd", items);
    if (letter == 'w') {
      items.Add(kWord);
      for (const char* category : kWordCategories) items.late += LateRangesOf(category);
      return;
    }
    if (letter != 'p') Unsupported(name);
    const std::size_t end = in_.find('}', at_);
    if (!Next("{") || end == std::string_view::npos) Unsupported(name + " without braces");
    const std::string property(in_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    if (!Contains(kProperties, property)) Unsupported(name + "{" + property + "}");
    if (caseless_ && Contains(kCased, property)) {
      Unsupported(name + "{" + property + "} within (?i)");
    }
    AddProperty(property, items);
  }

  static void AddProperty(const std::string& property, Items& items) {
    // Of a script PCRE2 adds characters that several scripts use.
    items.Add(property == "Han" ? "\\p{sc:Han}" : "\\p{" + property + "}");
    items.late += LateRangesOf(property);
  }

  struct ClassItems {
    Items items;
    bool negated = false;
  };

  // After the opening bracket.
  ClassItems Class(int depth) {
    if (depth > kMostDepth) Refuse(fmt::format("more than {} open brackets", kMostDepth));
    ClassItems all;
    all.negated = Take("^");
    if (Next("]")) Unsupported("']' at the beginning of a class");
    bool first = true;
    while (!Take("]")) {
      if (Ended()) Refuse("'[' without its ']'");
      if (Next("[:")) Unsupported("[:...:]");
      if (Next("&&")) Unsupported("&& in a class");
      ClassItem(depth, first, all.items);
      first = false;
    }
    return all;
  }

  void ClassItem(int depth, bool first, Items& items) {
    if (Take("[")) {
      const ClassItems inner = Class(depth + 1);
      if (inner.negated) Unsupported("[^...] within a class");
      items.Add(inner.items);
      return;
    }
    if (Next("-") && !first && !in_.substr(at_ + 1).starts_with("]")) {
      Unsupported("'-' within a class that is neither a range nor escaped");
    }
    const auto begin = ClassCode(items);
    if (!begin) return;
    items.Add(fmt::format("\\x{{{:X}}}", *begin));
    if (!Next("-") || in_.substr(at_ + 1).starts_with("]")) return;
    ++at_;
    Items none;
    const auto end = Ended() || Next("[") ? std::nullopt : ClassCode(none);
    if (!end || *end < *begin) Refuse("a range in a class without a last character");
    items.Add(fmt::format("-\\x{{{:X}}}", *end));
  }

  // The code of a character, or nothing for a set, whose items are added.
  std::optional<std::uint32_t> ClassCode(Items& items) {
    std::optional<std::uint32_t> code;
    if (Take("\\")) {
      if (Ended()) Refuse("a backslash at the end");
      const char c = in_[at_];
      code = EscapedCode();
      if (c == 'S') {
        ++at_;
        items.Add(kNoSpace);
      } else if (!code && c >= 'A' && c <= 'Z') {
        Unsupported(fmt::format("\\{} in a class", c));
      } else if (!code) {
        Set(c, items);
      }
    } else {
      code = NextCodePoint(in_, at_);
    }
    if (code) RequireAscii(*code);
    return code;
  }

  // The repeat of an atom, whose translations begin at `plain` and `late`.
  void Repeat(std::size_t plain, std::size_t late) {
    if (Ended()) return;
    const char c = in_[at_];
    const bool mark = c == '*' || c == '+' || c == '?';
    if (mark) {
      ++at_;
      Put(std::string(1, c));
    }
    const bool interval = c == '{' && Interval();
    if (!mark && !interval) return;
    letters_.clear();
    if (Take("?")) {
      Put("?");
    } else if (mark && Take("+")) {
      Put("+");
    } else if (Take("+")) {
      // A repeat of the repeat here, where PCRE2 has a possessive one.
      plain_ = plain_.substr(0, plain) + "(?:" + plain_.substr(plain) + ")+";
      late_ = late_.substr(0, late) + "(?:" + late_.substr(late) + ")+";
    }
    if (Next("*") || Next("+") || Next("?")) Unsupported("a repeat of a repeat");
    if (Next("{")) {
      const std::size_t before = at_;
      if (Interval()) Unsupported("a repeat of a repeat");
      at_ = before;
    }
  }

  // {n}, {n,}, {,m}, {n,m}; another brace is a character.
  bool Interval() {
    const std::size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) return false;
    const std::string_view inner = in_.substr(at_ + 1, end - at_ - 1);
    const std::size_t comma = std::min(inner.find(','), inner.size());
    const std::string_view least = inner.substr(0, comma);
    const std::string_view most = inner.substr(std::min(comma + 1, inner.size()));
    const auto digits = [](std::string_view text) {
      return std::all_of(text.begin(), text.end(), IsDigit);
    };
    if (!digits(least) || !digits(most) || (least.empty() && most.empty())) return false;
    const int from = Number(least, 0);
    const int to = comma == inner.size() ? from : Number(most, kMostRepeats);
    if (to < from) Unsupported(fmt::format("{{{}}}", inner));
    at_ = end + 1;
    if (comma == inner.size() && Next("?")) Unsupported(fmt::format("{{{}}}?", inner));
    Put(most.empty() && comma != inner.size() ? fmt::format("{{{},}}", from)
                                              : fmt::format("{{{},{}}}", from, to));
    return true;
  }

  static int Number(std::string_view digits, int otherwise) {
    if (digits.empty()) return otherwise;
    int number = kMostRepeats + 1;
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (number > kMostRepeats) Refuse(fmt::format("more than {} repeats", kMostRepeats));
    return number;
  }

  std::string_view in_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool caseless_ = false;
  std::string letters_;  // the last two, within (?i)
  std::string plain_, late_;
  bool looks_behind_ = false;
};

}  // namespace

PcrePattern TranslatePattern(const std::string& expression) {
  return Translation(expression).Result();
}

std::string QuotePattern(const std::string& literal) {
  std::string quoted;
  for (const char c : literal) {
    if (!IsPlain(c)) quoted += '\\';
    quoted += c;
  }
  return quoted;
}

}  // namespace trireme::tokenizer
