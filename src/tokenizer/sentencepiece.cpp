// Placeholder of the interface, replaced in the next step.
#include "sentencepiece.hpp"

#include "trireme/base/error.hpp"

namespace trireme::tokenizer {

std::unique_ptr<Tokenizer> MakeSentencePiece(const Files&, const std::string& where) {
  throw InputError(where + ": not built yet");
}

}  // namespace trireme::tokenizer
