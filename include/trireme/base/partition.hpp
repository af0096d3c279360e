// The cut of a count into parts of nearly equal size: the one rule for samples, vocabulary, hidden
// features and rows.
#ifndef TRIREME_BASE_PARTITION_HPP_
#define TRIREME_BASE_PARTITION_HPP_

#include <cstdint>

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

}  // namespace trireme

#endif  // TRIREME_BASE_PARTITION_HPP_
