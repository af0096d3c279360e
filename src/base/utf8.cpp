// Decoding and encoding of UTF-8.
#include "trireme/base/utf8.hpp"

#include <algorithm>

namespace trireme {

namespace {

// Whether `byte` may be second in a character that begins with `lead`.
bool MayFollow(unsigned char lead, unsigned char byte) {
  const unsigned char least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return byte >= least && byte <= most;
}

}  // namespace

std::size_t WellFormedBytes(std::string_view text) {
  if (text.empty()) return 0;
  const std::size_t length = std::min(CharacterBytes(text[0]), text.size());
  if (length < 2) return length;
  if (!MayFollow(static_cast<unsigned char>(text[0]), static_cast<unsigned char>(text[1]))) {
    return 1;
  }
  std::size_t good = 2;
  while (good < length && ContinuesCharacter(text[good])) ++good;
  return good;
}

std::optional<Character> FirstCharacter(std::string_view text) {
  const std::size_t bytes = WellFormedBytes(text);
  if (bytes == 0 || bytes != CharacterBytes(text[0])) return std::nullopt;
  std::size_t end = 0;
  return Character{NextCodePoint(text, end), bytes};
}

std::string Printable(std::string_view text, bool lines, std::string_view replacement) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto character = FirstCharacter(text.substr(i));
    const char32_t code = character ? character->code : U'\0';
    const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    const bool stays = !control || (lines && (code == U'\n' || code == U'\t'));
    out.append(stays ? text.substr(i, character->bytes) : replacement);
    i += character ? character->bytes : 1;
  }
  return out;
}

std::size_t FirstInvalidUtf8(std::string_view text) {
  for (std::size_t at = AsciiEnd(text); at < text.size(); at = AsciiEnd(text, at)) {
    const std::size_t good = WellFormedBytes(text.substr(at));
    if (good == 0 || good != CharacterBytes(text[at])) return at;
    at += good;
  }
  return std::string_view::npos;
}

void AppendUtf8(char32_t code, std::string& text) {
  const auto low = [&](int shift) { return static_cast<char>(0x80U | ((code >> shift) & 0x3FU)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0U | (code >> 6)), low(0)};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0U | (code >> 12)), low(6), low(0)};
  } else {
    text += {static_cast<char>(0xF0U | (code >> 18)), low(12), low(6), low(0)};
  }
}

}  // namespace trireme
