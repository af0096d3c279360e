// Optional datasets of a token file: where its documents begin, and which tokens count as targets.
#ifndef TRIREME_SRC_DATA_TOKEN_MASKS_HPP_
#define TRIREME_SRC_DATA_TOKEN_MASKS_HPP_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "token_layout.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::data {

// By Split; empty where the file has none.
struct TokenMasks {
  std::array<std::vector<std::int64_t>, 3> documents;  // offsets, strictly ascending from 0
  std::array<std::vector<std::uint8_t>, 3> counted;    // [tokens]: 0 or 1
};

// Serial. Throws InputError, naming dataset and offset, for numbers that are none of these.
TokenMasks ReadMasks(const std::string& path, const TokenLayout& layout);

// Collective: root's masks reach every rank.
void Broadcast(const comm::Communicator& world, TokenMasks& masks);

// Serial. Sets the presence of documents and masks in `counts`; reads neither.
void FindMasks(const std::string& path, TokenCounts& counts);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKEN_MASKS_HPP_
