// The collective reading of a token file's tokens.
#ifndef TRIREME_SRC_DATA_TOKEN_FILE_READ_HPP_
#define TRIREME_SRC_DATA_TOKEN_FILE_READ_HPP_

#include <string>

#include "token_memory.hpp"

namespace trireme::data {

// Collective over `world`: fills `memory` and publishes it. Throws AgreedError for a file that
// cannot be read, and for the first token whose id is not below the vocabulary.
void ReadTokens(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKEN_FILE_READ_HPP_
