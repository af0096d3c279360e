// Search for a parameter whose gradient is not finite.
#ifndef TRIREME_SRC_PARALLEL_NOT_FINITE_HPP_
#define TRIREME_SRC_PARALLEL_NOT_FINITE_HPP_

#include <algorithm>
#include <cstdint>
#include <string>

#include "trireme/base/partition.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::parallel {

// Name of the first parameter in the flat range with a gradient that is not finite; empty: none.
// gradients: of the range, from its first element on, in the stream's memory.
std::string FirstNotFinite(const device::Stream& stream, const kernels::Registry& registry,
                           Part flat, void* gradients);

// Memory that MPI itself takes for sums under way on CPUs.

// Bytes of first sums under way at once on CPUs: as many of the oldest as exceed it are awaited
// before the next one starts. Enough to keep a network busy.
inline constexpr std::int64_t kUnderWayBytes = std::int64_t{16} << 20;

// Operands' lengths of memory that Open MPI 4's non-blocking reduce-scatter touches on the rank
// that takes most: sums climb a binomial tree to rank 0, and what a rank receives comes into one of
// two halves in turn.
inline int ScatterCopies(int ranks) { return std::min(ranks - 1, 2); }

// The same for its non-blocking all-reduce: that tree and back with fewer than four ranks, else a
// ring.
inline int ReduceCopies(int ranks) {
  constexpr int kRing = 4;
  return ranks < kRing ? ScatterCopies(ranks) : 1;
}

}  // namespace trireme::parallel

#endif  // TRIREME_SRC_PARALLEL_NOT_FINITE_HPP_
