// PatternSets: sets are those of Oniguruma 6.9, spelled out where PCRE2 has others.
#include "pattern_sets.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "byte_alphabet.hpp"
#include "late_characters.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

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

}  // namespace trireme::data
