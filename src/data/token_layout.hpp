// Names of the datasets in a token file, and the layout that one rank finds before all ranks read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

// Name of a dataset: "/train/tokens", "/train/source", "/train/target_offsets". Pairs have no mask.
std::string PathOf(Split split, Array array, Side side = Side::kText);

// Deck key of a split's texts: "tokenize.train" or, for pairs, "tokenize.source",
// "tokenize.valid_target".
std::string KeyOfTexts(Split split, Side side);

// Root attribute `contents` of a file of pairs; other files lack the attribute.
inline constexpr const char* kPairContents = "pairs";

// An array in the file: contiguous unsigned integers.
struct StoredArray {
  Split split = Split::kTrain;
  Array array = Array::kTokens;
  Side side = Side::kText;
  std::uint64_t limit = 0;  // elements are below it: words, tokens of the split, or 2
  std::int64_t offset = 0;  // bytes from the start of the file
  std::int64_t count = 0;   // elements
  std::int64_t width = 0;   // bytes per element; 0: the file has no such array
  bool big_endian = false;
  bool There() const { return width != 0; }
  std::int64_t Bytes() const { return count * width; }
  std::string Path() const { return PathOf(split, array, side); }
};

// The numbers of a layout. Sent between ranks as raw bytes.
struct LayoutNumbers {
  Side side = Side::kText;
  bool two_vocabularies = false;                       // pairs: source and target have their own
  std::array<std::array<StoredArray, 3>, 3> arrays{};  // by Split, by Array
  std::int64_t bytes = 0;                              // size of the file
  std::optional<double> entropy_rate;
};

// Everything in a token file except the elements of its arrays.
struct TokenLayout : LayoutNumbers {
  std::string sample;  // hash of parts of the arrays; identifies copies on other nodes
  Vocabulary vocabulary;
  std::string tokenizer;
  Files tokenizer_files;  // of a subword tokenizer; otherwise empty
  std::string source_sha256;

  const StoredArray& Of(Split split, Array array) const {
    return arrays.at(static_cast<std::size_t>(split)).at(static_cast<std::size_t>(array));
  }
  std::int64_t Tokens(Split split) const { return Of(split, Array::kTokens).count; }
};

// Reads and checks everything but the arrays' elements. Serial. Throws InputError, also if a file
// of pairs is read as single texts (kText) or the reverse.
TokenLayout InspectTokenFile(const std::string& path, Side side = Side::kText);
// Whether the file is one of pairs. Serial. Throws InputError if it cannot be read.
bool HoldsPairs(const std::string& path);

// Calls visit(split, array, its values) for the arrays of all splits; those that the data lack are
// empty.
template <typename Visit>
void VisitArrays(const TokenData& data, Visit visit) {
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    visit(split, Array::kTokens, data.tokens.at(s));
    visit(split, Array::kDocuments, data.documents.at(s));
    visit(split, Array::kMask, data.counted.at(s));
  }
}

// Throws InputError, which begins with `what`, for a split of fewer than 2 tokens, an id outside
// the vocabulary, and a mask of another length.
void CheckTokens(const TokenData& data, const std::string& what);

// Sends root's texts, which may be many, to every rank. Collective.
void Broadcast(const comm::Communicator& world, std::vector<std::string>& texts);
// Sends root's layout to every rank. Collective.
void Broadcast(const comm::Communicator& world, TokenLayout& layout);

}  // namespace trireme::data
