// From regular expressions of `tokenizers` (Oniguruma's, in Ruby's syntax) to those of PCRE2.
#ifndef TRIREME_SRC_DATA_TOKENIZER_PATTERN_SYNTAX_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_PATTERN_SYNTAX_HPP_

#include <string>

namespace trireme::data {

// Expressions for PCRE2 with the options UTF and UCP, and end of line LF.
struct PcrePattern {
  std::string plain;          // for texts without late characters (late_characters.hpp)
  std::string late;           // for any text
  bool looks_behind = false;  // a match depends on the text before its begin
};

// Same matches as Oniguruma's. Throws InputError, with the construct's name alone, for what is not
// known to be the same in both: \b, (?m), &&, classes of POSIX, back references and others.
PcrePattern TranslatePattern(const std::string& expression);

// Expression of a literal.
std::string QuotePattern(const std::string& literal);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_PATTERN_SYNTAX_HPP_
