// Cuts a count into parts of nearly equal size: the one rule for samples, vocabulary, hidden
// features and rows.
#pragma once

#include <cstdint>
#include <limits>

namespace trireme {

// count / size, rounded up.
inline std::int64_t CeilDivide(std::int64_t count, std::int64_t size) {
  return count / size + (count % size != 0 ? 1 : 0);
}
// The least multiple of `unit` that is not below `count`.
inline std::int64_t RoundUp(std::int64_t count, std::int64_t unit) {
  return CeilDivide(count, unit) * unit;
}

// The half-open range [begin, end).
struct Part {
  std::int64_t begin = 0, end = 0;
  std::int64_t Size() const { return end - begin; }
};

// Part `which` of `parts`: [floor(which total / parts), floor((which + 1) total / parts)). `parts`
// need not divide `total`; sizes differ by at most one.
inline Part PartOf(std::int64_t total, int which, int parts) {
  // In two terms, since total times parts may exceed 64 bits.
  const std::int64_t whole = total / parts, rest = total % parts;
  const auto at = [&](std::int64_t i) { return i * whole + i * rest / parts; };
  return {at(which), at(which + 1)};
}

// Positions of a sequence that a context rank holds: an early and a late block, so that causal
// attention costs all ranks about the same (the imbalance is named in Brandon et al. 2023, "Striped
// attention"; Megatron-LM and Llama 3 use this cut into two blocks). Local position p is position
// early.begin + p or, after the early block, one in the late block. The default holds all
// positions: a local position is the global one.
struct Positions {
  Part early{0, std::numeric_limits<std::int64_t>::max()};
  Part late{0, 0};

  std::int64_t At(std::int64_t local) const {
    return local < early.Size() ? early.begin + local : late.begin + (local - early.Size());
  }
  std::int64_t Count() const { return early.Size() + late.Size(); }  // not valid for the default
};

// Positions of rank `rank` of `ranks`. PartOf cuts a sequence of `length` into 2 ranks blocks, and
// rank r holds blocks r and 2 ranks - 1 - r. A block may be empty. One rank: [0, length).
inline Positions PositionsOf(std::int64_t length, int rank, int ranks) {
  if (ranks == 1) return {{0, length}, {length, length}};
  return {PartOf(length, rank, 2 * ranks), PartOf(length, 2 * ranks - 1 - rank, 2 * ranks)};
}

}  // namespace trireme
