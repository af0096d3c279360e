// Pre-tokenization patterns: translated from Oniguruma's expressions in Ruby's syntax, which
// `tokenizers` reads, to those of PCRE2, and searched by PCRE2, whose machine code is three times
// as fast as Oniguruma (doc/decisions.md).
#include "bpe.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/utf8.hpp"

namespace trireme::data {

namespace {

// Late characters: those that came in Unicode 15 to 16, and one that changed its category. PCRE2
// 10.40 to 10.42 has the tables of Unicode 14, the `tokenizers` of today those of 16.

// Hexadecimal codes and ranges of the late characters of a general category or a script.
struct LateCharacters {
  const char* property;
  const char* codes;
};

// Printed by test/python/late_characters.py: Unicode 16.0 against 14.0.
constexpr std::array kLate = std::to_array<LateCharacters>({
    {"Lu", "1C89 A7CB-A7CC A7DA A7DC 10D50-10D65"},
    {"Ll", "1C8A A7CD A7DB 10D70-10D85 1DF25-1DF2A"},
    {"Lm", "10D4E 10D6F 16D40-16D42 16D6B-16D6C 1E030-1E06D 1E4EB"},
    {"Lo",
     "105C0-105F3 10D4A-10D4D 10D4F 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E "
     "11390-113B5 113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F "
     "13441-13446 13460-143FA 16100-1611D 16D43-16D6A 18CFF 1B132 1B155 1E4D0-1E4EA "
     "1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF"},
    {"Mn",
     "897 ECE 10D69-10D6D 10EFC-10EFF 11241 113BB-113C0 113CE 113D0 113D2 113E1-113E2 "
     "11F00-11F01 11F36-11F3A 11F40 11F42 11F5A 13440 13447-13455 1611E-16129 1612D-1612F "
     "1E08F 1E4EC-1E4EF 1E5EE-1E5EF"},
    {"Mc",
     "CF3 113B8-113BA 113C2 113C5 113C7-113CA 113CC-113CD 113CF 1171E 11F03 11F34-11F35 "
     "11F3E-11F3F 11F41 1612A-1612C"},
    {"Nd",
     "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 "
     "1E4F0-1E4F9 1E5F1-1E5FA"},
    {"No", "1D2C0-1D2D3"},
    {"Pd", "10D6E"},
    {"Po",
     "1B4E-1B4F 1B7F 113D4-113D5 113D7-113D8 11B00-11B09 11BE1 11F43-11F4F 16D6D-16D6F "
     "1E5FF"},
    {"Sm", "10D8E-10D8F"},
    {"So",
     "2427-2429 2FFC-2FFF 31E4-31E5 31EF 1CC00-1CCEF 1CD00-1CEB3 1F6DC 1F774-1F776 "
     "1F77B-1F77F 1F7D9 1F8B2-1F8BB 1F8C0-1F8C1 1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF "
     "1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC 1FADF 1FAE8-1FAE9 1FAF7-1FAF8 1FBCB-1FBEF"},
    {"Cf", "13439-1343F"},
    {"sc:Han", "2B739 2EBF0-2EE5D 31350-323AF"},
});

struct Range {
  std::uint32_t first = 0, last = 0;
};

// Late characters of a property as it stands in a translated pattern: "Lu", "L", "Alphabetic",
// "sc:Han"; all of them for an empty one.
std::vector<Range> LateRanges(std::string_view property) {
  std::vector<Range> ranges;
  for (const LateCharacters& late : kLate) {
    const std::string_view own = late.property;
    const bool alphabetic = own.starts_with("L") || own == "Nl";
    if (property == "Alphabetic" ? !alphabetic : !own.starts_with(property)) continue;
    std::istringstream codes(late.codes);
    codes >> std::hex;
    for (Range range; codes >> range.first;) {
      range.last = range.first;
      if (codes.peek() == '-') codes.ignore() >> range.last;
      ranges.push_back(range);
    }
  }
  return ranges;
}

bool HasLateCharacter(std::string_view text) {
  using Characters = std::bitset<0x110000>;
  static const auto late = [] {
    auto all = std::make_unique<Characters>();
    for (const auto [first, last] : LateRanges("")) {
      for (std::uint32_t code = first; code <= last; ++code) all->set(code);
    }
    return all;
  }();
  for (std::size_t at = AsciiEnd(text); at < text.size(); at = AsciiEnd(text, at)) {
    if ((*late)[NextCodePoint(text, at)]) return true;
  }
  return false;
}

// The character by its code: "\x{41}".
std::string Escaped(std::uint32_t code) { return fmt::format("\\x{{{:X}}}", code); }

// A translated pattern for texts with late characters: each of its properties has them, too.
std::string WithLateCharacters(const std::string& pattern) {
  std::string late;
  bool in_class = false;
  for (std::size_t at = 0; at < pattern.size();) {
    // Brackets and backslashes of the text itself are written by their codes.
    if (pattern[at] == '[' || pattern[at] == ']') in_class = pattern[at] == '[';
    if (pattern.compare(at, 3, "\\p{") != 0) {
      late += pattern[at++];
      continue;
    }
    const std::size_t end = pattern.find('}', at) + 1;
    const std::string property = pattern.substr(at, end - at);
    std::string more;
    for (const auto [first, last] : LateRanges(property.substr(3, property.size() - 4))) {
      more += Escaped(first) + "-" + Escaped(last);
    }
    late += in_class || more.empty() ? property + more : "[" + property + more + "]";
    at = end;
  }
  return late;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsCapital(char c) { return c >= 'A' && c <= 'Z'; }
// True for a character that is itself in any pattern.
bool IsPlain(char c) {
  return IsDigit(c) || IsCapital(c) || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
}

[[noreturn]] void Refuse(const std::string& what) { throw InputError(what); }
[[noreturn]] void Unsupported(std::string_view construct) {
  Refuse(fmt::format("{} is not supported", construct));
}

// Sets as Oniguruma 6.9 has them, spelled out where PCRE2 has others, as items of a class.
// Unicode's White_Space; PCRE2 adds U+180E.
constexpr const char* kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNoSpace = R"(\S\x{180E})";
// PCRE2 has neither marks nor letter-like numbers in its own.
constexpr const char* kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";
constexpr const char* kHexDigit = "0-9A-Fa-f";

constexpr std::array kProperties = std::to_array<std::string_view>(
    {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
     "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
     "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Han"});
constexpr std::array kCased = std::to_array<std::string_view>({"Lu", "Ll", "Lt"});
// Beginnings of letters that one character may stand for, if case does not count.
constexpr std::array kLigatures = std::to_array<std::string_view>({"ff", "fi", "fl", "ss", "st"});

bool Contains(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// A descent through the expression: alternatives, atoms with their repeats, classes. Throws
// InputError, with the construct's name alone, for what is not known to mean the same in both: \b,
// (?m), &&, classes of POSIX, back references and others.
class Translation {
 public:
  explicit Translation(std::string_view expression) : in_(expression) {
    Alternatives();
    if (!Ended()) Refuse("')' without its '('");
  }

  // For PCRE2 with the options UTF and UCP, end of line LF, and texts without late characters.
  const std::string& Result() const { return out_; }
  // A match depends on the text before its begin.
  bool LooksBehind() const { return looks_behind_; }

 private:
  static constexpr int kMostDepth = 50;       // of brackets
  static constexpr int kMostRepeats = 65535;  // PCRE2's

  bool Ended() const { return at_ == in_.size(); }
  bool Next(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  // Moves on if it is next.
  bool Take(std::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  static void RequireDepth(int depth) {
    if (depth > kMostDepth) Refuse(fmt::format("more than {} open brackets", kMostDepth));
  }
  // Beyond ASCII, several characters may be another's case.
  void RequireAscii(std::uint32_t code) const {
    if (caseless_ && code >= 0x80) Unsupported("a character beyond ASCII within (?i)");
  }

  void Alternatives() {
    const std::size_t begin = at_;
    do {
      while (!Ended() && !Next("|") && !Next(")")) {
        const std::size_t atom = out_.size();
        if (Atom(begin)) Repeat(atom);
      }
      letters_.clear();
      if (Next("|")) out_ += '|';
    } while (Take("|"));
  }

  // False for what cannot be repeated. `begin`: of the alternatives.
  bool Atom(std::size_t begin) {
    const char c = in_[at_];
    if (!IsPlain(c)) letters_.clear();
    if (c == '(') return Group(begin);
    if (Take("[")) {
      out_ += Class(1);
      return true;
    }
    if (Take("\\")) return Escape();
    if (Take("^") || Take("$")) {
      looks_behind_ = looks_behind_ || c == '^';
      out_ += fmt::format("(?m:{})", c);
      return false;
    }
    if (c == '*' || c == '+' || c == '?') Refuse(fmt::format("'{}' has nothing to repeat", c));
    if (Take(".")) {
      out_ += '.';
      return true;
    }
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
    out_ += IsPlain(in_[begin]) ? std::string(in_.substr(begin, at_ - begin)) : Escaped(code);
  }

  bool Group(std::size_t begin) {
    struct Kind {
      std::string_view opening;
      bool behind, repeats;
    };
    constexpr std::array kKinds = {Kind{"(?:", false, true},  Kind{"(?>", false, true},
                                   Kind{"(?i:", false, true}, Kind{"(?=", false, false},
                                   Kind{"(?!", false, false}, Kind{"(?<=", true, false},
                                   Kind{"(?<!", true, false}};
    if (at_ == begin && Take("(?i)")) {
      out_ += "(?i)";
      caseless_ = true;  // until the group ends
      return false;
    }
    RequireDepth(++depth_);
    const bool caseless = caseless_;
    const auto* const found = std::find_if(kKinds.begin(), kKinds.end(),
                                           [&](const Kind& one) { return Next(one.opening); });
    const bool named = found != kKinds.end();
    if (!named && Next("(?")) Unsupported(in_.substr(at_, 4));
    const Kind kind = named ? *found : kKinds[0];
    at_ += named ? kind.opening.size() : 1;
    caseless_ = caseless_ || kind.opening == "(?i:";
    looks_behind_ = looks_behind_ || kind.behind;
    out_ += kind.opening;
    Alternatives();
    if (!Take(")")) Refuse("'(' without its ')'");
    out_ += ')';
    caseless_ = caseless;
    --depth_;
    return kind.repeats;
  }

  // After the backslash, outside of classes. False for what cannot be repeated.
  bool Escape() {
    if (Ended()) Refuse("a backslash at the end");
    const char c = in_[at_];
    if (Take("A") || Take("z")) {
      looks_behind_ = looks_behind_ || c == 'A';
      out_ += {'\\', c};
      return false;
    }
    if (const auto code = EscapedCode()) {
      RequireAscii(*code);
      out_ += Escaped(*code);
      return true;
    }
    // PCRE2 is faster with a property by itself. A capital is the complement.
    const std::string items = Set(static_cast<char>(c | 0x20));
    out_ += c == 'p' ? items : fmt::format("[{}{}]", IsCapital(c) ? "^" : "", items);
    return true;
  }

  // Code of the escaped character at at_, or nothing for an escape that is a set.
  std::optional<std::uint32_t> EscapedCode() {
    constexpr std::string_view kNames = "nrtfaev", kCodes = "\n\r\t\f\a\x1B\v";
    const char c = in_[at_];
    if (const std::size_t name = kNames.find(c); name != std::string_view::npos) {
      ++at_;
      return kCodes[name];
    }
    if (!IsPlain(c) || (c & 0x80) != 0) return NextCodePoint(in_, at_);
    if (Take("u")) return HexDigits(4, 4);
    if (Take("x{")) {
      const std::uint32_t code = HexDigits(1, 6);
      if (!Take("}")) Unsupported("a list of codes in \\x{}");
      return code;
    }
    if (!Take("x")) return std::nullopt;
    const std::uint32_t code = HexDigits(1, 2);
    if (code >= 0x80) Unsupported("\\x of a byte beyond ASCII");
    return code;
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
  std::string Set(char letter) {
    const std::string name = {'\\', in_[at_++]};
    if (letter == 's') return kSpace;
    if (letter == 'h') return kHexDigit;
    if (letter == 'd') return "\\p{Nd}";
    if (letter == 'w') return kWord;
    if (letter != 'p') Unsupported(name);
    const std::size_t end = in_.find('}', at_);
    if (!Next("{") || end == std::string_view::npos) Unsupported(name + " without braces");
    const std::string property(in_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    if (!Contains(kProperties, property)) Unsupported(name + "{" + property + "}");
    if (caseless_ && Contains(kCased, property)) {
      Unsupported(name + "{" + property + "} within (?i)");
    }
    // By its script alone; PCRE2 adds characters that several scripts use.
    return fmt::format("\\p{{{}{}}}", property == "Han" ? "sc:" : "", property);
  }

  // A class after its opening bracket, with both.
  std::string Class(int depth) {
    RequireDepth(depth);
    std::string all = Take("^") ? "[^" : "[";
    if (Next("]")) Unsupported("']' at the beginning of a class");
    for (bool first = true; !Take("]"); first = false) {
      if (Ended()) Refuse("'[' without its ']'");
      if (Next("[:")) Unsupported("[:...:]");
      if (Next("&&")) Unsupported("&& in a class");
      all += ClassItem(depth, first);
    }
    return all + "]";
  }

  std::string ClassItem(int depth, bool first) {
    if (Take("[")) {
      const std::string inner = Class(depth + 1);
      if (inner.starts_with("[^")) Unsupported("[^...] within a class");
      return inner.substr(1, inner.size() - 2);
    }
    const auto before_last = [&] { return in_.substr(at_ + 1).starts_with("]"); };
    if (Next("-") && !first && !before_last()) {
      Unsupported("'-' within a class that is neither a range nor escaped");
    }
    std::string items;
    const auto begin = ClassCode(items);
    if (!begin) return items;
    items = Escaped(*begin);
    if (!Next("-") || before_last()) return items;
    ++at_;
    std::string none;
    const auto end = Ended() || Next("[") ? std::nullopt : ClassCode(none);
    if (!end || *end < *begin) Refuse("a range in a class without a last character");
    return items + "-" + Escaped(*end);
  }

  // Code of a character, or nothing for a set, which becomes `items`.
  std::optional<std::uint32_t> ClassCode(std::string& items) {
    std::optional<std::uint32_t> code;
    if (!Take("\\")) {
      code = NextCodePoint(in_, at_);
    } else {
      if (Ended()) Refuse("a backslash at the end");
      const char c = in_[at_];
      code = EscapedCode();
      if (!code && Take("S")) {
        items = kNoSpace;
      } else if (!code && IsCapital(c)) {
        Unsupported(fmt::format("\\{} in a class", c));
      } else if (!code) {
        items = Set(c);
      }
    }
    if (code) RequireAscii(*code);
    return code;
  }

  // The repeat of an atom, whose translation begins at `atom`.
  void Repeat(std::size_t atom) {
    if (Ended()) return;
    const char c = in_[at_];
    const bool mark = Take("*") || Take("+") || Take("?");
    if (mark) out_ += c;
    if (!mark && !Interval()) return;
    letters_.clear();
    if (Take("?")) {
      out_ += '?';
    } else if (mark && Take("+")) {
      out_ += '+';
    } else if (Take("+")) {
      // A repeat of the repeat here, where PCRE2 has a possessive one.
      out_ = out_.substr(0, atom) + "(?:" + out_.substr(atom) + ")+";
    }
    if (Next("*") || Next("+") || Next("?") || Interval()) Unsupported("a repeat of a repeat");
  }

  // {n}, {n,}, {,m}, {n,m}; another brace is a character.
  bool Interval() {
    const std::size_t end = in_.find('}', at_);
    if (!Next("{") || end == std::string_view::npos) return false;
    const std::string_view inner = in_.substr(at_ + 1, end - at_ - 1);
    const std::size_t comma = std::min(inner.find(','), inner.size());
    const bool exact = comma == inner.size();
    const std::string_view least = inner.substr(0, comma);
    const std::string_view most = exact ? least : inner.substr(comma + 1);
    if (!std::all_of(least.begin(), least.end(), IsDigit) ||
        !std::all_of(most.begin(), most.end(), IsDigit) || (least.empty() && most.empty())) {
      return false;
    }
    const int from = Number(least, 0);
    if (Number(most, kMostRepeats) < from) Unsupported(fmt::format("{{{}}}", inner));
    at_ = end + 1;
    if (exact && Next("?")) Unsupported(fmt::format("{{{}}}?", inner));
    out_ += fmt::format("{{{},{}}}", from, most);
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
  std::string out_;
  int depth_ = 0;
  bool caseless_ = false;  // within (?i)
  std::string letters_;    // the last two, within (?i)
  bool looks_behind_ = false;
};

// Search by PCRE2.

constexpr std::size_t kStackBytes = std::size_t{32} << 20;  // of a search, at most

std::string MessageOf(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR Bytes(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// Throws InputError with PCRE2's reason.
std::shared_ptr<const pcre2_code> Compile(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* const context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  const std::shared_ptr<pcre2_code> code(
      pcre2_compile(Bytes(expression), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context),
      pcre2_code_free);
  pcre2_compile_context_free(context);
  if (code == nullptr) throw InputError(MessageOf(error));
  // Without it the search is only slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return code;
}

}  // namespace

Pattern::Pattern(const std::string& expression, const std::string& where)
    : expression_(expression) {
  try {
    const Translation translation(expression);
    plain_ = Compile(translation.Result());
    const std::string late = WithLateCharacters(translation.Result());
    any_ = late == translation.Result() ? plain_ : Compile(late);
    looks_behind_ = translation.LooksBehind();
  } catch (const Error& error) {
    throw InputError(
        fmt::format("{}: the pattern '{}' is not understood: {}", where, expression, error.what()));
  }
}

std::string QuotePattern(const std::string& literal) {
  std::string quoted;
  for (const char c : literal) {
    if (!IsPlain(c)) quoted += '\\';
    quoted += c;
  }
  return quoted;
}

struct Pattern::Search::State {
  template <typename T>
  using Handle = std::unique_ptr<T, void (*)(T*)>;

  Handle<pcre2_match_context> context{pcre2_match_context_create(nullptr),
                                      pcre2_match_context_free};
  Handle<pcre2_jit_stack> stack{pcre2_jit_stack_create(std::size_t{1} << 15, kStackBytes, nullptr),
                                pcre2_jit_stack_free};
  Handle<pcre2_match_data> match{pcre2_match_data_create(1, nullptr), pcre2_match_data_free};
};

Pattern::Search::Search() : state_(std::make_unique<State>()) {
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
  // Long runs of blanks go back and forth more often than the library allows by itself.
  pcre2_set_match_limit(state_->context.get(), std::numeric_limits<std::uint32_t>::max());
}
Pattern::Search::~Search() = default;

void Pattern::Search::Begin(std::string_view text) { late_ = HasLateCharacter(text); }

std::pair<std::size_t, std::size_t> Pattern::Search::First(const Pattern& pattern,
                                                           std::string_view text, std::size_t from,
                                                           bool whatever_follows) {
  const std::uint32_t options =
      PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | (whatever_follows ? PCRE2_PARTIAL_HARD : 0);
  const int found =
      pcre2_match((late_ ? pattern.any_ : pattern.plain_).get(), Bytes(text), text.size(), from,
                  options, state_->match.get(), state_->context.get());
  if (found == PCRE2_ERROR_NOMATCH || found == PCRE2_ERROR_PARTIAL) {
    return {text.size(), text.size()};
  }
  if (found < 0) {
    throw RunError(fmt::format("the pattern '{}' fails on a text of {} bytes: {}",
                               pattern.Expression(), text.size(), MessageOf(found)));
  }
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(state_->match.get());
  return {ends[0], ends[1]};
}

}  // namespace trireme::data
