// Names of the datasets in a token file, and the layout that one rank finds before all ranks read.
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

inline constexpr std::int64_t kTokenAlignment = 64;  // bytes; alignment of each array in memory

// Arrays of a split: token ids; offsets at which documents begin; the loss mask, with 1 for a token
// that counts as a target and 0 for others.
enum class Array { kTokens = 0, kDocuments = 1, kMask = 2 };
inline constexpr std::array<Array, 3> kArrays = {Array::kTokens, Array::kDocuments, Array::kMask};

struct ArrayName {
  Split split = Split::kTrain;
  Array array = Array::kTokens;
};

// Name of a dataset: "/train/tokens", "/train/source", "/train/target_offsets". Pairs have no mask.
std::string PathOf(Split split, Array array, Side side = Side::kText);

// Root attribute `contents` of a file of pairs; other files lack the attribute.
inline constexpr const char* kPairContents = "pairs";

// Where an array lies in the file: contiguous unsigned integers.
struct StoredArray {
  std::int64_t offset = 0;  // bytes from the start of the file
  std::int64_t count = 0;   // elements
  std::int64_t width = 0;   // bytes per element; 0: the file has no such array
  bool big_endian = false;
  bool There() const { return width != 0; }
  std::int64_t Bytes() const { return count * width; }
};

// Everything in a token file except the elements of its arrays.
struct TokenLayout {
  Side side = Side::kText;
  bool two_vocabularies = false;                       // pairs: source and target have their own
  std::array<std::array<StoredArray, 3>, 3> arrays{};  // by Split, by Array
  std::int64_t bytes = 0;                              // size of the file
  std::string sample;  // hash of parts of the arrays; identifies copies on other nodes
  Vocabulary vocabulary;
  std::string tokenizer;
  Files tokenizer_files;  // of a subword tokenizer; otherwise empty
  std::string source_sha256;
  std::optional<double> entropy_rate;

  const StoredArray& Of(Split split, Array array) const {
    return arrays.at(static_cast<std::size_t>(split)).at(static_cast<std::size_t>(array));
  }
  std::int64_t Tokens(Split split) const { return Of(split, Array::kTokens).count; }
  std::string PathOf(Split split, Array array) const { return data::PathOf(split, array, side); }
};

// Reads and checks everything but the arrays' elements. Serial. Throws InputError, also if a file
// of pairs is read as single texts (kText) or the reverse.
TokenLayout InspectTokenFile(const std::string& path, Side side = Side::kText);
// Whether the file is one of pairs. Serial. Throws InputError if it cannot be read.
bool HoldsPairs(const std::string& path);

// Sends root's layout to every rank. Collective.
void Broadcast(const comm::Communicator& world, TokenLayout& layout);

}  // namespace trireme::data
