// Splits that the hashes of few documents leave empty get documents of smallest hash.
#ifndef TRIREME_SRC_DATA_TEXT_FILL_SPLITS_HPP_
#define TRIREME_SRC_DATA_TEXT_FILL_SPLITS_HPP_

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

// A document whose split its hash chose. Sent between ranks as it is.
struct HashedDocument {
  std::uint64_t hash = 0;
  std::uint64_t unit = 0, place = 0;  // its unit, its number there
  std::uint64_t tokens = 0;
  Split split = Split::kTrain;
  std::uint32_t room = 0;

  // The order of the choice, the same for any number of ranks.
  auto operator<=>(const HashedDocument&) const = default;
};

// Documents of smallest hash of each split.
class SmallestHashes {
 public:
  void Add(const HashedDocument& document);
  std::vector<HashedDocument> All() const;

 private:
  static constexpr std::size_t kKept = 8;  // of a split; a move takes one, and a split needs one
  std::array<std::vector<HashedDocument>, 3> smallest_;  // by split, ascending
};

// Sizes of the splits.
struct SplitSizes {
  std::array<std::int64_t, 3> tokens{}, documents{};
};

inline constexpr std::int64_t kLeastTokens = 2;  // of a split: a token and its target

struct DocumentMove {
  HashedDocument document;
  Split to = Split::kTrain;
};

// Documents to move until each split of `wanted` has kLeastTokens, in the order of the splits
// valid, test, train: each time that of smallest hash whose own split keeps a document. The list is
// shorter if there are too few. `sizes`: before; on return, after the moves.
std::vector<DocumentMove> MovesToEmptySplits(std::vector<HashedDocument> documents,
                                             const std::array<bool, 3>& wanted, SplitSizes& sizes);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_FILL_SPLITS_HPP_
