// What the attention kernels share: operands, tiles, masks, the head of a block, and launchers.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>
#include <type_traits>

#include "dropout.cuh"
#include "reduce.cuh"
#include "trireme/device/cuda/launch.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

// Operands of attention kernels: addresses, pairs of queries and keys, and dropout masks.

// `count` consecutive positions from `position` on, held in rows from `row` on of each sequence.
struct AttentionTile {
  int row, position, count;
  __device__ int Last() const { return position + count - 1; }
};

// Which positions of a sequence this rank holds: an early block, then a late one.
struct AttentionRows {
  int early_begin, early_count, late_begin, late_count;

  __host__ __device__ int Count() const { return early_count + late_count; }
  // Number of tiles of at most `size` positions; no tile spans both blocks.
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
  // Whether any of the positions [first, position] is held.
  __device__ bool Reach(int position, int first) const {
    return (early_count > 0 && early_begin <= position && early_begin + early_count > first) ||
           (late_count > 0 && late_begin <= position && late_begin + late_count > first);
  }
};

// Pointers are to the first row of head 0. Unused operands are null.
template <typename T>
struct AttentionOperands {
  using Sum = SumOf<T>;
  View<const T> query, key, value;
  View<T> out;
  View<Sum> lse;  // [rows, heads]
  View<const T> dout;
  View<T> dquery, dkey, dvalue;
  Sum* delta;  // [rows, heads], dense: dot product of dout and out
  // [rows, heads * head_dim], dense, only for attention in parts in bf16: the unrounded out or
  // dquery, to which the next block of keys adds.
  Sum* exact;
  AttentionRows queries, keys;
  int heads, kv_heads, head_dim;
  int first_task, tasks;  // number of (sequence, key/value head) pairs of this call, and the first
  Sum scale;              // of scores: 1 / AttentionShape::Divisor()
  bool causal;
  bool whole;   // these are all the keys, so results are overwritten, not merged
  bool vector;  // every row of every head is aligned to 16 bytes and a multiple of 16 bytes long
  // Dropout; threshold 0: none.
  std::uint32_t seed, purpose, threshold;  // purpose: the key's second word, for head 0
  int first_head;                          // global number of head 0
  Sum kept_scale;
  const std::uint64_t* ordinals;
  const std::int32_t* begins;       // [rows of queries]: AttentionShape::begins; null: no documents
  const std::int32_t* key_lengths;  // [sequences]: AttentionShape::key_lengths, or null
  const std::int32_t* served;       // [sequences]: != 0 if cuDNN has computed the sequence; or null

  __host__ __device__ int Group() const { return heads / kv_heads; }
  __host__ __device__ std::int64_t QueryRow(int sequence, int row) const {
    return static_cast<std::int64_t>(sequence) * queries.Count() + row;
  }
  __host__ __device__ std::int64_t KeyRow(int sequence, int row) const {
    return static_cast<std::int64_t>(sequence) * keys.Count() + row;
  }
};

// Whether cuDNN has already computed the sequence, so that our kernels skip it.
template <typename T>
__device__ __forceinline__ bool IsServed(const AttentionOperands<T>& a, int sequence) {
  return a.served != nullptr && a.served[sequence] != 0;
}

// The tile without the keys that are padding.
template <typename T>
__device__ __forceinline__ AttentionTile PresentKeys(const AttentionOperands<T>& a, int sequence,
                                                     AttentionTile keys) {
  if (a.key_lengths != nullptr) {
    keys.count = max(0, min(keys.count, a.key_lengths[sequence] - keys.position));
  }
  return keys;
}

// Number of the tile's keys, counted from its first, that the query at `position` sees; < 0: none.
template <typename T>
__device__ __forceinline__ int AttentionVisible(const AttentionOperands<T>& a, int position,
                                                const AttentionTile& keys) {
  return a.causal ? min(keys.count, position + 1 - keys.position) : keys.count;
}

// Position of the first key that any query of the tile sees (begins never decrease in a sequence).
template <typename Sizes, typename T>
__device__ __forceinline__ int FirstSeen(const AttentionOperands<T>& a, int sequence,
                                         const AttentionTile& queries) {
  if constexpr (Sizes::kDocuments) return a.begins[a.QueryRow(sequence, queries.row)];
  return 0;
}

// Document begins of a thread's queries; empty without documents.
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
  // Whether key `column` of the tile does not precede the document of this thread's query i.
  __device__ __forceinline__ bool Allow(int i, const AttentionTile& keys, int column) const {
    if constexpr (Sizes::kDocuments) return keys.position + column >= at[i];
    return true;
  }
};

// Dropout masks of a tile of at most `kKeys` keys: a bit per key. A row's first bit is that of the
// first key of the Philox counter in which the tile's first key lies.
template <int kKeys>
struct AttentionMask {
  static constexpr int kLanes = 8;                       // keys per Philox counter
  static constexpr int kRow = kKeys / kPhiloxLanes + 1;  // bytes

  // All threads of the block must call it; a barrier must follow.
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
      bits[row * kRow + counter] = static_cast<unsigned char>(drawn.Kept(a.threshold));
    }
  }
  __device__ static bool Kept(const unsigned char* bits, int row, const AttentionTile& keys,
                              int column) {
    const int lane = keys.position % kPhiloxLanes + column;
    return (bits[row * kRow + lane / kPhiloxLanes] >> lane % kPhiloxLanes & 1) != 0;
  }
};

// Tiles of attention in shared memory and registers: sizes, loads, and products. A thread computes
// kMyQueries x kMyKeys scores and some rows of an output, kPieces x kAttentionWidth columns each,
// so that each element it reads from shared memory is used in several products.

inline constexpr int kAttentionWidth = 4;  // elements that a thread reads or writes at once

// Threads form rows and columns; those of a row share the queries (or keys) of their output.
template <int kRowThreads_, int kColumnThreads_, int kMyQueries_, int kMyKeys_, int kDims_>
struct AttentionSizes {
  static constexpr int kRowThreads = kRowThreads_, kColumnThreads = kColumnThreads_;
  static constexpr int kThreads = kRowThreads * kColumnThreads;
  static constexpr int kMyQueries = kMyQueries_, kMyKeys = kMyKeys_;
  static constexpr int kQueries = kRowThreads * kMyQueries, kKeys = kColumnThreads * kMyKeys;
  static constexpr int kKeyRows = kKeys / kRowThreads;  // keys whose gradients a thread computes
  static constexpr int kDims = kDims_;                  // largest head_dim
  static constexpr bool kDocuments = false;             // true in AttentionDocuments
  // A thread's columns of an output: kPieces groups of kAttentionWidth columns, kStep apart.
  static constexpr int kStep = kColumnThreads * kAttentionWidth, kPieces = kDims / kStep;
  // Row lengths in shared memory, padded so that neighbouring rows lie in different banks.
  static constexpr int kRow = kDims + kAttentionWidth, kScoreRow = kKeys + kAttentionWidth;
  static_assert(kThreads % kWarpLanes == 0 && kWarpLanes % kColumnThreads == 0);
  static_assert(kDims % kStep == 0 && kKeys % kRowThreads == 0);
  static_assert(kKeys % kAttentionWidth == 0);

  __device__ static int Row() { return static_cast<int>(threadIdx.x) / kColumnThreads; }
  __device__ static int Column() { return static_cast<int>(threadIdx.x) % kColumnThreads; }
};

// The same tiles for kernels that keep documents apart (AttentionOperands::begins); a separate
// type, so that kernels without documents are not slowed down.
template <typename Sizes>
struct AttentionDocuments : Sizes {
  static constexpr bool kDocuments = true;
};

// Blocks per multiprocessor, for __launch_bounds__: as many as leave each thread 128 registers and
// fit in shared memory. fp64 and the widest heads need more registers.
template <typename Sizes, typename Sum>
inline constexpr int kAttentionBlocks = sizeof(Sum) == sizeof(double) || Sizes::kDims > 128 ? 1
                                        : Sizes::kDims > 64 && Sizes::kThreads <= 128
                                            ? 3
                                            : 512 / Sizes::kThreads;

template <typename Sum>
using AttentionPack = Pack<Sum, kAttentionWidth>;

// The rows of one head in global memory.
template <typename T>
struct AttentionHead {
  using Sum = SumOf<std::remove_const_t<T>>;
  T* data;
  std::int64_t stride;
  int dims;
  bool vector;  // as in AttentionOperands

  // Elements [column, column + kAttentionWidth) of a row; zeros beyond head_dim.
  __device__ __forceinline__ AttentionPack<Sum> Load(int row, int column) const {
    const T* const from = data + row * stride + column;
    AttentionPack<Sum> pack;
    if (vector && column < dims) {
      cuda::Load<kAttentionWidth, std::remove_const_t<T>>(from, pack.values);
      return pack;
    }
#pragma unroll
    for (int i = 0; i < kAttentionWidth; ++i) {
      pack.values[i] = column + i < dims ? Widen<std::remove_const_t<T>>(from[i]) : Sum(0);
    }
    return pack;
  }
  __device__ __forceinline__ void Store(const AttentionPack<Sum>& pack, int row, int column) const {
    T* const to = data + row * stride + column;
    if (vector && column < dims) {
      cuda::Store(pack.values, to);
      return;
    }
#pragma unroll
    for (int i = 0; i < kAttentionWidth; ++i) {
      if (column + i < dims) to[i] = Narrow<T>(pack.values[i]);
    }
  }
};

// Copies rows [first, first + count) of a head to `to`, [kRows, Sizes::kRow], padded with zeros on
// both sides. All threads of the block must call it; a barrier must follow.
template <typename Sizes, int kRows, typename T>
__device__ __forceinline__ void LoadAttentionRows(const AttentionHead<const T>& head, int first,
                                                  int count, SumOf<T>* to) {
  constexpr int kWidth = kVectorWidth<T>, kPieces = Sizes::kDims / kWidth;
  const int thread = static_cast<int>(threadIdx.x);
  if (!head.vector) {
    for (int i = thread; i < kRows * Sizes::kDims; i += Sizes::kThreads) {
      const int row = i / Sizes::kDims, column = i % Sizes::kDims;
      const bool inside = row < count && column < head.dims;
      to[row * Sizes::kRow + column] =
          inside ? Widen(head.data[(first + row) * head.stride + column]) : SumOf<T>(0);
    }
    return;
  }
#pragma unroll 4
  for (int i = thread; i < kRows * kPieces; i += Sizes::kThreads) {
    const int row = i / kPieces, column = i % kPieces * kWidth;
    SumOf<T> values[kWidth] = {};
    if (row < count && column < head.dims) {
      Load<kWidth>(head.data + (first + row) * head.stride + column, values);
    }
    Pack<SumOf<T>, kWidth> pack;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) pack.values[j] = values[j];
    StorePack(pack, to + row * Sizes::kRow + column);
  }
}

// sum[i][j] += (row i of x) . (row j of y) over `dims` elements, a multiple of kAttentionWidth. x
// and y are in shared memory, with rows x_step and y_step elements apart.
template <int kX, int kY, typename Sum>
__device__ __forceinline__ void AddAttentionDots(const Sum* x, int x_step, const Sum* y, int y_step,
                                                 int dims, Sum (&sum)[kX][kY]) {
#pragma unroll 1
  for (int d = 0; d < dims; d += kAttentionWidth) {
    AttentionPack<Sum> left[kX], right[kY];
#pragma unroll
    for (int i = 0; i < kX; ++i) left[i] = LoadPack<kAttentionWidth>(x + i * x_step + d);
#pragma unroll
    for (int j = 0; j < kY; ++j) right[j] = LoadPack<kAttentionWidth>(y + j * y_step + d);
#pragma unroll
    for (int k = 0; k < kAttentionWidth; ++k) {
#pragma unroll
      for (int i = 0; i < kX; ++i) {
#pragma unroll
        for (int j = 0; j < kY; ++j) sum[i][j] += left[i].values[k] * right[j].values[k];
      }
    }
  }
}

// A thread's part of an output: kRows rows of its columns.
template <typename Sizes, int kRows, typename Sum>
using AttentionSums = AttentionPack<Sum>[kRows][Sizes::kPieces];

template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void ClearAttentionSums(AttentionSums<Sizes, kRows, Sum>& sums) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Sizes::kPieces; ++j) sums[i][j] = {};
  }
}

// sums[i] += factors[i] * x, where x points to the thread's first column of a row.
template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void AddAttentionRow(const Sum (&factors)[kRows], const Sum* x, int dims,
                                                AttentionSums<Sizes, kRows, Sum>& sums) {
#pragma unroll
  for (int j = 0; j < Sizes::kPieces; ++j) {
    if (j > 0 && j * Sizes::kStep >= dims) continue;
    const auto row = LoadPack<kAttentionWidth>(x + j * Sizes::kStep);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int k = 0; k < kAttentionWidth; ++k) {
        sums[i][j].values[k] += factors[i] * row.values[k];
      }
    }
  }
}

// sums += w x: this thread's rows of w, Sizes::kScoreRow apart, times `count` rows of x, from this
// thread's first column on. Both are in shared memory and padded with zeros.
template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void AddAttentionProduct(const Sum* w, const Sum* x, int count, int dims,
                                                    AttentionSums<Sizes, kRows, Sum>& sums) {
  for (int k = 0; k < count; k += kAttentionWidth) {
    AttentionPack<Sum> weights[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      weights[i] = LoadPack<kAttentionWidth>(w + i * Sizes::kScoreRow + k);
    }
#pragma unroll
    for (int step = 0; step < kAttentionWidth; ++step) {
      Sum factors[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) factors[i] = weights[i].values[step];
      AddAttentionRow<Sizes, kRows>(factors, x + (k + step) * Sizes::kRow, dims, sums);
    }
  }
}

// sums += w^T x: this thread's kRows columns of w (w points to the first) times `count` rows of x.
template <typename Sizes, int kRows, typename Sum>
__device__ __forceinline__ void AddAttentionTransposed(const Sum* w, const Sum* x, int count,
                                                       int dims,
                                                       AttentionSums<Sizes, kRows, Sum>& sums) {
#pragma unroll 2
  for (int k = 0; k < count; ++k) {
    const auto weights = LoadPack<kRows>(w + k * Sizes::kScoreRow);
    AddAttentionRow<Sizes, kRows>(weights.values, x + k * Sizes::kRow, dims, sums);
  }
}

// Calls body(row, column, sums[row][piece]) for those of this thread's columns that are < dims.
template <typename Sizes, int kRows, typename Sum, typename Body>
__device__ __forceinline__ void ForEachAttentionSum(AttentionSums<Sizes, kRows, Sum>& sums,
                                                    int dims, const Body& body) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Sizes::kPieces; ++j) {
      const int column = Sizes::Column() * kAttentionWidth + j * Sizes::kStep;
      if (column < dims) body(i, column, sums[i][j]);
    }
  }
}

// Exponentials have base 2: scores are multiplied by this first.
inline constexpr double kAttentionLog2E = 1.44269504088896340736;
inline constexpr double kAttentionLn2 = 0.69314718055994530942;

inline constexpr int kAttentionMostDims = 256;  // the largest head_dim

__host__ __device__ constexpr int RoundUpDims(int dims) {
  return (dims + kAttentionWidth - 1) / kAttentionWidth * kAttentionWidth;
}

// The heads on which a block works, and the block's number among the blocks of these heads.
template <typename T>
struct AttentionPlace {
  int block, sequence, head, kv_head;

  // Block numbers run through query heads first, then through tiles.
  __device__ static AttentionPlace OfQueries(const AttentionOperands<T>& a, int block) {
    const int heads = a.tasks * a.Group(), i = a.first_task * a.Group() + block % heads;
    return {block / heads, i / a.heads, i % a.heads, i % a.heads / a.Group()};
  }
  // The same with key/value heads; `head` is the first query head that reads this kv_head.
  __device__ static AttentionPlace OfKeys(const AttentionOperands<T>& a, int block) {
    const int i = a.first_task + block % a.tasks, kv_head = i % a.kv_heads;
    return {block / a.tasks, i / a.kv_heads, kv_head * a.Group(), kv_head};
  }

  // The rows of an operand of queries, or of keys, for this head and sequence.
  template <typename U>
  __device__ AttentionHead<U> Queries(const AttentionOperands<T>& a, const View<U>& of) const {
    return {of.At(a.QueryRow(sequence, 0), head * a.head_dim), of.stride, a.head_dim, a.vector};
  }
  template <typename U>
  __device__ AttentionHead<U> Keys(const AttentionOperands<T>& a, const View<U>& of) const {
    return {of.At(a.KeyRow(sequence, 0), kv_head * a.head_dim), of.stride, a.head_dim, a.vector};
  }
  // The rows of a.exact; data is null if a.exact is.
  __device__ AttentionHead<SumOf<T>> Exact(const AttentionOperands<T>& a) const {
    if (a.exact == nullptr) return {nullptr, 0, 0, false};
    return Queries(a, View<SumOf<T>>{a.exact, std::int64_t{a.heads} * a.head_dim});
  }
  __device__ SumOf<T>* Lse(const AttentionOperands<T>& a, int row) const {
    return a.lse.At(a.QueryRow(sequence, row), head);
  }
  __device__ SumOf<T>* Delta(const AttentionOperands<T>& a, int row) const {
    return a.delta + a.QueryRow(sequence, row) * a.heads + head;
  }
};

// Part of a row of the sum so far: from `stored`, or from `exact` if `stored` is rounded.
template <typename T>
__device__ __forceinline__ AttentionPack<SumOf<T>> LoadExact(const AttentionHead<T>& stored,
                                                             const AttentionHead<SumOf<T>>& exact,
                                                             int row, int column) {
  if constexpr (std::is_same_v<T, SumOf<T>>) return stored.Load(row, column);
  return exact.Load(row, column);
}

// Calls body(std::integral_constant<int, dims>{}), dims being the number of columns in shared
// memory for this head_dim.
template <typename Body>
void WithAttentionDims(int head_dim, const Body& body) {
  head_dim <= 32    ? body(std::integral_constant<int, 32>{})
  : head_dim <= 64  ? body(std::integral_constant<int, 64>{})
  : head_dim <= 128 ? body(std::integral_constant<int, 128>{})
                    : body(std::integral_constant<int, kAttentionMostDims>{});
}

// RunError if the card allows a block less than `bytes` of shared memory.
void CheckAttentionRoom(const device::GpuContext& gpu, int head_dim, int bytes);

// Queues an attention kernel whose blocks need `bytes` of shared memory; does nothing for 0 blocks.
template <typename T>
void LaunchAttention(const device::Stream& stream, void (*kernel)(AttentionOperands<T>),
                     std::int64_t blocks, int threads, int bytes, const AttentionOperands<T>& a) {
  if (blocks == 0) return;
  CheckAttentionRoom(*stream.gpu, a.head_dim, bytes);
  device::cuda::Launch(device::cuda::Queue(stream), kernel, dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(threads)), static_cast<std::size_t>(bytes), a);
}

// Whether queries and keys fit in one tile each: then the backward pass is a single kernel.
template <typename T>
bool AttentionIsOneTile(const AttentionOperands<T>& a);

// Launchers, for T = float, double and Bf16. They queue kernels, or do nothing if there is nothing
// to write. LaunchAttentionDelta computes a.delta.
template <typename T>
void LaunchAttentionDelta(const device::Stream& stream, const AttentionOperands<T>& a);
template <typename T>
void LaunchAttentionForward(const device::Stream& stream, const AttentionOperands<T>& a);
template <typename T>
void LaunchAttentionBackward(const device::Stream& stream, const AttentionOperands<T>& a);

// The same on tensor cores, if a.vector: dropout, documents, padding and parts work as above.
// Weights and their gradients are rounded to bf16 where they are operands of products.
void LaunchMatrixForward(const device::Stream& stream, const AttentionOperands<Bf16>& a);
// Call both after LaunchAttentionDelta.
void LaunchMatrixQueryGradient(const device::Stream& stream, const AttentionOperands<Bf16>& a);
void LaunchMatrixKeyGradient(const device::Stream& stream, const AttentionOperands<Bf16>& a);

}  // namespace trireme::kernels::cuda
