// SentencePiece's models are refused so far.
#include "sentencepiece.hpp"

#include "trireme/base/error.hpp"

namespace trireme::tokenizer {

std::unique_ptr<Tokenizer> MakeSentencePiece(const Files&, const std::string& where) {
  throw InputError(where + ": SentencePiece models are not supported yet");
}

}  // namespace trireme::tokenizer
