// Packing and tiles of our own product over a vector type V: Scalar, kLanes, Zero, Load, LoadPart,
// Store, StorePart, Add for what is summed up; Word, Operand, LoadWords, StoreWords, Broadcast,
// MultiplyAdd (a b + c), Transpose of kLanes operands for what is packed; LoadInner and CopyLanes,
// which make words. Each file that includes this has its own copy, for its instruction set:
// everything is in an unnamed namespace.
#ifndef TRIREME_KERNELS_CPU_CANONICAL_TILE_HPP_
#define TRIREME_KERNELS_CPU_CANONICAL_TILE_HPP_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "canonical_kernels.hpp"

namespace trireme::kernels {

namespace {

// A vector type whose words are its elements.
template <typename V>
struct Plain : V {
  using Scalar = typename V::Scalar;
  using Word = Scalar;
  using Operand = typename V::Register;
  static Operand LoadWords(const Word* x) { return V::Load(x); }
  static void StoreWords(Word* x, const Operand& y) { V::Store(x, y); }
  // Words of one lane from its first `present` inner indices, zeros behind them.
  static Operand LoadInner(const Scalar* x, std::int64_t present) {
    return present >= V::kLanes ? V::Load(x) : V::LoadPart(x, static_cast<int>(present));
  }
  // The word of the first of `inner` indices of kWidth neighbouring lanes, zeros behind `present`.
  template <int kWidth>
  static void CopyLanes(const Scalar* from, std::int64_t /*inner_stride*/, std::int64_t present,
                        std::int64_t /*inner*/, Word* to) {
    if (present >= kWidth) {
      __builtin_memcpy(to, from, sizeof(Word) * kWidth);
      return;
    }
    for (int i = 0; i < kWidth; i += V::kLanes) {
      const int here = present - i < V::kLanes ? static_cast<int>(present - i) : V::kLanes;
      V::StorePart(to + i, kWidth - i < V::kLanes ? kWidth - i : V::kLanes,
                   V::LoadPart(from + i, here < 0 ? 0 : here));
    }
  }
};

// Panels of kWidth lanes from rows of neighbouring lanes, a few rows at a time so that both sides
// stay in the cache.
template <typename V, int kWidth>
void PackRows(const ProductSource<typename V::Scalar>& from, std::int64_t lanes, std::int64_t inner,
              typename V::Word* to) {
  constexpr std::int64_t kRows = 16, kStep = kInnerOfWord<typename V::Word>;
  const std::int64_t words = (inner + kStep - 1) / kStep;
  for (std::int64_t begin = 0; begin < inner; begin += kRows) {
    const std::int64_t end = begin + kRows < inner ? begin + kRows : inner;
    for (std::int64_t lane = 0; lane < lanes; lane += kWidth) {
      typename V::Word* panel = to + lane * words;
      const typename V::Scalar* source = from.data + lane;
      for (std::int64_t k = begin; k < end; k += kStep) {
        // An address behind the operand does no harm.
        for (int i = 0; i < kStep; ++i) {
          __builtin_prefetch(source + (k + kRows + i) * from.inner_stride);
        }
        V::template CopyLanes<kWidth>(source + k * from.inner_stride, from.inner_stride,
                                      lanes - lane, inner - k, panel + k / kStep * kWidth);
      }
    }
  }
}

// Lanes [0, lanes) of one panel, each contiguous in k, kLanes words of k at a time. A vector may
// reach beyond the panel's width: what lies behind is written after it.
template <typename V, int kWidth>
void PackColumnsPanel(const typename V::Scalar* from, std::int64_t stride, std::int64_t lanes,
                      std::int64_t inner, typename V::Word* to) {
  constexpr int kLanes = V::kLanes, kGroups = (kWidth + kLanes - 1) / kLanes;
  constexpr int kUsed = kWidth < kLanes ? kWidth : kLanes, kStep = kInnerOfWord<typename V::Word>;
  const std::int64_t words = (inner + kStep - 1) / kStep;
  for (std::int64_t word = 0; word < words; word += kLanes) {
    const std::int64_t k = word * kStep;
    // The groups of lanes are stored from the last to the first for the same reason.
    for (int group = kGroups - 1; group >= 0; --group) {
      typename V::Operand block[kLanes];
      const typename V::Scalar* first = from + group * kLanes * stride + k;
      const std::int64_t present = lanes - group * kLanes, left = inner - k;
      // The next panel, or an address behind the operand, which does no harm.
      for (int i = 0; i < kUsed; ++i) __builtin_prefetch(first + (kWidth + i) * stride);
      if (present >= kUsed && left >= kLanes * kStep) {
        for (int i = 0; i < kUsed; ++i) block[i] = V::LoadInner(first + i * stride, kLanes * kStep);
        for (int i = kUsed; i < kLanes; ++i) block[i] = V::LoadInner(first, 0);
      } else {
        for (int i = 0; i < kLanes; ++i) {
          block[i] = V::LoadInner(first + i * stride, i < present && i < kUsed ? left : 0);
        }
      }
      V::Transpose(block);
      typename V::Word* out = to + word * kWidth + group * kLanes;
      const std::int64_t rows = words - word < kLanes ? words - word : kLanes;
      for (std::int64_t i = 0; i < rows; ++i) V::StoreWords(out + i * kWidth, block[i]);
    }
  }
}

template <typename V, int kWidth>
void Pack(const ProductSource<typename V::Scalar>& from, std::int64_t lanes, std::int64_t inner,
          typename V::Word* to) {
  if (from.lane_stride == 1) return PackRows<V, kWidth>(from, lanes, inner, to);
  constexpr std::int64_t kStep = kInnerOfWord<typename V::Word>;
  const std::int64_t words = (inner + kStep - 1) / kStep;
  for (std::int64_t lane = 0; lane < lanes; lane += kWidth) {
    const std::int64_t present = lanes - lane < kWidth ? lanes - lane : kWidth;
    PackColumnsPanel<V, kWidth>(from.data + lane * from.lane_stride, from.lane_stride, present,
                                inner, to + lane * words);
  }
}

// Rows of vectors in registers: the chains of kRows x (kVectors * kLanes) elements.
template <typename V, int kTileRows, int kTileVectors, int kRows, int kVectors>
void Tile(const typename V::Word* left, const typename V::Word* right, std::int64_t words,
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
  for (std::int64_t k = 0; k < words; ++k) {
    typename V::Operand row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = V::LoadWords(right + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const typename V::Operand factor = V::Broadcast(left[i]);
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
    for (int j = 0; j < kVectors; ++j) {
      T* to = c + i * stride + j * kLanes;
      const std::int64_t left_over = columns - j * kLanes;
      const int count = left_over < kLanes ? static_cast<int>(left_over) : kLanes;
      V::StorePart(to, count, V::Add(add ? V::LoadPart(to, count) : V::Zero(), sum[i][j]));
    }
  }
}

template <typename V>
using TileFunction = void (*)(const typename V::Word*, const typename V::Word*, std::int64_t,
                              std::int64_t, typename V::Scalar*, std::int64_t, bool);

// tiles[v][r]: of r + 1 rows and v + 1 vectors, so that an edge costs what it holds.
template <typename V, int kRows, int kVectors>
struct TileTable {
  TileFunction<V> tiles[kVectors][kRows];
};
template <typename V, int kRows, int kVectors, int kUsedVectors, int... kIndex>
constexpr void FillTiles(TileTable<V, kRows, kVectors>& table,
                         std::integer_sequence<int, kIndex...>) {
  ((table.tiles[kUsedVectors - 1][kIndex] = &Tile<V, kRows, kVectors, kIndex + 1, kUsedVectors>),
   ...);
  if constexpr (kUsedVectors > 1) {
    FillTiles<V, kRows, kVectors, kUsedVectors - 1>(table,
                                                    std::make_integer_sequence<int, kRows>());
  }
}
template <typename V, int kRows, int kVectors>
constexpr TileTable<V, kRows, kVectors> MakeTiles() {
  TileTable<V, kRows, kVectors> table{};
  FillTiles<V, kRows, kVectors, kVectors>(table, std::make_integer_sequence<int, kRows>());
  return table;
}

// A panel of the left operand stays in the first-level cache while the right one's, which the
// second level holds, pass by: rows of c are written from one end to the other.
template <typename V, int kRows, int kVectors>
void MultiplyBlock(const typename V::Word* left, const typename V::Word* right, std::int64_t words,
                   std::int64_t rows, std::int64_t columns, typename V::Scalar* c,
                   std::int64_t stride, bool add) {
  static constexpr auto kTiles = MakeTiles<V, kRows, kVectors>();
  constexpr std::int64_t kColumns = kVectors * V::kLanes;
  for (std::int64_t i = 0; i < rows; i += kRows) {
    const std::int64_t height = rows - i < kRows ? rows - i : kRows;
    for (std::int64_t j = 0; j < columns; j += kColumns) {
      const std::int64_t width = columns - j < kColumns ? columns - j : kColumns;
      kTiles.tiles[(width - 1) / V::kLanes][height - 1](left + i * words, right + j * words, words,
                                                        width, c + i * stride + j, stride, add);
    }
  }
}

template <typename V, int kRows, int kVectors>
constexpr ProductKernels<typename V::Scalar, typename V::Word> MakeKernels(std::int64_t block) {
  return {kRows,           kVectors * V::kLanes,           block,
          &Pack<V, kRows>, &Pack<V, kVectors * V::kLanes>, &MultiplyBlock<V, kRows, kVectors>};
}

}  // namespace

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_CANONICAL_TILE_HPP_
