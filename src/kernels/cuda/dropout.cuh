// Dropout masks in kernels (kernels/elementwise.hpp): one Philox counter serves eight neighbouring
// features.
#pragma once

#include <cuda_runtime.h>
#include <algorithm>
#include <cstdint>
#include <limits>

#include "trireme/base/philox.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

// Dropout's 16-bit random numbers, the same bits as on the CPU.

inline constexpr int kPhiloxLanes = 8;  // 16-bit lanes per counter

// Numbers of one counter: four words, each with the lower lane first.
struct PhiloxBits {
  std::uint32_t words[4];

  // Uses selections: an index that is known only at run time would put the words into memory.
  __device__ __forceinline__ std::uint32_t Lane(int lane) const {
    const std::uint32_t low = (lane & 2) != 0 ? words[1] : words[0];
    const std::uint32_t high = (lane & 2) != 0 ? words[3] : words[2];
    const std::uint32_t word = (lane & 4) != 0 ? high : low;
    return (lane & 1) != 0 ? word >> 16 : word & 0xFFFF;
  }
  // Bit i says whether lane i is kept.
  __device__ __forceinline__ unsigned Kept(std::uint32_t threshold) const {
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < kPhiloxLanes; ++i) kept |= (Lane(i) >= threshold ? 1u : 0u) << i;
    return kept;
  }
};

__device__ __forceinline__ PhiloxBits PhiloxAt(std::uint32_t key0, std::uint32_t key1,
                                               std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                               std::uint32_t c3) {
  const PhiloxCounter words = Philox({c0, c1, c2, c3}, {key0, key1});
  return {{words[0], words[1], words[2], words[3]}};
}

// A Dropout for kernels, in 32-bit numbers (enough for rows and positions of a micro-batch). Built
// on the host.
struct DropoutPlace {
  std::uint32_t key0 = 0, key1 = 0;
  std::uint32_t row_key0 = 0, row_key1 = 0;
  std::uint32_t threshold = 0, row_threshold = 0;  // both 0: inactive, nothing else is read
  double scale = 1;
  const std::uint64_t* ordinals = nullptr;
  std::uint32_t length = 1, first_row = 0, first_feature = 0;
  std::uint32_t early_begin = 0, early_size = 0, late_begin = 0;
  std::uint8_t* kept = nullptr;  // [rows, kept_stride], or null: Dropout::kept
  std::uint32_t kept_stride = 0;
  const std::int32_t* words = nullptr;  // this and the next as in Dropout
  std::uint64_t ordinal = 0;

  DropoutPlace() = default;
  explicit DropoutPlace(const Dropout& dropout)
      : threshold(dropout.Threshold()),
        row_threshold(dropout.RowThreshold()),
        scale(dropout.Scale()),
        ordinals(dropout.ordinals),
        length(Clamped(dropout.length)),
        first_row(Clamped(dropout.first_row)),
        first_feature(Clamped(dropout.first_feature)),
        early_begin(Clamped(dropout.positions.early.begin)),
        early_size(Clamped(dropout.positions.early.Size())),
        late_begin(Clamped(dropout.positions.late.begin)),
        kept(dropout.kept),
        kept_stride(Clamped(dropout.kept_stride)),
        words(dropout.words),
        ordinal(dropout.ordinal) {
    const PhiloxKey key = MakeKey(dropout.seed, dropout.purpose, dropout.layer, dropout.site);
    const PhiloxKey row = MakeKey(dropout.seed, dropout.row_purpose, dropout.layer, dropout.site);
    key0 = key[0];
    key1 = key[1];
    row_key0 = row[0];
    row_key1 = row[1];
  }

  __host__ __device__ bool Active() const { return threshold > 0 || row_threshold > 0; }
  // Position in the sequence of the row with index `local` among those that this rank holds.
  __device__ __forceinline__ std::uint32_t PositionAt(std::uint32_t local) const {
    return local < early_size ? early_begin + local : late_begin + (local - early_size);
  }
  // The byte of `kept` that holds a feature's bit. kept must not be null.
  __device__ __forceinline__ std::uint8_t* KeptAt(std::int64_t row, std::uint32_t feature) const {
    return kept + (static_cast<std::uint32_t>(row) * kept_stride + feature / kPhiloxLanes);
  }
  // Stored mask bits from `column` on (bit 0: that column), as an earlier kernel wrote them.
  __device__ __forceinline__ unsigned KeptFrom(std::int64_t row, std::int64_t column) const {
    const auto feature = static_cast<std::uint32_t>(column);
    return static_cast<unsigned>(*KeptAt(row, feature)) >> feature % kPhiloxLanes;
  }
  // Applies dropout to `values` with such bits.
  template <int kWidth, typename S>
  __device__ __forceinline__ void Apply(unsigned bits, S (&values)[kWidth]) const {
    const S factor = static_cast<S>(scale);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = (bits >> i & 1) != 0 ? factor * values[i] : S(0);
    }
  }
  // Position of row `row` of the matrix.
  __device__ __forceinline__ std::uint32_t PositionOf(std::int64_t row) const {
    return PositionAt((first_row + static_cast<std::uint32_t>(row)) % length);
  }

 private:
  // Clamps to 32 bits: "without end" remains larger than every row.
  static std::uint32_t Clamped(std::int64_t value) {
    constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
    return static_cast<std::uint32_t>(std::min(value, kMost));
  }
};

// WithVectors for operands with dropout: an access must not extend over two Philox counters.
template <typename Body>
void WithVectors(const Dropout& dropout, Dtype type, std::int64_t columns,
                 std::initializer_list<Matrix> operands, const Body& body) {
  Dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = !dropout.Active() || dropout.first_feature % kVectorWidth<T> == 0;
    WithWidth<T>(aligned && AllowVectors<T>(columns, operands),
                 [&](auto width) { body(zero, width); });
  });
}

// Dropout mask of one row. The place must be active, since this reads the row's ordinal.
class RowDropout {
 public:
  __device__ __forceinline__ RowDropout(const DropoutPlace& place, std::int64_t row)
      : place_(place), row_(row) {
    const std::uint32_t global = place.first_row + static_cast<std::uint32_t>(row);
    const std::uint32_t sequence = global / place.length;
    position_ = place.PositionAt(global - sequence * place.length);
    ordinal_ = place.ordinals == nullptr ? place.ordinal : place.ordinals[sequence];
    threshold_ = place.threshold;
    if (place.row_threshold == 0) return;
    const std::int32_t word = place.words == nullptr ? 0 : place.words[global];
    if (RowDropped({place.row_key0, place.row_key1}, place.row_threshold,
                   static_cast<std::uint32_t>(word), ordinal_)) {
      threshold_ = kAll;
    }
  }

  // Applies dropout to the values of columns [column, column + kWidth). first_feature + column must
  // be a multiple of kWidth, which divides 8.
  template <int kWidth, typename S>
  __device__ __forceinline__ void Apply(std::int64_t column, S (&values)[kWidth]) const {
    static_assert(kPhiloxLanes % kWidth == 0);
    const std::uint32_t feature = place_.first_feature + static_cast<std::uint32_t>(column);
    const PhiloxBits bits = Draw(feature);
    const int first = kWidth == kPhiloxLanes ? 0 : static_cast<int>(feature % kPhiloxLanes);
    const S scale = static_cast<S>(place_.scale);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = bits.Lane(first + i) >= threshold_ ? scale * values[i] : S(0);
    }
  }
  // The same; also writes the mask to place.kept, unless null. Each thread draws the whole byte of
  // eight features; the thread with the byte's first column writes it.
  template <int kWidth, typename S>
  __device__ __forceinline__ void ApplyAndNote(std::int64_t column, S (&values)[kWidth]) const {
    static_assert(kPhiloxLanes % kWidth == 0);
    const std::uint32_t feature = place_.first_feature + static_cast<std::uint32_t>(column);
    const unsigned kept = Draw(feature).Kept(threshold_);
    place_.Apply(kept >> feature % kPhiloxLanes, values);
    if (place_.kept == nullptr || feature % kPhiloxLanes != 0) return;
    *place_.KeptAt(row_, feature) = static_cast<std::uint8_t>(kept);
  }

 private:
  static constexpr std::uint32_t kAll = 1 << 16;  // above every lane

  __device__ __forceinline__ PhiloxBits Draw(std::uint32_t feature) const {
    if (place_.threshold == 0) return {};  // whole rows only
    return PhiloxAt(place_.key0, place_.key1, feature / kPhiloxLanes, position_,
                    static_cast<std::uint32_t>(ordinal_),
                    static_cast<std::uint32_t>(ordinal_ >> 32));
  }

  const DropoutPlace& place_;
  std::int64_t row_;
  std::uint32_t position_;
  std::uint32_t threshold_;  // of the row's elements
  std::uint64_t ordinal_;
};

}  // namespace trireme::kernels::cuda
