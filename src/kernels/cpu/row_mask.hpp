// A thread's mask generator: the dropout lanes of one row at a time, in a buffer of its own.
#ifndef TRIREME_KERNELS_CPU_ROW_MASK_HPP_
#define TRIREME_KERNELS_CPU_ROW_MASK_HPP_

#include <cstdint>
#include <vector>

#include "rows.hpp"
#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

class RowMask {
 public:
  // For rows of `features` columns. An inactive dropout needs no buffer and changes nothing.
  RowMask(const Dropout& dropout, std::int64_t features)
      : dropout_(dropout),
        key_(MakeKey(dropout.seed, dropout.purpose, dropout.layer, dropout.site)),
        lanes_(dropout.Active() ? static_cast<std::size_t>(features + 2 * kLanes) : 0) {}

  // y = mask of the matrix's row `row` applied to x; y may be x.
  template <typename T>
  void Apply(std::int64_t row, const T* x, T* y, std::int64_t n) {
    const std::int64_t global = dropout_.first_row + row;
    Apply(dropout_.ordinals[global / dropout_.length], dropout_.PositionOf(row), x, y, n);
  }
  // The same for a row of that sample and that position in its sequence.
  template <typename T>
  void Apply(std::uint64_t ordinal, std::int64_t position, const T* x, T* y, std::int64_t n) {
    // A slice may begin within a counter's lanes: from the counter's first one on.
    const std::int64_t skipped = dropout_.first_feature % kLanes;
    rows::PhiloxLanes(key_, static_cast<std::uint32_t>(dropout_.first_feature / kLanes),
                      static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(ordinal),
                      static_cast<std::uint32_t>(ordinal >> 32), skipped + n, lanes_.data());
    rows::Mask(x, lanes_.data() + skipped, dropout_.Threshold(), static_cast<T>(dropout_.Scale()),
               y, n);
  }
  bool Active() const { return dropout_.Active(); }

 private:
  static constexpr std::int64_t kLanes = 8;  // features a Philox counter
  Dropout dropout_;
  PhiloxKey key_;
  std::vector<std::uint16_t> lanes_;
};

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_ROW_MASK_HPP_
