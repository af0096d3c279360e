// Files of texts and tokenizers that rank 0 finds and reads for all ranks, before they encode.
#ifndef TRIREME_SRC_DATA_TEXT_SHARE_TEXTS_HPP_
#define TRIREME_SRC_DATA_TEXT_SHARE_TEXTS_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "inputs.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Collective. The first rank's files, on every rank.
std::vector<TextFile> ShareFiles(const comm::Communicator& world,
                                 const std::vector<TextFile>& files);

// A tokenizer as the deck names it.
struct TokenizerName {
  std::string path = {};  // a file, a folder, or a token file; empty: none is named
  const char* key = "tokenize.tokenizer";
  Side side = Side::kTarget;  // whose tokenizer a file of pairs gives
};

// Files of a named tokenizer. Serial. Throws InputError, with the deck's line for a missing name
// and for a token file without one.
Files NamedTokenizer(const TokenizerName& name, TokenizeKind kind,
                                const deck::Deck& deck);

// Collective. The tokenizer of the files that the first rank gets from `files_of`. Throws
// AgreedError, with the deck's line for one of another kind.
std::unique_ptr<Tokenizer> ShareTokenizer(
    const comm::Communicator& world, const TokenizerName& name, TokenizeKind kind,
    const deck::Deck& deck, const std::function<Files()>& files_of);

// Id of the token that ends a text: tokenize.eos or the tokenizer's own. Throws InputError with the
// deck's line.
std::int64_t EosOf(const Tokenizer& tokenizer, const TokenizeOptions& options,
                   const deck::Deck& deck);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_SHARE_TEXTS_HPP_
