// The collective reading of a token file's arrays into memory.
#ifndef TRIREME_SRC_DATA_TOKEN_FILE_READ_HPP_
#define TRIREME_SRC_DATA_TOKEN_FILE_READ_HPP_

#include <cstdint>
#include <functional>
#include <string>

#include "element_checks.hpp"
#include "token_memory.hpp"

namespace trireme::data {

// Most bytes that all readers together read in one round: a fraction of a second, and an int for
// MPI's counts and displacements.
inline constexpr std::int64_t kRoundBytes = std::int64_t{1} << 28;

// Collective over `world`: fills `memory` with the splits that it keeps, and publishes it.
// after_round (may be empty) is called on all ranks after each round; an AgreedError of it ends the
// reading. Throws AgreedError for a file that cannot be read or has changed since it was inspected,
// and for the first bad element of an array.
void ReadArrays(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory, const std::function<void()>& after_round = {},
                std::int64_t round_bytes = kRoundBytes);

// Collective over `world`. bad: a bad element that this rank has found, at kNoElement for none. All
// throw an AgreedError for the first one of all ranks.
void AgreeOnBad(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                const ArrayName& array, BadValue bad);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKEN_FILE_READ_HPP_
