// Byte alphabet of byte-level BPE: each byte has a printable character that stands for it in
// vocabularies (Radford et al. 2019, GPT-2's encoder).
#ifndef TRIREME_SRC_DATA_TOKENIZER_BYTE_ALPHABET_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_BYTE_ALPHABET_HPP_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

// Of each byte its character, in UTF-8.
std::array<std::string, 256> ByteAlphabet();

// Bytes that the characters of a vocabulary's entry stand for; none if one of them stands for none.
std::optional<std::string> BytesOf(std::string_view entry);

// Code point that begins at `offset` of valid UTF-8, which is moved past it.
char32_t NextCodePoint(std::string_view text, std::size_t& offset);

// Appends a code point in UTF-8.
void AppendUtf8(char32_t code, std::string& text);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_BYTE_ALPHABET_HPP_
