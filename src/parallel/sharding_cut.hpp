// How the elements of a piece are shared out among the ranks of a shard group.
#ifndef TRIREME_PARALLEL_SHARDING_CUT_HPP_
#define TRIREME_PARALLEL_SHARDING_CUT_HPP_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"

namespace trireme::parallel {

// Elements. Parts begin on a line of the cache, as parameters do.
inline constexpr std::int64_t kCut = 32;

// Part of `length` elements that rank `rank` of `ranks` owns; relative to their first.
inline Part OwnPart(std::int64_t length, int rank, int ranks) {
  const Part lines = PartOf(CeilDivide(length, kCut), rank, ranks);
  return {std::min(length, lines.begin * kCut), std::min(length, lines.end * kCut)};
}

// What each rank owns of them: elements.
inline std::vector<std::int64_t> OwnCounts(std::int64_t length, int ranks) {
  std::vector<std::int64_t> counts;
  counts.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(OwnPart(length, rank, ranks).Size());
  return counts;
}

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARDING_CUT_HPP_
