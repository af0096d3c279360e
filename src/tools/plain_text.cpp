// OneLine and Wide: a strict decoder of UTF-8 and the characters that a terminal obeys.
#include "plain_text.hpp"

#include <cstdint>

namespace trireme::tools {

namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr const char* kReplacementBytes = "\xEF\xBF\xBD";
constexpr const char* kEllipsis = "\xE2\x80\xA6";

struct Character {
  char32_t value = kReplacement;
  std::size_t bytes = 1;  // taken from the text
};

// The character at the beginning of a text that is not empty; kReplacement and one byte for what is
// no UTF-8: overlong forms, surrogates and numbers beyond Unicode too.
Character First(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead < 0xC2   ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) return {};
  char32_t value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    value = value << 6U | (byte(i) & 0x3FU);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (overlong || surrogate || value > 0x10FFFF) return {};
  return {value, length};
}

// Whether a terminal obeys the character instead of showing it, or shows later ones out of order.
bool Controls(char32_t value) {
  const auto within = [value](char32_t first, char32_t last) {
    return value >= first && value <= last;
  };
  return value < 0x20 || within(0x7F, 0x9F) || value == 0xAD || value == 0x61C ||
         within(0x200B, 0x200F) || within(0x2028, 0x202E) || within(0x2060, 0x206F) ||
         value == 0xFEFF || within(0xFFF9, 0xFFFB) || within(0xE0000, 0xE0FFF);
}

}  // namespace

std::string OneLine(std::string_view text, std::size_t most) {
  std::string line;
  for (std::size_t count = 0; !text.empty(); ++count) {
    const Character character = First(text);
    if (count + 1 == most && character.bytes < text.size()) return line + kEllipsis;
    const std::string_view bytes = text.substr(0, character.bytes);
    if (bytes == "\n" || bytes == "\t" || bytes == "\r") {
      line += ' ';
    } else if (character.value == kReplacement || Controls(character.value)) {
      line += kReplacementBytes;
    } else {
      line += bytes;
    }
    text.remove_prefix(character.bytes);
  }
  return line;
}

std::wstring Wide(std::string_view text) {
  std::wstring wide;
  while (!text.empty()) {
    const Character character = First(text);
    wide += static_cast<wchar_t>(character.value);
    text.remove_prefix(character.bytes);
  }
  return wide;
}

}  // namespace trireme::tools
