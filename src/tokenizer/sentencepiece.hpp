// SentencePiece's models through its library.
#ifndef TRIREME_SRC_TOKENIZER_SENTENCEPIECE_HPP_
#define TRIREME_SRC_TOKENIZER_SENTENCEPIECE_HPP_

#include <memory>
#include <string>

#include "trireme/tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

// Throws InputError naming `where` for a model that the library cannot load.
std::unique_ptr<Tokenizer> MakeSentencePiece(const Files& files, const std::string& where);

}  // namespace trireme::tokenizer

#endif  // TRIREME_SRC_TOKENIZER_SENTENCEPIECE_HPP_
