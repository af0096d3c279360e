// How the elements of a piece are shared out among the ranks of a shard group.
#ifndef TRIREME_PARALLEL_SHARDING_CUT_HPP_
#define TRIREME_PARALLEL_SHARDING_CUT_HPP_

#include <cstdint>

#include "trireme/comm/counts.hpp"

namespace trireme::parallel {

// Elements. Parts begin on a line of the cache, as parameters do.
inline constexpr std::int64_t kCut = 32;

// Part of `length` elements that rank `rank` of `ranks` owns; relative to their first.
inline Part OwnPart(std::int64_t length, int rank, int ranks) {
  return comm::PartOfGrains(length, kCut, rank, ranks);
}

// What each rank owns of them.
inline comm::Counts OwnCounts(std::int64_t length) { return comm::Counts::Cut(length, kCut); }

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARDING_CUT_HPP_
