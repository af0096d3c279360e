// The names inside a token file, and all that one rank finds out before every rank reads the
// tokens.
#ifndef TRIREME_SRC_DATA_TOKEN_LAYOUT_HPP_
#define TRIREME_SRC_DATA_TOKEN_LAYOUT_HPP_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/tokenizer/tokenizer.hpp"

namespace trireme::data {

inline constexpr std::int64_t kTokenFormat = 1;  // root attribute `format`

inline constexpr std::int64_t kTokenAlignment = 64;  // bytes in memory, of a split's first token

// "/train/tokens"
std::string TokensOf(Split split);

// Contents except the tokens.
struct TokenLayout {
  std::array<std::int64_t, 3> counts{};  // tokens, by Split
  std::array<std::int64_t, 3> widths{};  // bytes per token: 2 or 4, by Split
  Vocabulary vocabulary;
  std::string tokenizer;
  tokenizer::Files tokenizer_files;  // of kind bpe; else empty
  std::string source_sha256;
  std::optional<double> entropy_rate;
};

// Throws InputError unless the HDF5 file is as long as its superblock says. Returns that length:
// HDF5 reads nothing after it.
std::int64_t CheckWhole(const std::string& path);

// Reads and checks everything but the tokens. Serial. Throws InputError.
TokenLayout InspectTokenFile(const std::string& path);

// Collective. Hands root's layout to every rank.
void Broadcast(const comm::Communicator& world, TokenLayout& layout);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKEN_LAYOUT_HPP_
