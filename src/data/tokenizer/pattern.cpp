// Pre-tokenization patterns. `tokenizers` runs them with Oniguruma in Ruby's syntax; here they are
// translated for PCRE2, whose machine code searches three times as fast (doc/decisions.md).
#include "bpe.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <bitset>
#include <charconv>
#include <limits>
#include <span>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/base/utf8.hpp"

namespace trireme::data {

namespace {

// Late characters: those that Unicode 15 and 16 added, and one whose category changed. PCRE2 10.40
// to 10.42 has the tables of Unicode 14, today's `tokenizers` those of 16. Each entry lists codes
// and ranges, in hexadecimal, of one general category or script.
struct LateCharacters {
  const char* property;
  const char* codes;
};

// Printed by test/python/late_characters.py, which compares Unicode 16.0 with 14.0.
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

// Late characters of a property, named as in a translated pattern: "Lu", "L", "Alphabetic",
// "sc:Han"; empty: all late characters.
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

// Writes a character by its code: "\x{41}".
std::string Escaped(std::uint32_t code) { return fmt::format("\\x{{{:X}}}", code); }

// The variant of a translated pattern for texts with late characters, which it adds to each
// property.
std::string WithLateCharacters(const std::string& pattern) {
  std::string late;
  bool in_class = false;
  for (std::size_t at = 0; at < pattern.size();) {
    // These are syntax: literal brackets and backslashes were translated to their codes.
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
// Whether a character stands for itself in any pattern.
bool IsPlain(char c) {
  return IsDigit(c) || IsCapital(c) || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
}

[[noreturn]] void Refuse(const std::string& what) { throw InputError(what); }
[[noreturn]] void Unsupported(std::string_view construct) {
  Refuse(fmt::format("{} is not supported", construct));
}

// Character sets with the meaning of Oniguruma 6.9, as items of a class. White space is Unicode's
// White_Space; PCRE2's \s has U+180E in addition.
constexpr const char* kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNoSpace = R"(\S\x{180E})";
// PCRE2's \w lacks marks and letter-like numbers.
constexpr const char* kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";
constexpr const char* kHexDigit = "0-9A-Fa-f";

constexpr std::array kProperties = std::to_array<std::string_view>(
    {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
     "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
     "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Han"});
constexpr std::array kCased = std::to_array<std::string_view>({"Lu", "Ll", "Lt"});
// First two letters of what a single character may stand for when case is ignored (ligatures).
constexpr std::array kLigatures = std::to_array<std::string_view>({"ff", "fi", "fl", "ss", "st"});

bool Contains(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Translates by recursive descent: alternatives, atoms with their repeats, classes. Throws
// InputError naming the construct for anything that may mean something else in PCRE2: \b, (?m), &&,
// POSIX classes, back references and others.
class Translation {
 public:
  explicit Translation(std::string_view expression) : in_(expression) {
    Alternatives();
    if (!Ended()) Refuse("')' without its '('");
  }

  // For PCRE2 with the options UTF and UCP, newline LF, and texts without late characters.
  const std::string& Result() const { return out_; }
  // Whether a match may depend on the text before it.
  bool LooksBehind() const { return looks_behind_; }

 private:
  static constexpr int kMostDepth = 50;       // nested brackets
  static constexpr int kMostRepeats = 65535;  // PCRE2's limit

  bool Ended() const { return at_ == in_.size(); }
  bool Next(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  // Consumes `text` if it comes next.
  bool Take(std::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  static void RequireDepth(int depth) {
    if (depth > kMostDepth) Refuse(fmt::format("more than {} open brackets", kMostDepth));
  }
  // Beyond ASCII, ignoring case may make several characters equal.
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

  // Translates an atom; false if it cannot be repeated. begin: where its alternatives begin in in_.
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

  // Translates the literal character at at_.
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

  // Translates an escape outside of classes, after its backslash; false if it cannot be repeated.
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
    // PCRE2 is faster with a property outside of a class. A capital letter means the complement.
    const std::string items = Set(static_cast<char>(c | 0x20));
    out_ += c == 'p' ? items : fmt::format("[{}{}]", IsCapital(c) ? "^" : "", items);
    return true;
  }

  // Consumes an escaped character and returns its code; nullopt if the escape stands for a set.
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
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      Refuse("a code that is not a character");
    at_ += count;
    return code;
  }

  // Consumes \d, \h, \s, \w or \p{...} from its letter on and returns the items for a class.
  // letter: the same in lower case.
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
    // sc: restricts the match to the script; otherwise PCRE2 adds characters that several scripts
    // use.
    return fmt::format("\\p{{{}{}}}", property == "Han" ? "sc:" : "", property);
  }

  // Translates a class, after its opening bracket. The result has both brackets.
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

  // Consumes a character of a class and returns its code. For a set: nullopt, and `items` receives
  // it.
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

  // Translates the repeat of an atom, if any. atom: where its translation begins in out_.
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
      // After an interval, + repeats the repeat here; PCRE2 would take it as possessive.
      out_ = out_.substr(0, atom) + "(?:" + out_.substr(atom) + ")+";
    }
    if (Next("*") || Next("+") || Next("?") || Interval()) Unsupported("a repeat of a repeat");
  }

  // Translates {n}, {n,}, {,m} or {n,m}. False for any other brace, which is a literal.
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
  std::string letters_;    // the last two literals within (?i), in lower case
  bool looks_behind_ = false;
};

constexpr std::size_t kStackBytes = std::size_t{32} << 20;  // upper limit per search

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
  // If this fails, the search is only slower.
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
  // Long runs of blanks backtrack more often than the library's default limit allows.
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
