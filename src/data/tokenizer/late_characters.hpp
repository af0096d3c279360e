// Characters that came to Unicode after the version that regular expressions know everywhere.
#ifndef TRIREME_SRC_DATA_TOKENIZER_LATE_CHARACTERS_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_LATE_CHARACTERS_HPP_

#include <span>
#include <string>
#include <string_view>

namespace trireme::data {

// Characters of Unicode 15 to 16, and one that changed its category; PCRE2 10.40 to 10.42 has the
// tables of Unicode 14, the `tokenizers` of today those of 16.
struct LateRange {
  char32_t first, last;
  const char* category;  // general category, "Lu"
};
std::span<const LateRange> LateCharacters();

// True if one of them is in a text of valid UTF-8.
bool HasLateCharacter(std::string_view text);

// Ranges for a class of PCRE2, "\x{1C89}\x{A7CB}-\x{A7CC}", of those in a general category or a
// group of them ("Lu", "L"), or of the script Han ("Han").
std::string LateRangesOf(std::string_view property);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_LATE_CHARACTERS_HPP_
