// Word-level tokenisation of three texts.
#ifndef TRIREME_SRC_DATA_TOKENIZE_WORD_HPP_
#define TRIREME_SRC_DATA_TOKENIZE_WORD_HPP_

#include <array>
#include <cstdint>
#include <string>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

struct SourceText {
  std::string path;  // for messages
  std::string text;
};

struct WordOptions {
  bool lowercase = false;
  std::int64_t min_count = 1;  // words of the train split that occur less often become <unk>
};

// Tokenises by blanks, one <eos> per line. The vocabulary is that of the train split, with <eos>
// and <unk>, in order of falling frequency, then of bytes. Throws InputError for bad UTF-8.
TokenData TokenizeWords(std::array<SourceText, 3> sources, const WordOptions& options);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZE_WORD_HPP_
