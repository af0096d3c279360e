// Positions of a sequence that a context rank holds: an early and a late block, so that causal
// attention costs every rank about the same (Brandon et al. 2023, "Striped attention", name the
// imbalance; the two-block cut is that of Megatron-LM and Llama 3).
#ifndef TRIREME_BASE_POSITIONS_HPP_
#define TRIREME_BASE_POSITIONS_HPP_

#include <cstdint>
#include <limits>

#include "trireme/base/partition.hpp"

namespace trireme {

// Local position p is early.begin + p or, after the early block, in the late one. The default holds
// everything: a local position is the global one.
struct Positions {
  Part early{0, std::numeric_limits<std::int64_t>::max()};
  Part late{0, 0};

  std::int64_t At(std::int64_t local) const {
    return local < early.Size() ? early.begin + local : late.begin + (local - early.Size());
  }
  std::int64_t Count() const { return early.Size() + late.Size(); }  // not of the default
};

// Positions of one of `ranks` ranks. PartOf cuts a sequence of `length` into 2 ranks blocks; rank r
// has blocks r and 2 ranks - 1 - r. A block may be empty. One rank: [0, length).
inline Positions PositionsOf(std::int64_t length, int rank, int ranks) {
  if (ranks == 1) return {{0, length}, {length, length}};
  return {PartOf(length, rank, 2 * ranks), PartOf(length, 2 * ranks - 1 - rank, 2 * ranks)};
}

}  // namespace trireme

#endif  // TRIREME_BASE_POSITIONS_HPP_
