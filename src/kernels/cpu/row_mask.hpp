// A thread's mask generator: the dropout lanes of one row at a time.
#ifndef TRIREME_SRC_KERNELS_CPU_ROW_MASK_HPP_
#define TRIREME_SRC_KERNELS_CPU_ROW_MASK_HPP_

#include <cstdint>

#include "rows.hpp"
#include "thread_scratch.hpp"
#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

class RowMask {
 public:
  // For rows of up to `features` columns. An inactive dropout changes nothing.
  RowMask(const Dropout& dropout, std::int64_t features)
      : dropout_(dropout),
        key_(MakeKey(dropout.seed, dropout.purpose, dropout.layer, dropout.site)),
        threshold_(dropout.Threshold()),
        scale_(dropout.Scale()),
        room_(features + 2 * kLanes) {}

  // Lanes of the matrix's row `row`, valid until this thread's next call on any mask.
  rows::RowLanes Lanes(std::int64_t row, std::int64_t n) const {
    if (!Active()) return {};
    const std::int64_t global = dropout_.first_row + row;
    return Lanes(dropout_.ordinals[global / dropout_.length], dropout_.PositionOf(row), n);
  }
  // y = mask of the matrix's row `row` applied to x; y may be x. Active() only.
  template <typename T>
  void Apply(std::int64_t row, const T* x, T* y, std::int64_t n) const {
    rows::Mask(x, Lanes(row, n), y, n);
  }
  // The same for a row of that sample and that position in its sequence.
  template <typename T>
  void Apply(std::uint64_t ordinal, std::int64_t position, const T* x, T* y, std::int64_t n) const {
    rows::Mask(x, Lanes(ordinal, position, n), y, n);
  }
  bool Active() const { return threshold_ > 0; }

 private:
  rows::RowLanes Lanes(std::uint64_t ordinal, std::int64_t position, std::int64_t n) const {
    // A slice may begin within a counter's lanes: from the counter's first one on.
    const std::int64_t skipped = dropout_.first_feature % kLanes;
    auto* lanes = ThreadScratch<RowMask, std::uint16_t>(room_);
    rows::PhiloxLanes(key_, static_cast<std::uint32_t>(dropout_.first_feature / kLanes),
                      static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(ordinal),
                      static_cast<std::uint32_t>(ordinal >> 32), skipped + n, lanes);
    return {lanes + skipped, threshold_, scale_};
  }

  static constexpr std::int64_t kLanes = 8;  // features per Philox counter
  Dropout dropout_;
  PhiloxKey key_;
  std::uint32_t threshold_;
  double scale_;
  std::int64_t room_;  // elements that the lanes of a row may take
};

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_ROW_MASK_HPP_
