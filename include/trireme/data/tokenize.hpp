// job.task = tokenize: text files, or the built-in harbour corpus, into a token file.
#ifndef TRIREME_DATA_TOKENIZE_HPP_
#define TRIREME_DATA_TOKENIZE_HPP_

#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

// Tokenises as the deck says, in memory. Serial. Throws InputError with the deck's line for a
// missing or empty file, an empty split, bad UTF-8 (file, line, byte offset), or keys that do not
// fit together.
TokenData Tokenize(const TokenizeOptions& options, const input::Deck& deck);

}  // namespace trireme::data

#endif  // TRIREME_DATA_TOKENIZE_HPP_
