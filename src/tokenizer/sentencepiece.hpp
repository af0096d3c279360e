// SentencePiece models, through the library.
#ifndef TRIREME_SRC_TOKENIZER_SENTENCEPIECE_HPP_
#define TRIREME_SRC_TOKENIZER_SENTENCEPIECE_HPP_

#include <memory>
#include <string>

#include "trireme/tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

inline constexpr const char* kSentencePieceFile = "tokenizer.model";  // in Files

// Throws InputError naming `where` for what is no model.
std::unique_ptr<Tokenizer> MakeSentencePiece(const Files& files, const std::string& where);

}  // namespace trireme::tokenizer

#endif  // TRIREME_SRC_TOKENIZER_SENTENCEPIECE_HPP_
