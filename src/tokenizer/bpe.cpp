// Placeholder of the interface, replaced in the next step.
#include "bpe.hpp"

#include "trireme/base/error.hpp"

namespace trireme::tokenizer {

std::unique_ptr<Tokenizer> MakeBpe(const Files&, const std::string& where) {
  throw InputError(where + ": not built yet");
}

}  // namespace trireme::tokenizer
