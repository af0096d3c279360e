// Cuts of long texts, found by the steps of byte-level BPE themselves.
#ifndef TRIREME_SRC_DATA_TOKENIZER_BPE_CUT_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_BPE_CUT_HPP_

#include <cstddef>
#include <string_view>

#include "added_tokens.hpp"
#include "bpe_definition.hpp"

namespace trireme::data {

// Added tokens by the text in which they are found.
struct AddedLists {
  AddedTokens raw, normalized;
};

// Largest place behind the text's last certain word or added token, whatever follows the text; 0:
// none is known. The first pattern's words are searched from the last added token on, so that it
// takes as long as pre-tokenization.
std::size_t CertainCut(std::string_view text, const BpeDefinition& definition,
                       const AddedLists& added, Pattern::Search& search);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_BPE_CUT_HPP_
