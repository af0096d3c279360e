// Packing and tiles of the canonical product over a vector type V: Scalar, kLanes, Zero, Broadcast,
// Load, Store, Add, MultiplyAdd (a b + c, rounded once), Transpose of kLanes vectors. Each file
// that includes this has its own copy, for its instruction set: everything is in an unnamed
// namespace.
#ifndef TRIREME_KERNELS_CPU_CANONICAL_TILE_HPP_
#define TRIREME_KERNELS_CPU_CANONICAL_TILE_HPP_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "canonical_kernels.hpp"

namespace trireme::kernels {

namespace {

// Panels of kWidth lanes from rows of neighbouring lanes, a few rows at a time so that both sides
// stay in the cache.
template <typename V, int kWidth>
void PackRows(const CanonicalSource<typename V::Scalar>& from, std::int64_t lanes,
              std::int64_t inner, typename V::Scalar* to) {
  using T = typename V::Scalar;
  constexpr std::int64_t kRows = 16;
  for (std::int64_t begin = 0; begin < inner; begin += kRows) {
    const std::int64_t end = begin + kRows < inner ? begin + kRows : inner;
    for (std::int64_t lane = 0; lane < lanes; lane += kWidth) {
      T* panel = to + lane * inner;
      const T* source = from.data + lane;
      const std::int64_t present = lanes - lane;
      if (present >= kWidth) {
        for (std::int64_t k = begin; k < end; ++k) {
          // An address behind the operand does no harm.
          __builtin_prefetch(source + (k + kRows) * from.inner_stride);
          __builtin_memcpy(panel + k * kWidth, source + k * from.inner_stride, sizeof(T) * kWidth);
        }
        continue;
      }
      for (std::int64_t k = begin; k < end; ++k) {
        for (int i = 0; i < kWidth; ++i) {
          panel[k * kWidth + i] = i < present ? source[k * from.inner_stride + i] : T(0);
        }
      }
    }
  }
}

// Lanes [0, lanes) of one panel, each contiguous in k, kLanes of k at a time. A vector may reach
// beyond the panel's width: the groups of lanes are stored from the last to the first, so that what
// lies behind is written after it.
template <typename V, int kWidth>
void PackColumnsPanel(const typename V::Scalar* from, std::int64_t stride, std::int64_t lanes,
                      std::int64_t inner, typename V::Scalar* to) {
  using T = typename V::Scalar;
  constexpr int kLanes = V::kLanes, kGroups = (kWidth + kLanes - 1) / kLanes;
  std::int64_t k = 0;
  for (; k + kLanes <= inner; k += kLanes) {
    for (int group = kGroups - 1; group >= 0; --group) {
      typename V::Register block[kLanes];
      const T* first = from + group * kLanes * stride + k;
      const std::int64_t present = lanes - group * kLanes;
      constexpr int kUsed = kWidth < kLanes ? kWidth : kLanes;
      // The next panel, or an address behind the operand, which does no harm.
      for (int i = 0; i < kUsed; ++i) __builtin_prefetch(first + (kWidth + i) * stride);
      if (present >= kLanes) {
        for (int i = 0; i < kLanes; ++i) block[i] = V::Load(first + i * stride);
      } else if (present == kUsed) {
        for (int i = 0; i < kUsed; ++i) block[i] = V::Load(first + i * stride);
        for (int i = kUsed; i < kLanes; ++i) block[i] = V::Zero();
      } else {
        for (int i = 0; i < kLanes; ++i) {
          block[i] = i < present ? V::Load(first + i * stride) : V::Zero();
        }
      }
      V::Transpose(block);
      T* out = to + k * kWidth + group * kLanes;
      for (int i = 0; i < kLanes; ++i) V::Store(out + i * kWidth, block[i]);
    }
  }
  for (; k < inner; ++k) {
    for (int lane = 0; lane < kWidth; ++lane) {
      to[k * kWidth + lane] = lane < lanes ? from[lane * stride + k] : T(0);
    }
  }
}

template <typename V, int kWidth>
void Pack(const CanonicalSource<typename V::Scalar>& from, std::int64_t lanes, std::int64_t inner,
          typename V::Scalar* to) {
  if (from.lane_stride == 1) return PackRows<V, kWidth>(from, lanes, inner, to);
  for (std::int64_t lane = 0; lane < lanes; lane += kWidth) {
    const std::int64_t present = lanes - lane < kWidth ? lanes - lane : kWidth;
    PackColumnsPanel<V, kWidth>(from.data + lane * from.lane_stride, from.lane_stride, present,
                                inner, to + lane * inner);
  }
}

// Rows of vectors in registers: the chains of kRows x (kVectors * kLanes) elements.
template <typename V, int kTileRows, int kTileVectors, int kRows, int kVectors>
void Tile(const typename V::Scalar* left, const typename V::Scalar* right, std::int64_t inner,
          std::int64_t columns, typename V::Scalar* c, std::int64_t stride, bool add) {
  using T = typename V::Scalar;
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  if (add) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) __builtin_prefetch(c + i * stride, 1);
  }
  Register sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = V::Zero();
  }
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < inner; ++k) {
    Register row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = V::Load(right + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Register factor = V::Broadcast(left[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = V::MultiplyAdd(factor, row[j], sum[i][j]);
    }
    left += kTileRows;
    right += kTileVectors * kLanes;
  }
  if (columns >= kVectors * kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        T* to = c + i * stride + j * kLanes;
        V::Store(to, V::Add(add ? V::Load(to) : V::Zero(), sum[i][j]));
      }
    }
    return;
  }
  for (int i = 0; i < kRows; ++i) {
    T line[kVectors * kLanes];
    for (int j = 0; j < kVectors; ++j) V::Store(line + j * kLanes, sum[i][j]);
    T* to = c + i * stride;
    for (std::int64_t j = 0; j < columns; ++j) to[j] = (add ? to[j] : T(0)) + line[j];
  }
}

template <typename T>
using TileFunction = void (*)(const T*, const T*, std::int64_t, std::int64_t, T*, std::int64_t,
                              bool);

// tiles[v][r]: of r + 1 rows and v + 1 vectors, so that an edge costs what it holds.
template <typename T, int kRows, int kVectors>
struct TileTable {
  TileFunction<T> tiles[kVectors][kRows];
};
template <typename V, int kRows, int kVectors, int kUsedVectors, int... kIndex>
constexpr void FillTiles(TileTable<typename V::Scalar, kRows, kVectors>& table,
                         std::integer_sequence<int, kIndex...>) {
  ((table.tiles[kUsedVectors - 1][kIndex] = &Tile<V, kRows, kVectors, kIndex + 1, kUsedVectors>),
   ...);
  if constexpr (kUsedVectors > 1) {
    FillTiles<V, kRows, kVectors, kUsedVectors - 1>(table,
                                                    std::make_integer_sequence<int, kRows>());
  }
}
template <typename V, int kRows, int kVectors>
constexpr TileTable<typename V::Scalar, kRows, kVectors> MakeTiles() {
  TileTable<typename V::Scalar, kRows, kVectors> table{};
  FillTiles<V, kRows, kVectors, kVectors>(table, std::make_integer_sequence<int, kRows>());
  return table;
}

// A panel of the left operand stays in the first-level cache while the right one's, which the
// second level holds, pass by: rows of c are written from one end to the other.
template <typename V, int kRows, int kVectors>
void MultiplyBlock(const typename V::Scalar* left, const typename V::Scalar* right,
                   std::int64_t inner, std::int64_t rows, std::int64_t columns,
                   typename V::Scalar* c, std::int64_t stride, bool add) {
  static constexpr auto kTiles = MakeTiles<V, kRows, kVectors>();
  constexpr std::int64_t kColumns = kVectors * V::kLanes;
  for (std::int64_t i = 0; i < rows; i += kRows) {
    const std::int64_t height = rows - i < kRows ? rows - i : kRows;
    for (std::int64_t j = 0; j < columns; j += kColumns) {
      const std::int64_t width = columns - j < kColumns ? columns - j : kColumns;
      kTiles.tiles[(width - 1) / V::kLanes][height - 1](left + i * inner, right + j * inner, inner,
                                                        width, c + i * stride + j, stride, add);
    }
  }
}

template <typename V, int kRows, int kVectors>
constexpr CanonicalKernelsOf<typename V::Scalar> MakeCanonicalKernels() {
  return {kRows, kVectors * V::kLanes, &Pack<V, kRows>, &Pack<V, kVectors * V::kLanes>,
          &MultiplyBlock<V, kRows, kVectors>};
}

}  // namespace

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_CANONICAL_TILE_HPP_
