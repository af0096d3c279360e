// A descent through the expression: alternatives, atoms with their repeats, classes.
#include "pattern_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "byte_alphabet.hpp"
#include "pattern_sets.hpp"

namespace trireme::data {

namespace {

constexpr int kMostRepeats = 65535;  // PCRE2's

// Beginnings of letters that one character may stand for, if case does not count.
constexpr std::array kLigatures = {"ff", "fi", "fl", "ss", "st"};

class Translation : PatternSets {
 public:
  explicit Translation(const std::string& expression) : PatternSets(expression) {}

  PcrePattern Result() {
    Alternatives();
    if (at_ != in_.size()) Refuse("')' without its '('");
    return {plain_, late_, looks_behind_};
  }

 private:
  void Put(const std::string& text) { Put(PatternItems{text, text}); }
  void Put(const PatternItems& items) {
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
      const auto [items, negated] = ReadClass(1);
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
    PatternItems items;
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

  int depth_ = 0;
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

}  // namespace trireme::data
