// RecordScan: RFC 8259's grammar, as far as wanted members and the ends of others need it.
#include "record_scan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::data {

namespace {

constexpr std::size_t kShownBytes = 100;  // of a value, in a message

bool IsHigh(unsigned code) { return code >= 0xD800 && code < 0xDC00; }
bool IsLow(unsigned code) { return code >= 0xDC00 && code < 0xE000; }

void Append(unsigned code, std::string& text) {
  const auto low = [&](unsigned shift) {
    return static_cast<char>(0x80U | ((code >> shift) & 0x3FU));
  };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0U | (code >> 6U)), low(0)};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0U | (code >> 12U)), low(6), low(0)};
  } else {
    text += {static_cast<char>(0xF0U | (code >> 18U)), low(12), low(6), low(0)};
  }
}

// A value that is no text, for a message.
std::string Shown(std::string_view value) {
  if (const auto json = deck::TryParseJson(value, std::int64_t{1} << 20)) {
    return deck::Brief(*json);
  }
  return deck::Shown(std::string(value.substr(0, kShownBytes)));
}

}  // namespace

void RecordScan::Refuse(const std::string& what, const std::string& hint) const {
  throw InputError(fmt::format("{}: {}", where_, what), hint);
}

void RecordScan::Broken(const std::string& reason) const {
  Refuse(fmt::format("byte {}: not valid JSON: {}", at_, reason));
}

void RecordScan::RefuseLone(unsigned half) const {
  Refuse(
      fmt::format("byte {}: \\u{:04x} is half of a surrogate pair, which no text has", at_, half),
      "tokenize.invalid = replace puts U+FFFD in its place.");
}

void RecordScan::SkipBlanks() {
  while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) {
    ++at_;
  }
}

bool RecordScan::Take(char wanted) {
  if (at_ == line_.size() || line_[at_] != wanted) return false;
  ++at_;
  return true;
}

void RecordScan::Expect(char wanted) {
  if (Take(wanted)) return;
  Broken(at_ == line_.size() ? fmt::format("it ends where '{}' is expected", wanted)
                             : fmt::format("'{}' is expected", wanted));
}

void RecordScan::Read(Wanted& first, Wanted* second) {
  SkipBlanks();
  if (at_ < line_.size() && line_[at_] != '{') {
    const auto size = static_cast<std::int64_t>(line_.size());
    Refuse("an object expected, " + deck::Brief(deck::ParseJson(line_, where_, size)) + " found");
  }
  Object(first, second);
  SkipBlanks();
  if (at_ != line_.size()) Broken("text after the record's end");
}

void RecordScan::Object(Wanted& first, Wanted* second) {
  Expect('{');
  SkipBlanks();
  if (!Take('}')) {
    do {
      SkipBlanks();
      Member(first, second);
      SkipBlanks();
    } while (Take(','));
    Expect('}');
  }
}

void RecordScan::Member(Wanted& first, Wanted* second) {
  if (at_ == line_.size() || line_[at_] != '"') Expect('"');
  const std::string key = within_ + Text(false);
  SkipBlanks();
  Expect(':');
  SkipBlanks();
  const bool is_first = key == first.key;
  const bool is_second = second != nullptr && key == second->key;
  if (!is_first && !is_second) {
    const auto lies_in = [&](std::string_view wanted) {
      return wanted.size() > key.size() && wanted.starts_with(key) && wanted[key.size()] == '.';
    };
    const bool inside = lies_in(first.key) || (second != nullptr && lies_in(second->key));
    if (!inside || at_ == line_.size() || line_[at_] != '{') return SkipValue();
    const std::string outside = std::exchange(within_, key + ".");
    Object(first, second);
    within_ = outside;
    return;
  }
  if ((is_first && first.text) || (is_second && second->text)) {
    Refuse(fmt::format("\"{}\" is named twice", deck::Shown(key)));
  }
  if (at_ < line_.size() && line_[at_] != '"') {
    const std::size_t begin = at_;
    SkipValue();
    if (line_.substr(begin, at_ - begin) == "null") {
      first.is_null = first.is_null || is_first;
      if (is_second) second->is_null = true;
      return;
    }
    Refuse(fmt::format("\"{}\" is no text but {}", deck::Shown(key),
                       Shown(line_.substr(begin, at_ - begin))));
  }
  if (at_ == line_.size()) Expect('"');
  std::string text = Text(true);
  if (is_second) second->text = text;
  if (is_first) first.text = std::move(text);
}

std::string RecordScan::Text(bool judged) {
  ++at_;  // the quote
  std::string text;
  for (;;) {
    const std::size_t begin = at_;
    while (at_ < line_.size() && line_[at_] != '"' && line_[at_] != '\\' &&
           static_cast<unsigned char>(line_[at_]) >= 0x20) {
      ++at_;
    }
    text.append(line_, begin, at_ - begin);
    if (at_ == line_.size()) Broken("the end of a text is missing");
    if (Take('"')) return text;
    if (line_[at_] != '\\') Broken("a control character in a text");
    Escape(text, judged);
  }
}

void RecordScan::Escape(std::string& text, bool judged) {
  constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
  ++at_;  // the backslash
  if (at_ == line_.size()) Broken("the end of a text is missing");
  if (const std::size_t name = kNames.find(line_[at_]); name != std::string_view::npos) {
    text += kMeant[name];
    ++at_;
    return;
  }
  if (!Take('u')) Broken("an escape that JSON does not have");
  unsigned code = Digits();
  if (IsHigh(code) && line_.substr(at_, 2) == "\\u") {
    const std::size_t after = at_;
    at_ += 2;
    const unsigned low = Digits();
    if (IsLow(low)) {
      code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
    } else {
      at_ = after;
    }
  }
  if (IsHigh(code) || IsLow(code)) {
    if (judged && !replace_) RefuseLone(code);
    if (judged) ++replaced_;
    code = 0xFFFD;
  }
  Append(code, text);
}

// The four of \u.
unsigned RecordScan::Digits() {
  unsigned code = 0;
  const std::string_view digits = line_.substr(at_, 4);
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (digits.size() < 4 || read.ptr != digits.data() + 4)
    Broken("four hexadecimal digits expected");
  at_ += 4;
  return code;
}

void RecordScan::SkipText() {
  ++at_;
  for (;;) {
    at_ = std::min(line_.find_first_of("\"\\", at_), line_.size());
    if (Take('"')) return;
    at_ = std::min(at_ + 2, line_.size());  // a backslash and what it escapes
    if (at_ == line_.size()) Broken("the end of a text is missing");
  }
}

void RecordScan::SkipValue() {
  std::string closers;  // of the open brackets, innermost last
  const std::size_t begin = at_;
  while (at_ < line_.size()) {
    const char c = line_[at_];
    if (closers.empty() && (c == ',' || c == '}' || c == ']')) break;
    if (c == '"') {
      SkipText();
      continue;
    }
    if (c == '{') closers += '}';
    if (c == '[') closers += ']';
    if (c == '}' || c == ']') {
      if (closers.back() != c) Broken(fmt::format("'{}' is expected", closers.back()));
      closers.pop_back();
    }
    ++at_;
  }
  if (!closers.empty()) Broken(fmt::format("'{}' is missing", closers.back()));
  if (at_ == begin) Broken("a value is expected");
}

}  // namespace trireme::data
