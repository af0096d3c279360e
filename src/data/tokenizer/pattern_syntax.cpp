// A descent through the expression: alternatives, atoms with their repeats, classes.
#include "pattern_syntax.hpp"

#include <fmt/format.h>
#include <array>
#include <bitset>
#include <charconv>

#include "bpe.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/utf8.hpp"

namespace trireme::data {

// The table is printed by test/python/late_characters.py: Unicode 16.0 against 14.0.

namespace {

constexpr std::array kLate = std::to_array<LateRange>({
    {0x897, 0x897, "Mn"},     {0xCF3, 0xCF3, "Mc"},     {0xECE, 0xECE, "Mn"},
    {0x1B4E, 0x1B4F, "Po"},   {0x1B7F, 0x1B7F, "Po"},   {0x1C89, 0x1C89, "Lu"},
    {0x1C8A, 0x1C8A, "Ll"},   {0x2427, 0x2429, "So"},   {0x2FFC, 0x2FFF, "So"},
    {0x31E4, 0x31E5, "So"},   {0x31EF, 0x31EF, "So"},   {0xA7CB, 0xA7CC, "Lu"},
    {0xA7CD, 0xA7CD, "Ll"},   {0xA7DA, 0xA7DA, "Lu"},   {0xA7DB, 0xA7DB, "Ll"},
    {0xA7DC, 0xA7DC, "Lu"},   {0x105C0, 0x105F3, "Lo"}, {0x10D40, 0x10D49, "Nd"},
    {0x10D4A, 0x10D4D, "Lo"}, {0x10D4E, 0x10D4E, "Lm"}, {0x10D4F, 0x10D4F, "Lo"},
    {0x10D50, 0x10D65, "Lu"}, {0x10D69, 0x10D6D, "Mn"}, {0x10D6E, 0x10D6E, "Pd"},
    {0x10D6F, 0x10D6F, "Lm"}, {0x10D70, 0x10D85, "Ll"}, {0x10D8E, 0x10D8F, "Sm"},
    {0x10EC2, 0x10EC4, "Lo"}, {0x10EFC, 0x10EFF, "Mn"}, {0x1123F, 0x11240, "Lo"},
    {0x11241, 0x11241, "Mn"}, {0x11380, 0x11389, "Lo"}, {0x1138B, 0x1138B, "Lo"},
    {0x1138E, 0x1138E, "Lo"}, {0x11390, 0x113B5, "Lo"}, {0x113B7, 0x113B7, "Lo"},
    {0x113B8, 0x113BA, "Mc"}, {0x113BB, 0x113C0, "Mn"}, {0x113C2, 0x113C2, "Mc"},
    {0x113C5, 0x113C5, "Mc"}, {0x113C7, 0x113CA, "Mc"}, {0x113CC, 0x113CD, "Mc"},
    {0x113CE, 0x113CE, "Mn"}, {0x113CF, 0x113CF, "Mc"}, {0x113D0, 0x113D0, "Mn"},
    {0x113D1, 0x113D1, "Lo"}, {0x113D2, 0x113D2, "Mn"}, {0x113D3, 0x113D3, "Lo"},
    {0x113D4, 0x113D5, "Po"}, {0x113D7, 0x113D8, "Po"}, {0x113E1, 0x113E2, "Mn"},
    {0x116D0, 0x116E3, "Nd"}, {0x1171E, 0x1171E, "Mc"}, {0x11B00, 0x11B09, "Po"},
    {0x11BC0, 0x11BE0, "Lo"}, {0x11BE1, 0x11BE1, "Po"}, {0x11BF0, 0x11BF9, "Nd"},
    {0x11F00, 0x11F01, "Mn"}, {0x11F02, 0x11F02, "Lo"}, {0x11F03, 0x11F03, "Mc"},
    {0x11F04, 0x11F10, "Lo"}, {0x11F12, 0x11F33, "Lo"}, {0x11F34, 0x11F35, "Mc"},
    {0x11F36, 0x11F3A, "Mn"}, {0x11F3E, 0x11F3F, "Mc"}, {0x11F40, 0x11F40, "Mn"},
    {0x11F41, 0x11F41, "Mc"}, {0x11F42, 0x11F42, "Mn"}, {0x11F43, 0x11F4F, "Po"},
    {0x11F50, 0x11F59, "Nd"}, {0x11F5A, 0x11F5A, "Mn"}, {0x1342F, 0x1342F, "Lo"},
    {0x13439, 0x1343F, "Cf"}, {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"},
    {0x13447, 0x13455, "Mn"}, {0x13460, 0x143FA, "Lo"}, {0x16100, 0x1611D, "Lo"},
    {0x1611E, 0x16129, "Mn"}, {0x1612A, 0x1612C, "Mc"}, {0x1612D, 0x1612F, "Mn"},
    {0x16130, 0x16139, "Nd"}, {0x16D40, 0x16D42, "Lm"}, {0x16D43, 0x16D6A, "Lo"},
    {0x16D6B, 0x16D6C, "Lm"}, {0x16D6D, 0x16D6F, "Po"}, {0x16D70, 0x16D79, "Nd"},
    {0x18CFF, 0x18CFF, "Lo"}, {0x1B132, 0x1B132, "Lo"}, {0x1B155, 0x1B155, "Lo"},
    {0x1CC00, 0x1CCEF, "So"}, {0x1CCF0, 0x1CCF9, "Nd"}, {0x1CD00, 0x1CEB3, "So"},
    {0x1D2C0, 0x1D2D3, "No"}, {0x1DF25, 0x1DF2A, "Ll"}, {0x1E030, 0x1E06D, "Lm"},
    {0x1E08F, 0x1E08F, "Mn"}, {0x1E4D0, 0x1E4EA, "Lo"}, {0x1E4EB, 0x1E4EB, "Lm"},
    {0x1E4EC, 0x1E4EF, "Mn"}, {0x1E4F0, 0x1E4F9, "Nd"}, {0x1E5D0, 0x1E5ED, "Lo"},
    {0x1E5EE, 0x1E5EF, "Mn"}, {0x1E5F0, 0x1E5F0, "Lo"}, {0x1E5F1, 0x1E5FA, "Nd"},
    {0x1E5FF, 0x1E5FF, "Po"}, {0x1F6DC, 0x1F6DC, "So"}, {0x1F774, 0x1F776, "So"},
    {0x1F77B, 0x1F77F, "So"}, {0x1F7D9, 0x1F7D9, "So"}, {0x1F8B2, 0x1F8BB, "So"},
    {0x1F8C0, 0x1F8C1, "So"}, {0x1FA75, 0x1FA77, "So"}, {0x1FA87, 0x1FA89, "So"},
    {0x1FA8F, 0x1FA8F, "So"}, {0x1FAAD, 0x1FAAF, "So"}, {0x1FABB, 0x1FABF, "So"},
    {0x1FAC6, 0x1FAC6, "So"}, {0x1FACE, 0x1FACF, "So"}, {0x1FADA, 0x1FADC, "So"},
    {0x1FADF, 0x1FADF, "So"}, {0x1FAE8, 0x1FAE9, "So"}, {0x1FAF7, 0x1FAF8, "So"},
    {0x1FBCB, 0x1FBEF, "So"}, {0x2B739, 0x2B739, "Lo"}, {0x2EBF0, 0x2EE5D, "Lo"},
    {0x31350, 0x323AF, "Lo"},
});

// Characters of the script Han.
constexpr std::array kLateHan = std::to_array<LateRange>(
    {{0x2B739, 0x2B739, "Lo"}, {0x2EBF0, 0x2EE5D, "Lo"}, {0x31350, 0x323AF, "Lo"}});

constexpr unsigned kBlockBits = 6;  // a block of code points shares all bytes of UTF-8 but the last
using Blocks = std::bitset<(0x110000 >> kBlockBits)>;

// Blocks that hold late characters.
const Blocks& LateBlocks() {
  static const Blocks blocks = [] {
    Blocks late;
    for (const LateRange& range : kLate) {
      for (char32_t block = range.first >> kBlockBits; block <= range.last >> kBlockBits; ++block) {
        late.set(block);
      }
    }
    return late;
  }();
  return blocks;
}

bool IsLate(char32_t code) {
  const auto* const after = std::upper_bound(
      kLate.begin(), kLate.end(), code,
      [](char32_t wanted, const LateRange& range) { return wanted < range.first; });
  return after != kLate.begin() && code <= (after - 1)->last;
}

}  // namespace

std::span<const LateRange> LateCharacters() { return kLate; }

bool HasLateCharacter(std::string_view text) {
  static_assert(kLate.front().first >= 0x800, "characters of one and two bytes are passed over");
  const Blocks& blocks = LateBlocks();
  const auto bits = [&](std::size_t at, unsigned mask) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) & mask : 0U;
  };
  for (std::size_t at = AsciiEnd(text); at < text.size(); at = AsciiEnd(text, at)) {
    const unsigned first = bits(at, 0xFF);
    if (first < 0xE0) {
      ++at;
      continue;
    }
    const bool four = first >= 0xF0;
    const unsigned block =
        four ? bits(at, 0x07) << 12U | bits(at + 1, 0x3F) << 6U | bits(at + 2, 0x3F)
             : bits(at, 0x0F) << 6U | bits(at + 1, 0x3F);
    if (block < blocks.size() && blocks[block]) {
      std::size_t next = at;
      if (IsLate(NextCodePoint(text, next))) return true;
    }
    at += four ? 4 : 3;
  }
  return false;
}

std::string LateRangesOf(std::string_view property) {
  const bool han = property == "Han";
  std::string ranges;
  for (const LateRange& range : han ? std::span<const LateRange>(kLateHan) : LateCharacters()) {
    if (!han && !std::string_view(range.category).starts_with(property)) continue;
    ranges += fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(range.first));
    if (range.last == range.first) continue;
    ranges += fmt::format("-\\x{{{:X}}}", static_cast<std::uint32_t>(range.last));
  }
  return ranges;
}

// PatternSets: sets are those of Oniguruma 6.9, spelled out where PCRE2 has others.

namespace {

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

void AddProperty(const std::string& property, PatternItems& items) {
  // Of a script PCRE2 adds characters that several scripts use.
  items.Add(property == "Han" ? "\\p{sc:Han}" : "\\p{" + property + "}");
  items.late += LateRangesOf(property);
}

}  // namespace

void PatternSets::Refuse(const std::string& what) { throw InputError(what); }

void PatternSets::Unsupported(std::string_view construct) {
  Refuse(fmt::format("{} is not supported", construct));
}

bool PatternSets::Take(std::string_view text) {
  if (!Next(text)) return false;
  at_ += text.size();
  return true;
}

std::optional<std::uint32_t> PatternSets::EscapedCode() {
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
  if (c == 'u') {
    ++at_;
    return HexDigits(4, 4);
  }
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

std::uint32_t PatternSets::HexDigits(std::size_t least, std::size_t most) {
  std::uint32_t code = 0;
  const std::string_view digits = in_.substr(at_, most);
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  const auto count = static_cast<std::size_t>(read.ptr - digits.data());
  if (count < least) Refuse("hexadecimal digits are missing");
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) Refuse("a code that is no character");
  at_ += count;
  return code;
}

void PatternSets::Set(char letter, PatternItems& items) {
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

PatternSets::Class PatternSets::ReadClass(int depth) {
  if (depth > kMostDepth) Refuse(fmt::format("more than {} open brackets", kMostDepth));
  Class all;
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

void PatternSets::ClassItem(int depth, bool first, PatternItems& items) {
  if (Take("[")) {
    const Class inner = ReadClass(depth + 1);
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
  PatternItems none;
  const auto end = Ended() || Next("[") ? std::nullopt : ClassCode(none);
  if (!end || *end < *begin) Refuse("a range in a class without a last character");
  items.Add(fmt::format("-\\x{{{:X}}}", *end));
}

std::optional<std::uint32_t> PatternSets::ClassCode(PatternItems& items) {
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

void PatternSets::RequireAscii(std::uint32_t code) const {
  if (caseless_ && code >= 0x80) Unsupported("a character beyond ASCII within (?i)");
}

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
