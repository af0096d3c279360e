// Keys of attention on tensor cores in tiles, which keys a query sees, and the masks of dropout in
// the registers of the lanes that need them.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_MATRIX_OPERANDS_CUH_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_MATRIX_OPERANDS_CUH_

#include <cstdint>

#include "matrix_tile.cuh"

namespace trireme::kernels::cuda {

// Rows [first, count) of a tile are keys; its rows stand at positions from `position` on, a
// multiple of 8, so that a counter of Philox serves eight rows.
struct MatrixKeys {
  int row, position, first, count;
  __device__ int Last() const { return position + count - 1; }
  __device__ bool Empty() const { return count <= first; }
};

// The tiles of kKeys rows of a sequence's keys.
template <int kKeys>
struct MatrixKeyTiles {
  // Rows before the first key of a block that begins at `position`.
  __host__ __device__ static int Shift(int position) { return position % kPhiloxLanes; }
  __host__ __device__ static int Of(int begin, int count) {
    return count == 0 ? 0 : (Shift(begin) + count + kKeys - 1) / kKeys;
  }
  __host__ __device__ static int Count(const AttentionRows& rows) {
    return Of(rows.early_begin, rows.early_count) + Of(rows.late_begin, rows.late_count);
  }
  __device__ static MatrixKeys Tile(const AttentionRows& rows, int index) {
    const int early = Of(rows.early_begin, rows.early_count);
    const bool late = index >= early;
    const int begin = late ? rows.late_begin : rows.early_begin;
    const int count = late ? rows.late_count : rows.early_count;
    const int start = (late ? index - early : index) * kKeys - Shift(begin);
    return {(late ? rows.early_count : 0) + start, begin + start, max(0, -start),
            min(kKeys, count - start)};
  }
};

// The tile without its padding.
__device__ __forceinline__ MatrixKeys PresentKeys(const AttentionOperands<Bf16>& a, int sequence,
                                                  MatrixKeys keys) {
  if (a.key_lengths != nullptr) {
    keys.count = min(keys.count, a.key_lengths[sequence] - keys.position);
  }
  return keys;
}

__device__ __forceinline__ int BeginOf(const AttentionOperands<Bf16>& a, int sequence, int row) {
  return a.begins == nullptr ? 0 : a.begins[a.QueryRow(sequence, row)];
}

// Whether each of the queries at positions [first, last] sees all of the tile's kKeys rows;
// `begin`: of the last query's document.
template <int kKeys>
__device__ __forceinline__ bool AllSeen(const AttentionOperands<Bf16>& a, const MatrixKeys& keys,
                                        int first, int begin) {
  return keys.first == 0 && keys.count == kKeys &&
         (!a.causal || keys.position + kKeys - 1 <= first) && begin <= keys.position;
}

// Masks of dropout for one sequence and head. threshold: in the upper half.
struct MatrixDropout {
  std::uint32_t seed, purpose, low, high, threshold;

  __device__ __forceinline__ MatrixDropout(const AttentionOperands<Bf16>& a, int sequence, int head)
      : seed(a.seed), threshold(a.threshold << 16) {
    const std::uint64_t ordinal = a.ordinals[sequence];
    purpose = a.purpose | (static_cast<std::uint32_t>(a.first_head + head) & 0xFFFu) << 20;
    low = static_cast<std::uint32_t>(ordinal), high = static_cast<std::uint32_t>(ordinal >> 32);
  }
  // Bit i: whether key `position` + i, a multiple of 8 and what follows, is kept for a query.
  __device__ __forceinline__ unsigned Kept(int query, int position) const {
    const PhiloxBits drawn =
        PhiloxAt(seed, purpose, static_cast<std::uint32_t>(position / kPhiloxLanes),
                 static_cast<std::uint32_t>(query), low, high);
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < kPhiloxLanes / 2; ++i) {
      // A lane of 16 bits, moved up, against the threshold, moved up.
      if (drawn.words[i] << 16 >= threshold) kept |= 1u << 2 * i;
      if (drawn.words[i] >= threshold) kept |= 2u << 2 * i;
    }
    return kept;
  }
};

// Masks of 16 queries, the rows of sums, and kKeys keys, their columns. The four lanes of a row
// draw a quarter each.
template <int kKeys>
struct MatrixRowMasks {
  static constexpr int kDrawn = kKeys / 32;  // bytes of a row that a lane draws: octets 4 apart
  unsigned words[4];                         // of the lanes of this row: rows g, then g + 8

  __device__ __forceinline__ void Draw(const MatrixDropout& dropout, int query, int position) {
    const int quarter = MatrixLane() % 4;
    unsigned mine = 0;
#pragma unroll 1
    for (int i = 0; i < 2 * kDrawn; ++i) {
      const int octet = quarter + i % kDrawn * 4;
      mine |= dropout.Kept(query + MatrixRow() + i / kDrawn * 8, position + octet * 8) << 8 * i;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __shfl_sync(~0u, mine, i, 4);
  }
  // Of sum k of columns [8 j, 8 j + 8).
  __device__ __forceinline__ bool Kept(int j, int k) const {
    const unsigned octet = words[j % 4] >> 8 * (k / 2 * kDrawn + j / 4);
    return (octet >> (MatrixColumn() + k % 2) & 1) != 0;
  }
};

// Masks of 16 keys, the rows of sums, and kQueries queries, their columns. Lanes draw in turn.
template <int kQueries>
struct MatrixColumnMasks {
  static constexpr int kDrawn = kQueries / 16;  // bytes of a lane
  unsigned word;

  __device__ __forceinline__ void Draw(const MatrixDropout& dropout, int query, int position) {
    word = 0;
#pragma unroll 1
    for (int i = 0; i < kDrawn; ++i) {
      const int column = MatrixLane() + i * kWarpLanes;
      word |= dropout.Kept(query + column % kQueries, position + column / kQueries * 8) << 8 * i;
    }
  }
  // Bit k: of sum k of columns [8 j, 8 j + 8). All lanes of a warp together.
  __device__ __forceinline__ unsigned Kept(int j) const {
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int column = 8 * j + MatrixColumn() + k;
      const unsigned bytes = __shfl_sync(~0u, word, column % kWarpLanes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned octet = bytes >> 8 * ((8 * j + half * kQueries) / kWarpLanes);
        kept |= (octet >> MatrixRow() & 1) << (2 * half + k);
      }
    }
    return kept;
  }
};

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_MATRIX_OPERANDS_CUH_
