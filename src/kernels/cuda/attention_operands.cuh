// Operands of attention's kernels: addresses, pairs of queries and keys, and the masks of dropout.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_OPERANDS_CUH_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_OPERANDS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "philox.cuh"
#include "types.cuh"

namespace trireme::kernels::cuda {

// Consecutive positions: rows from `row` on of each sequence that is held.
struct AttentionTile {
  int row, position, count;
  __device__ int Last() const { return position + count - 1; }
};

// The rows of a sequence that are held: an early block of positions, then a late one.
struct AttentionRows {
  int early_begin, early_count, late_begin, late_count;

  __host__ __device__ int Count() const { return early_count + late_count; }
  // In tiles of `size` at most, of which none spans both blocks.
  __host__ __device__ int Tiles(int size) const {
    return (early_count + size - 1) / size + (late_count + size - 1) / size;
  }
  __device__ AttentionTile Tile(int index, int size) const {
    const int early_tiles = (early_count + size - 1) / size;
    if (index < early_tiles) {
      const int row = index * size;
      return {row, early_begin + row, min(size, early_count - row)};
    }
    const int row = (index - early_tiles) * size;
    return {early_count + row, late_begin + row, min(size, late_count - row)};
  }
  // Whether one of them lies at `position` or before it, and one at `first` or after it: in one of
  // the blocks, if they do not lie between.
  __device__ bool Reach(int position, int first) const {
    return (early_count > 0 && early_begin <= position && early_begin + early_count > first) ||
           (late_count > 0 && late_begin <= position && late_begin + late_count > first);
  }
};

// Pointers are to the first row of head 0, strides in elements. What a pass has no use for is null.
template <typename T>
struct AttentionOperands {
  using Sum = SumOf<T>;
  const T *query, *key, *value;
  T* out;
  Sum* lse;  // [rows, heads]
  const T* dout;
  T *dquery, *dkey, *dvalue;
  Sum* inner;  // [rows, heads], dense: dout . out
  // [rows, heads * head_dim], dense: of parts in bf16, out or dquery before it was rounded. Counts
  // where it rounds to what is stored.
  Sum* exact;
  std::int64_t query_stride, key_stride, out_stride, lse_stride;
  std::int64_t dout_stride, dquery_stride, dkey_stride;
  AttentionRows queries, keys;
  int heads, kv_heads, head_dim;
  int first_task, tasks;  // (sequence, key/value head) pairs of this call
  Sum scale;              // 1 / sqrt(head_dim)
  bool causal;
  bool whole;   // the keys are all there are: results are overwritten
  bool vector;  // every row of every head begins on a boundary of 16 bytes and fills such
  // Dropout; threshold 0: none.
  std::uint32_t seed, purpose, threshold;  // purpose: the key's second word, for head 0
  int first_head;                          // global number of head 0
  Sum kept_scale;
  const std::uint64_t* ordinals;
  const std::int32_t* begins;  // [rows] of the queries: AttentionShape::begins; null: no documents
  const std::int32_t* key_lengths;  // [sequences]: AttentionShape::key_lengths, or null
  const std::int32_t* served;       // [sequences]: not 0 where cuDNN has computed it; or null

  __host__ __device__ int Group() const { return heads / kv_heads; }
  __host__ __device__ std::int64_t QueryRow(int sequence, int row) const {
    return static_cast<std::int64_t>(sequence) * queries.Count() + row;
  }
  __host__ __device__ std::int64_t KeyRow(int sequence, int row) const {
    return static_cast<std::int64_t>(sequence) * keys.Count() + row;
  }
};

// Whether cuDNN has computed the sequence: nothing is left to do.
template <typename T>
__device__ __forceinline__ bool IsServed(const AttentionOperands<T>& a, int sequence) {
  return a.served != nullptr && a.served[sequence] != 0;
}

// The tile without its padding.
template <typename T>
__device__ __forceinline__ AttentionTile PresentKeys(const AttentionOperands<T>& a, int sequence,
                                                     AttentionTile keys) {
  if (a.key_lengths != nullptr) {
    keys.count = max(0, min(keys.count, a.key_lengths[sequence] - keys.position));
  }
  return keys;
}

// Number of the tile's keys, from its first on, that the query at `position` sees; below 0: none.
template <typename T>
__device__ __forceinline__ int AttentionVisible(const AttentionOperands<T>& a, int position,
                                                const AttentionTile& keys) {
  return a.causal ? min(keys.count, position + 1 - keys.position) : keys.count;
}

// Position of the first key that any query of the tile sees: begins do not fall along a sequence.
template <typename Sizes, typename T>
__device__ __forceinline__ int FirstSeen(const AttentionOperands<T>& a, int sequence,
                                         const AttentionTile& queries) {
  if constexpr (Sizes::kDocuments) return a.begins[a.QueryRow(sequence, queries.row)];
  return 0;
}

// Begins of the documents of a thread's queries; nothing without documents.
template <typename Sizes>
struct AttentionBegins {
  int at[Sizes::kDocuments ? Sizes::kMyQueries : 1];

  template <typename T>
  __device__ __forceinline__ void Load(const AttentionOperands<T>& a, int sequence,
                                       const AttentionTile& queries) {
    if constexpr (Sizes::kDocuments) {
#pragma unroll
      for (int i = 0; i < Sizes::kMyQueries; ++i) {
        const int row = Sizes::Row() * Sizes::kMyQueries + i;
        at[i] = row < queries.count ? a.begins[a.QueryRow(sequence, queries.row + row)] : 0;
      }
    }
  }
  // Whether key `column` of a tile is of the document of this thread's query i, or later.
  __device__ __forceinline__ bool Allow(int i, const AttentionTile& keys, int column) const {
    if constexpr (Sizes::kDocuments) return keys.position + column >= at[i];
    return true;
  }
};

// Masks of a tile of `kKeys` keys at most: a bit a key, the first bit of a row that of the counter
// in which the first key lies.
template <int kKeys>
struct AttentionMask {
  static constexpr int kLanes = 8;                       // keys of a Philox counter
  static constexpr int kRow = kKeys / kPhiloxLanes + 1;  // bytes

  // All threads of a block draw; a barrier has to follow.
  template <typename T>
  __device__ static void Draw(const AttentionOperands<T>& a, int sequence, int head,
                              const AttentionTile& queries, const AttentionTile& keys,
                              unsigned char* bits) {
    const std::uint64_t ordinal = a.ordinals[sequence];
    const auto site = static_cast<std::uint32_t>(a.first_head + head);
    const std::uint32_t key1 = a.purpose | (site & 0xFFFu) << 20;
    const int first = keys.position / kPhiloxLanes,
              counters = keys.Last() / kPhiloxLanes - first + 1;
    for (int i = static_cast<int>(threadIdx.x); i < queries.count * counters;
         i += static_cast<int>(blockDim.x)) {
      const int row = i / counters, counter = i % counters;
      const PhiloxBits drawn =
          PhiloxAt(a.seed, key1, static_cast<std::uint32_t>(first + counter),
                   static_cast<std::uint32_t>(queries.position + row),
                   static_cast<std::uint32_t>(ordinal), static_cast<std::uint32_t>(ordinal >> 32));
      unsigned kept = 0;
#pragma unroll
      for (int lane = 0; lane < kPhiloxLanes; ++lane) {
        kept |= (drawn.Lane(lane) >= a.threshold ? 1u : 0u) << lane;
      }
      bits[row * kRow + counter] = static_cast<unsigned char>(kept);
    }
  }
  __device__ static bool Kept(const unsigned char* bits, int row, const AttentionTile& keys,
                              int column) {
    const int lane = keys.position % kPhiloxLanes + column;
    return (bits[row * kRow + lane / kPhiloxLanes] >> lane % kPhiloxLanes & 1) != 0;
  }
};

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_OPERANDS_CUH_
