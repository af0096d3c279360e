// Packing and tiles of our own matrix product, over a vector type V. V adds to Vector (vector.hpp),
// for packed operands: Word, Operand, LoadWords, StoreWords, Broadcast, MultiplyAdd (a b + c),
// Transpose (kLanes operands), and LoadInner and CopyLanes, which make words. Everything is in an
// unnamed namespace, so that each file that includes this has a copy for its own instruction set.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/vector.hpp"
#include "multiply.hpp"

namespace trireme::kernels {

namespace {

// A vector type whose words are single elements: as they are or, as RoundedFloat, rounded to bf16.
template <typename V, typename WordType = typename V::Scalar>
struct Plain : V {
  using Scalar = typename V::Scalar;
  using Word = WordType;
  using Operand = typename V::Register;
  static constexpr bool kRounds = std::is_same_v<Word, RoundedFloat>;
  static Operand LoadWords(const Word* x) { return V::Load(reinterpret_cast<const Scalar*>(x)); }
  static void StoreWords(Word* x, const Operand& y) { V::Store(reinterpret_cast<Scalar*>(x), y); }
  static Operand Broadcast(Word x) {
    if constexpr (kRounds) {
      return V::Broadcast(x.value);
    } else {
      return V::Broadcast(x);
    }
  }
  // Elements as words: RoundedFloat to nearest, ties to even; NaN stays NaN.
  static Operand Taken(const Operand& x) {
    if constexpr (kRounds) {
      const auto bits = reinterpret_cast<typename V::Words>(x);
      const auto rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000U;
      return x == x ? reinterpret_cast<Operand>(rounded) : x;  // NOLINT(misc-redundant-expression)
    } else {
      return x;
    }
  }
  // Packed words of one lane: its first `present` inner indices, then zeros.
  static Operand LoadInner(const Scalar* x, std::int64_t present) {
    return Taken(present >= V::kLanes ? V::Load(x) : V::LoadPart(x, static_cast<int>(present)));
  }
  // For each of kWidth neighbouring lanes, copies the word of the first inner index. Lanes from
  // `present` on become zeros.
  template <int kWidth>
  static void CopyLanes(const Scalar* from, std::int64_t /*inner_stride*/, std::int64_t present,
                        std::int64_t inner, Word* to) {
    constexpr int kWhole = (kWidth + V::kLanes - 1) / V::kLanes * V::kLanes;
    if (present >= kWhole && inner > 1) {  // writes beyond the width, where later words go
      for (int i = 0; i < kWidth; i += V::kLanes) StoreWords(to + i, Taken(V::Load(from + i)));
      return;
    }
    if (present >= kWidth && !kRounds) {
      __builtin_memcpy(to, from, sizeof(Word) * kWidth);
      return;
    }
    for (int i = 0; i < kWidth; i += V::kLanes) {
      const int here = present - i < V::kLanes ? static_cast<int>(present - i) : V::kLanes;
      V::StorePart(reinterpret_cast<Scalar*>(to + i),
                   Taken(V::LoadPart(from + i, here < 0 ? 0 : here)),
                   kWidth - i < V::kLanes ? kWidth - i : V::kLanes);
    }
  }
};

// Packs operands whose lanes are contiguous into panels of kWidth lanes, a few inner indices at a
// time, so that source and target stay in the cache.
template <typename V, int kWidth>
void PackRows(const ProductSource<typename V::Scalar>& from, std::int64_t lanes, std::int64_t inner,
              typename V::Word* to) {
  constexpr std::int64_t kRows = 16, kStep = kInnerOfWord<typename V::Word>;
  constexpr int kLine = 64 / sizeof(typename V::Scalar);
  const std::int64_t words = (inner + kStep - 1) / kStep;
  for (std::int64_t begin = 0; begin < inner; begin += kRows) {
    const std::int64_t end = begin + kRows < inner ? begin + kRows : inner;
    for (std::int64_t lane = 0; lane < lanes; lane += kWidth) {
      typename V::Word* panel = to + lane * words;
      const typename V::Scalar* source = from.data + lane;
      for (std::int64_t k = begin; k < end; k += kStep) {
        // May be an address beyond the operand, which is harmless.
        for (int i = 0; i < kStep; ++i) {
          const typename V::Scalar* later = source + (k + kRows + i) * from.inner_stride;
          for (int j = 0; j < kWidth; j += kLine) __builtin_prefetch(later + j);
        }
        V::template CopyLanes<kWidth>(source + k * from.inner_stride, from.inner_stride,
                                      lanes - lane, inner - k, panel + k / kStep * kWidth);
      }
    }
  }
}

// Packs lanes [0, lanes) of one panel, each contiguous in k, kLanes words at a time. A vector may
// reach beyond the panel's width: that memory is written later.
template <typename V, int kWidth>
void PackColumnsPanel(const typename V::Scalar* from, std::int64_t stride, std::int64_t lanes,
                      std::int64_t inner, typename V::Word* to) {
  constexpr int kLanes = V::kLanes, kGroups = (kWidth + kLanes - 1) / kLanes;
  constexpr int kUsed = kWidth < kLanes ? kWidth : kLanes, kStep = kInnerOfWord<typename V::Word>;
  const std::int64_t words = (inner + kStep - 1) / kStep;
  for (std::int64_t word = 0; word < words; word += kLanes) {
    const std::int64_t k = word * kStep;
    // For that reason groups of lanes are stored from the last to the first.
    for (int group = kGroups - 1; group >= 0; --group) {
      typename V::Operand block[kLanes];
      const typename V::Scalar* first = from + group * kLanes * stride + k;
      const std::int64_t present = lanes - group * kLanes, left = inner - k;
      // Prefetches the next panel, or an address beyond the operand, which is harmless.
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

// One tile, and the memory to prefetch while it is computed (per row at most the tile's words).
template <typename V>
struct TileCall {
  LeftPanels<typename V::Word> left;
  const typename V::Word* right;
  std::int64_t words, columns;
  typename V::Scalar* c;
  std::int64_t stride;
  bool add;
  Ahead<typename V::Scalar> ahead;
};

// c = (add ? c : 0) + the tile's sums, for the whole tile or its first columns.
template <typename V, int kRows, int kVectors>
[[gnu::always_inline]] inline void StoreTile(const typename V::Register (&sum)[kRows][kVectors],
                                             const TileCall<V>& call) {
  using T = typename V::Scalar;
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  const std::int64_t stride = call.stride, columns = call.columns;
  const bool add = call.add;
  if (columns >= kVectors * kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        T* to = call.c + i * stride + j * kLanes;
        V::Store(to, (add ? V::Load(to) : Register{}) + sum[i][j]);
      }
    }
    return;
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      T* to = call.c + i * stride + j * kLanes;
      const std::int64_t left_over = columns - j * kLanes;
      const int count = left_over < kLanes ? static_cast<int>(left_over) : kLanes;
      V::StorePart(to, (add ? V::LoadPart(to, count) : Register{}) + sum[i][j], count);
    }
  }
}

// Computes a tile of kRows x (kVectors * kLanes) elements, one chain each, held in registers.
template <typename V, int kTileVectors, int kRows, int kVectors>
void Tile(const TileCall<V>& call) {
  using T = typename V::Scalar;
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  constexpr std::int64_t kStep = kInnerOfWord<typename V::Word>, kLine = 64 / sizeof(T);
  if (call.add) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) __builtin_prefetch(call.c + i * call.stride, 1);
  }
  Register sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = Register{};
  }
  // One pointer per four rows: addressing modes reach all four without a register for each.
  constexpr int kFours = (kRows + 3) / 4;
  const std::int64_t row_stride = call.left.row_stride, row_stride_3 = 3 * row_stride;
  const typename V::Word* four[kFours];
#pragma GCC unroll 4
  for (int i = 0; i < kFours; ++i) four[i] = call.left.data + 4 * i * row_stride;
  const typename V::Word* right = call.right;
  for (std::int64_t begin = 0; begin < call.words; begin += kLine) {
    const std::int64_t ahead_rows = begin * kStep < call.ahead.columns ? call.ahead.rows : 0;
    for (std::int64_t i = 0; i < ahead_rows; ++i) {
      const T* line = call.ahead.data + i * call.ahead.stride + begin * kStep;
#pragma GCC unroll 2
      for (int j = 0; j < kStep; ++j) __builtin_prefetch(line + j * kLine, 0, 2);
    }
    const std::int64_t end = call.words - begin < kLine ? call.words : begin + kLine;
    for (std::int64_t k = begin; k < end; ++k) {
      typename V::Operand row[kVectors];
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) row[j] = V::LoadWords(right + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const std::int64_t at = i % 4 == 3 ? row_stride_3 : i % 4 * row_stride;
        const typename V::Operand factor = V::Broadcast(four[i / 4][at]);
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) sum[i][j] = V::MultiplyAdd(factor, row[j], sum[i][j]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kFours; ++i) four[i] += call.left.word_stride;
      right += kTileVectors * kLanes;
    }
  }
  StoreTile<V>(sum, call);
}

template <typename V>
using TileFunction = void (*)(const TileCall<V>&);

// at[v][r]: tile with r + 1 rows and v + 1 vectors, so that smaller tiles at edges cost less.
template <typename V, int kRows, int kVectors>
struct TileTable {
  TileFunction<V> at[kVectors][kRows];

  template <int kUsed, int... kIndex>
  constexpr void Fill(std::integer_sequence<int, kIndex...>) {
    ((at[kUsed - 1][kIndex] = &Tile<V, kVectors, kIndex + 1, kUsed>), ...);
  }
  template <int... kIndex>
  constexpr explicit TileTable(std::integer_sequence<int, kIndex...>) : at{} {
    (Fill<kIndex + 1>(std::make_integer_sequence<int, kRows>()), ...);
  }
};

// One panel of rows: it stays in the first-level cache, while the right operand's panels are read
// from the second level and rows of c are written from end to end. rows: of this panel and all
// after it. call: its first tile; the panel's tiles divide the rows to prefetch among them.
template <typename V, int kRows, int kVectors>
void MultiplyPanel(const TileCall<V>& call, std::int64_t rows, std::int64_t columns) {
  static constexpr TileTable<V, kRows, kVectors> kTiles{
      std::make_integer_sequence<int, kVectors>()};
  constexpr std::int64_t kColumns = kVectors * V::kLanes;
  const std::int64_t height = rows < kRows ? rows : kRows;
  const std::int64_t tiles = (columns + kColumns - 1) / kColumns;
  TileCall<V> tile = call;
  tile.ahead.stride *= tiles;
  for (std::int64_t j = 0; j < tiles; ++j) {
    const std::int64_t left_over = columns - j * kColumns;
    tile.columns = left_over < kColumns ? left_over : kColumns;
    tile.ahead.rows = (call.ahead.rows + tiles - 1 - j) / tiles;
    kTiles.at[(tile.columns - 1) / V::kLanes][height - 1](tile);
    tile.right += tile.words * kColumns;
    tile.c += kColumns;
    tile.ahead.data += call.ahead.stride;
  }
}

template <typename V, int kRows, int kVectors>
void MultiplyPanels(const LeftPanels<typename V::Word>& left, const typename V::Word* right,
                    std::int64_t words, std::int64_t rows, std::int64_t columns,
                    typename V::Scalar* c, std::int64_t stride, bool add,
                    const Ahead<typename V::Scalar>& ahead) {
  TileCall<V> call{left, right, words, 0, c, stride, add, ahead};
  const std::int64_t panels = (rows + kRows - 1) / kRows;
  for (std::int64_t i = 0; i < panels; ++i) {
    const std::int64_t begin = ahead.rows * i / panels;
    call.ahead.data = ahead.data + begin * ahead.stride;
    call.ahead.rows = ahead.rows * (i + 1) / panels - begin;
    MultiplyPanel<V, kRows, kVectors>(call, rows - i * kRows, columns);
    call.left.data += left.panel_stride;
    call.c += kRows * stride;
  }
}

// For rows that are contiguous in k: makes words row by row, a panel at a time, without
// transposing. Some room between the rows keeps them apart in the cache.
template <typename V, int kRows, int kVectors, int kBlock>
void MultiplyRows(const typename V::Scalar* left, std::int64_t left_stride,
                  const typename V::Word* right, std::int64_t inner, std::int64_t rows,
                  std::int64_t columns, typename V::Scalar* c, std::int64_t stride, bool add,
                  std::int64_t next) {
  constexpr std::int64_t kStep = kInnerOfWord<typename V::Word>, kRoom = 16;
  constexpr std::int64_t kRow = kBlock / kStep + kRoom;
  static_assert(V::kLanes <= kRoom, "a vector may reach beyond a row");
  alignas(64) typename V::Word panel[kRows * kRow];
  for (std::int64_t i = 0; i < rows; i += kRows) {
    const std::int64_t height = rows - i < kRows ? rows - i : kRows;
    const typename V::Scalar* first = left + i * left_stride;
    for (std::int64_t row = 0; row < height; ++row) {
      const typename V::Scalar* from = first + row * left_stride;
      for (std::int64_t k = 0; k < inner; k += V::kLanes * kStep) {
        V::StoreWords(panel + row * kRow + k / kStep, V::LoadInner(from + k, inner - k));
      }
    }
    MultiplyPanel<V, kRows, kVectors>({{panel, 0, kRow, 1},
                                       right,
                                       (inner + kStep - 1) / kStep,
                                       0,
                                       c + i * stride,
                                       stride,
                                       add,
                                       {first + next, height, inner, left_stride}},
                                      height, columns);
  }
}

template <typename V, int kRows, int kVectors, int kBlock>
constexpr ProductKernels<typename V::Scalar, typename V::Word> MakeKernels() {
  return {kRows,
          kVectors * V::kLanes,
          kBlock,
          &Pack<V, kRows>,
          &Pack<V, kVectors * V::kLanes>,
          &MultiplyPanels<V, kRows, kVectors>,
          &MultiplyRows<V, kRows, kVectors, kBlock>};
}

}  // namespace

}  // namespace trireme::kernels
