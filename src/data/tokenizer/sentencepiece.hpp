// SentencePiece models, through the library.
#ifndef TRIREME_SRC_DATA_TOKENIZER_SENTENCEPIECE_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_SENTENCEPIECE_HPP_

#include <memory>
#include <string>

#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

inline constexpr const char* kSentencePieceFile = "tokenizer.model";  // in Files

// Throws InputError naming `where` for what is no model.
std::unique_ptr<Tokenizer> MakeSentencePiece(const Files& files, const std::string& where);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_SENTENCEPIECE_HPP_
