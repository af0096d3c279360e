// Counts: elements of a transfer that belong to each rank of a group.
#ifndef TRIREME_COMM_COUNTS_HPP_
#define TRIREME_COMM_COUNTS_HPP_

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/base/partition.hpp"

namespace trireme::comm {

// Part of `length` elements for rank `rank` of `ranks`, cut between grains only: as even as
// possible, the last grain short if it must be.
inline Part PartOfGrains(std::int64_t length, std::int64_t grain, int rank, int ranks) {
  const Part grains = PartOf(CeilDivide(length, grain), rank, ranks);
  return {std::min(length, grains.begin * grain), std::min(length, grains.end * grain)};
}

// A list, or a rule that needs no list. Passed by value.
class Counts {
 public:
  // counts[r] elements for rank r; the list, [ranks], must outlive this.
  template <std::convertible_to<std::span<const std::int64_t>> List>
  Counts(const List& counts)  // NOLINT(google-explicit-constructor): a list is counts
      : list_(counts) {}
  // `length` elements, cut by PartOfGrains.
  static Counts Cut(std::int64_t length, std::int64_t grain = 1) { return {length, grain}; }

  std::int64_t Of(int rank, int ranks) const {
    return grain_ == 0 ? list_[static_cast<std::size_t>(rank)]
                       : PartOfGrains(length_, grain_, rank, ranks).Size();
  }
  std::int64_t Largest(int ranks) const {
    std::int64_t largest = 0;
    for (int rank = 0; rank < ranks; ++rank) largest = std::max(largest, Of(rank, ranks));
    return largest;
  }
  bool Suit(int ranks) const { return grain_ > 0 || std::ssize(list_) == ranks; }
  std::size_t ListSize() const { return list_.size(); }

 private:
  Counts(std::int64_t length, std::int64_t grain) : length_(length), grain_(grain) {}
  std::span<const std::int64_t> list_;
  std::int64_t length_ = 0, grain_ = 0;  // grain 0: the list counts
};

}  // namespace trireme::comm

#endif  // TRIREME_COMM_COUNTS_HPP_
