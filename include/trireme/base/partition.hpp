// The cut of a count into parts of nearly equal size: the one rule for samples, vocabulary, hidden
// features and rows.
#pragma once

#include <cstdint>
#include <limits>

namespace trireme {

// The smallest integer not below count / size.
inline std::int64_t CeilDivide(std::int64_t count, std::int64_t size) {
  return count / size + (count % size != 0 ? 1 : 0);
}

// The half-open range [begin, end).
struct Part {
  std::int64_t begin = 0, end = 0;
  std::int64_t Size() const { return end - begin; }
};

// Part `which` of `parts`: [floor(which total / parts), floor((which + 1) total / parts)). parts
// need not divide total; sizes differ by one at most.
inline Part PartOf(std::int64_t total, int which, int parts) {
  // In two terms: total times parts may pass 64 bits.
  const std::int64_t whole = total / parts, rest = total % parts;
  const auto at = [&](std::int64_t i) { return i * whole + i * rest / parts; };
  return {at(which), at(which + 1)};
}

// Positions of a sequence that a context rank holds: an early and a late block, so that causal
// attention costs every rank about the same (Brandon et al. 2023, "Striped attention", name the
// imbalance; the two-block cut is that of Megatron-LM and Llama 3).

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
