// UTF-8 as in RFC 3629, with the well-formed sequences of table 3-7 of the Unicode standard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

inline constexpr char32_t kReplacementCode = 0xFFFD;
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";         // U+FEFF

// Whether the byte continues a character that an earlier byte has begun.
inline bool ContinuesCharacter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// Bytes of a character that begins with `lead`; 0: no character does.
inline std::size_t CharacterBytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte < 0x80) return 1;
  if (byte < 0xC2) return 0;
  if (byte < 0xE0) return 2;
  if (byte < 0xF0) return 3;
  return byte < 0xF5 ? 4 : 0;
}

// Offset of the first byte at or after `from` that is not ASCII; text.size() if there is none.
inline std::size_t AsciiEnd(std::string_view text, std::size_t from = 0) {
  constexpr std::uint64_t kNotAscii = 0x8080808080808080U;
  for (std::uint64_t word = 0; from + sizeof word <= text.size(); from += sizeof word) {
    std::memcpy(&word, text.data() + from, sizeof word);
    if ((word & kNotAscii) != 0) break;
  }
  while (from < text.size() && static_cast<unsigned char>(text[from]) < 0x80) ++from;
  return from;
}

// Number of bytes at the beginning of `text` that form a well-formed character or the beginning of
// one; 0 if its first byte begins none. The character is complete if it has CharacterBytes bytes.
std::size_t WellFormedBytes(std::string_view text);

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;
};
// The character at the beginning of `text`; nullopt unless it is complete and well-formed.
std::optional<Character> FirstCharacter(std::string_view text);

// The text with control characters (U+0000 to U+001F, U+007F to U+009F) and bytes that are not
// UTF-8 replaced, so that it cannot upset a terminal. Newlines and tabs stay if `lines`.
std::string Printable(std::string_view text, bool lines = true,
                      std::string_view replacement = kReplacementCharacter);

// Offset of the first byte that belongs to no well-formed character; npos if there is none.
std::size_t FirstInvalidUtf8(std::string_view text);

// Returns the code point at `offset` of valid UTF-8, and moves `offset` past it.
inline char32_t NextCodePoint(std::string_view text, std::size_t& offset) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(offset);
  const int more = first < 0xC0 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
  char32_t code = more == 0 ? first : first & (0x3FU >> more);
  ++offset;
  for (int i = 0; i < more && offset < text.size(); ++i) {
    code = code << 6 | (byte(offset++) & 0x3FU);
  }
  return code;
}

// Appends a code point in UTF-8.
void AppendUtf8(char32_t code, std::string& text);

}  // namespace trireme
