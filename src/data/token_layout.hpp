// The names inside a token file, and all that one rank finds out before every rank reads the
// tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

inline constexpr std::int64_t kTokenFormat = 1;  // root attribute `format`

inline constexpr std::int64_t kTokenAlignment = 64;  // bytes in memory, of a split's first token

// Arrays of a split: ids; offsets at which documents begin; 1 for a token that counts as a target,
// else 0.
enum class Array { kTokens = 0, kDocuments = 1, kMask = 2 };
inline constexpr std::array<Array, 3> kArrays = {Array::kTokens, Array::kDocuments, Array::kMask};

struct ArrayName {
  Split split = Split::kTrain;
  Array array = Array::kTokens;
};

// "/train/tokens", "/train/source", "/train/target_offsets". Pairs have no mask.
std::string PathOf(Split split, Array array, Side side = Side::kText);

// Value of the root attribute `contents` of a file of pairs; other files have no such attribute.
inline constexpr const char* kPairContents = "pairs";

// An array in the file: unsigned integers in one piece.
struct StoredArray {
  std::int64_t offset = 0;  // bytes, in the file
  std::int64_t count = 0;   // elements
  std::int64_t width = 0;   // bytes of one; 0: the file has no such array
  bool big_endian = false;
  bool There() const { return width != 0; }
  std::int64_t Bytes() const { return count * width; }
};

// Contents except the arrays' elements.
struct TokenLayout {
  Side side = Side::kText;
  bool two_vocabularies = false;                       // of pairs: source and target have their own
  std::array<std::array<StoredArray, 3>, 3> arrays{};  // by Split, by Array
  std::int64_t bytes = 0;                              // of the file
  std::string sample;  // hash of parts of the arrays, by which copies on other nodes are known
  Vocabulary vocabulary;
  std::string tokenizer;
  Files tokenizer_files;  // of kind bpe; else empty
  std::string source_sha256;
  std::optional<double> entropy_rate;

  const StoredArray& Of(Split split, Array array) const {
    return arrays.at(static_cast<std::size_t>(split)).at(static_cast<std::size_t>(array));
  }
  std::int64_t Tokens(Split split) const { return Of(split, Array::kTokens).count; }
  std::string PathOf(Split split, Array array) const { return data::PathOf(split, array, side); }
};

// Reads and checks everything but the arrays' elements. Serial. Throws InputError, also for a file
// of pairs that is read as one text, and the other way round.
TokenLayout InspectTokenFile(const std::string& path, Side side = Side::kText);
// Whether the file says that it holds pairs. Serial. Throws InputError if it cannot be read.
bool HoldsPairs(const std::string& path);

// Collective. Hands root's layout to every rank.
void Broadcast(const comm::Communicator& world, TokenLayout& layout);

}  // namespace trireme::data
