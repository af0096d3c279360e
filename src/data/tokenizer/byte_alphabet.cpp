// Byte alphabet of byte-level BPE, and the little UTF-8 that it needs.
#include "byte_alphabet.hpp"

#include <map>

namespace trireme::data {

namespace {

// Printable Latin-1 bytes stand for themselves, the others for code points from 256 on, in order.
std::array<char32_t, 256> CodePoints() {
  std::array<char32_t, 256> codes{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    codes[byte] = printable ? byte : next++;
  }
  return codes;
}

}  // namespace

void AppendUtf8(char32_t code, std::string& text) {
  const auto low = [&](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xc0 | (code >> 6)), low(0)};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xe0 | (code >> 12)), low(6), low(0)};
  } else {
    text += {static_cast<char>(0xf0 | (code >> 18)), low(12), low(6), low(0)};
  }
}

char32_t NextCodePoint(std::string_view text, std::size_t& offset) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(offset);
  const int more = first < 0xc0 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  char32_t code = more == 0 ? first : first & (0x3fU >> more);
  ++offset;
  for (int i = 0; i < more && offset < text.size(); ++i) {
    code = code << 6 | (byte(offset++) & 0x3f);
  }
  return code;
}

std::array<std::string, 256> ByteAlphabet() {
  std::array<std::string, 256> characters;
  const std::array<char32_t, 256> codes = CodePoints();
  for (std::size_t byte = 0; byte < 256; ++byte) AppendUtf8(codes[byte], characters[byte]);
  return characters;
}

std::optional<std::string> BytesOf(std::string_view entry) {
  static const std::map<char32_t, char> byte_of = [] {
    std::map<char32_t, char> bytes;
    const std::array<char32_t, 256> codes = CodePoints();
    for (std::size_t byte = 0; byte < 256; ++byte) bytes[codes[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string bytes;
  for (std::size_t offset = 0; offset < entry.size();) {
    const auto found = byte_of.find(NextCodePoint(entry, offset));
    if (found == byte_of.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

}  // namespace trireme::data
