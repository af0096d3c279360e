// Byte-level BPE: tokenizer.json, or vocab.json and merges.txt.
#ifndef TRIREME_SRC_DATA_TOKENIZER_BPE_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_BPE_HPP_

#include <memory>
#include <string>

#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Throws InputError naming `where` and the component that is not supported.
std::unique_ptr<Tokenizer> MakeBpe(const Files& files, const std::string& where);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_BPE_HPP_
