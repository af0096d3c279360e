// The cut of a piece among the ranks of a shard group.
#ifndef TRIREME_PARALLEL_SHARDING_CUT_HPP_
#define TRIREME_PARALLEL_SHARDING_CUT_HPP_

#include <cstdint>

#include "trireme/comm/counts.hpp"
#include "trireme/kernels/ownership.hpp"

namespace trireme::parallel {

// Elements. Parts of a length that is cut evenly begin on a cache line, as parameters do.
inline constexpr std::int64_t kCut = 32;

// The part of `length` elements, cut evenly, that rank `rank` of `ranks` owns; relative to their
// first.
inline Part OwnPart(std::int64_t length, int rank, int ranks) {
  return comm::PartOfGrains(length, kCut, rank, ranks);
}

// Elements that each rank owns, of a length cut evenly, and of a piece.
inline comm::Counts OwnCounts(std::int64_t length) { return comm::Counts::Cut(length, kCut); }
inline comm::Counts OwnCounts(const kernels::Piece& piece) {
  if (piece.counts.empty()) return OwnCounts(piece.range.Size());
  return {piece.counts};
}

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARDING_CUT_HPP_
