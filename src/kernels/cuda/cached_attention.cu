// Key/value cache and attention to it. A slot holds rows of keys, then rows of values, padded with
// zeros to whole vectors: [2 kv_heads, positions, CachedRow()]; then follows room for partial
// results (gpu::KeyValueElements). Keys and values overwrite what is at their positions.
// CachedAttention overwrites out: a block computes one query row, up to 8 heads that read one
// key/value head, and a piece of the positions; a second kernel merges the pieces ("flash
// decoding", Dao et al. 2023).
#include <cmath>
#include <limits>

#include "attention_kernels.cuh"
#include "backends.hpp"
#include "reduce.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

// Copies to the cache. Column c is element c % row of part c / row: key heads, then value heads.
template <typename T, int kElements>
struct KeepOperation {
  static constexpr int kWidth = kElements;
  View<const T> keys;  // [rows, 2 kv_heads head_dim]
  T* cache;
  const std::int32_t *slots, *firsts;  // [sequences]
  std::int64_t slot, positions;        // elements of a slot; positions of a slot
  int length, head_dim, row;

  __device__ __forceinline__ void operator()(std::int64_t from, std::int64_t column) const {
    const auto part = static_cast<int>(column) / row, d = static_cast<int>(column) - part * row;
    const auto sequence = static_cast<int>(from / length);
    const std::int64_t position =
        firsts[sequence] + from - static_cast<std::int64_t>(sequence) * length;
    Pack<T, kWidth> pack{};
    if (d < head_dim) pack = LoadPack<kWidth>(keys.At(from, part * head_dim + d));
    StoreGlobal(pack, cache + slots[sequence] * slot + (part * positions + position) * row + d);
  }
};

constexpr int kCachedThreads = 128, kCachedWarps = kCachedThreads / kWarpLanes;
constexpr int kCachedTile = 64;      // keys whose weights are in shared memory at a time
constexpr int kKeyLanes = 8;         // lanes that share a key and read 128 bytes of it at once
constexpr int kMostCachedHeads = 8;  // query heads per block

template <typename T>
struct CachedOperands {
  using Sum = SumOf<T>;
  View<const T> query;  // [sequences length, >= heads head_dim]
  View<T> out;          // [sequences length, heads head_dim]
  T* cache;
  const std::int32_t *slots, *firsts;  // [sequences]
  std::int64_t slot, positions;        // elements of a slot; positions of a slot
  int length, heads, kv_heads, head_dim;
  int row;            // elements of a key, with padding
  int piece, pieces;  // positions per piece; 1 piece: out is written directly
  Sum scale;          // factor that turns scores into exponents of 2

  __host__ __device__ int Group() const { return heads / kv_heads; }
  // Rows of one part of a slot: keys of key/value head h are part h, its values part kv_heads + h.
  __device__ const T* Rows(int sequence, int part) const {
    return cache + slots[sequence] * slot + part * positions * row;
  }
  // A piece's partial result: `row` sums relative to the piece's maximum exponent, then that
  // maximum, then the sum of the weights.
  __device__ Sum* Partial(int sequence, int head, int number) const {
    T* const begin = cache + slots[sequence] * slot + 2 * kv_heads * positions * row;
    return reinterpret_cast<Sum*>(begin) +
           (static_cast<std::int64_t>(head) * pieces + number) * (row + gpu::kCachedExtra);
  }
};

// Shared memory of a block.
template <typename T, int kHeads>
struct CachedShared {
  using Sum = SumOf<T>;
  Sum* queries;                 // [kHeads, row]: queries times scale
  Sum* weights;                 // [kHeads, kCachedTile]: exponents, then weights
  Sum* sums;                    // [kCachedThreads * kVectorWidth<T>]
  Sum *tops, *totals, *shrunk;  // [kHeads]

  static constexpr int kWithoutQueries =
      kHeads * kCachedTile + kCachedThreads * kVectorWidth<T> + 3 * kHeads;
  static int Bytes(int row) {
    return (kHeads * row + kWithoutQueries) * static_cast<int>(sizeof(Sum));
  }
  __device__ CachedShared(Sum* memory, int row)
      : queries(memory),
        weights(queries + kHeads * row),
        sums(weights + kHeads * kCachedTile),
        tops(sums + kCachedThreads * kVectorWidth<T>),
        totals(tops + kHeads),
        shrunk(totals + kHeads) {}
};

// What a block of the grid computes.
template <typename T, int kHeads>
struct CachedPlace {
  int piece, kv_head, sequence, head, heads;  // it has `heads` heads, from `head` on
  std::int64_t query;                         // row of the query
  int position;                               // position of the query

  __device__ explicit CachedPlace(const CachedOperands<T>& a) {
    const int group = a.Group(), chunks = (group + kHeads - 1) / kHeads;
    auto block = static_cast<int>(blockIdx.x);
    piece = block % a.pieces, block /= a.pieces;
    const int chunk = block % chunks;
    block /= chunks;
    kv_head = block % a.kv_heads, block /= a.kv_heads;
    sequence = block / a.length;
    query = block;
    head = kv_head * group + chunk * kHeads;
    heads = min(kHeads, group - chunk * kHeads);
    position = a.firsts[sequence] + block % a.length;
  }
};

// Writes exponents of `count` keys, then -infinity, to shared.weights. kKeyLanes lanes share a key.
template <typename T, int kHeads>
__device__ __forceinline__ void CachedScores(const T* keys, int row, int count,
                                             const CachedShared<T, kHeads>& shared) {
  using Sum = SumOf<T>;
  constexpr int kWidth = kVectorWidth<T>;
  const int lane = static_cast<int>(threadIdx.x) % kKeyLanes;
  for (int k = static_cast<int>(threadIdx.x) / kKeyLanes; k < kCachedTile;
       k += kCachedThreads / kKeyLanes) {
    Sum score[kHeads] = {};
    if (k < count) {
      for (int d = lane * kWidth; d < row; d += kKeyLanes * kWidth) {
        Sum key[kWidth];
        Load<kWidth>(keys + static_cast<std::int64_t>(k) * row + d, key);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const auto query = LoadPack<kWidth>(shared.queries + h * row + d);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) score[h] += query.values[j] * key[j];
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      score[h] = LaneSum(score[h], kKeyLanes);
      if (lane == 0) {
        shared.weights[h * kCachedTile + k] =
            k < count ? score[h] : -std::numeric_limits<Sum>::infinity();
      }
    }
  }
}

// Turns the exponents into weights relative to the new maxima. Each warp handles whole heads.
template <typename T, int kHeads>
__device__ __forceinline__ void CachedSoftmax(const CachedShared<T, kHeads>& shared) {
  using Sum = SumOf<T>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes;
  for (int h = thread / kWarpLanes; h < kHeads; h += kCachedWarps) {
    Sum* const weights = shared.weights + h * kCachedTile;
    const Sum before = shared.tops[h];
    Sum top = before;
    for (int k = lane; k < kCachedTile; k += kWarpLanes) top = MaxOfTwo()(top, weights[k]);
    top = WarpMax(top);
    Sum sum = 0;
    for (int k = lane; k < kCachedTile; k += kWarpLanes) {
      weights[k] = exp2(weights[k] - top);
      sum += weights[k];
    }
    sum = WarpSum(sum);
    if (lane == 0) {
      const Sum shrunk = exp2(before - top);
      shared.tops[h] = top;
      shared.totals[h] = shared.totals[h] * shrunk + sum;
      shared.shrunk[h] = shrunk;
    }
  }
}

// Adds up the threads' sums of each column into out, or into the piece's partial result.
template <typename T, int kHeads>
__device__ __forceinline__ void FinishCached(const CachedOperands<T>& a,
                                             const CachedPlace<T, kHeads>& at,
                                             const CachedShared<T, kHeads>& shared,
                                             const SumOf<T> (&out)[kHeads][kVectorWidth<T>]) {
  using Sum = SumOf<T>;
  constexpr int kWidth = kVectorWidth<T>;
  const int thread = static_cast<int>(threadIdx.x), parts = kCachedThreads / (a.row / kWidth);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= at.heads) continue;
    if (h > 0) __syncthreads();  // all threads are done with the previous head's sums
#pragma unroll
    for (int j = 0; j < kWidth; ++j) shared.sums[thread * kWidth + j] = out[h][j];
    __syncthreads();
    const int head = at.head + h;
    Sum* const partial = a.pieces > 1 ? a.Partial(at.sequence, head, at.piece) : nullptr;
    for (int d = thread; d < a.head_dim; d += kCachedThreads) {
      Sum sum = shared.sums[d];
      for (int part = 1; part < parts; ++part) sum += shared.sums[part * a.row + d];
      if (partial != nullptr) {
        partial[d] = sum;
      } else {
        *a.out.At(at.query, std::int64_t{head} * a.head_dim + d) =
            Narrow<T>(sum / shared.totals[h]);
      }
    }
    if (partial != nullptr && thread == 0) {
      partial[a.row] = shared.tops[h];
      partial[a.row + 1] = shared.totals[h];
    }
  }
}

template <typename T, int kHeads>
__global__ void __launch_bounds__(kCachedThreads) CachedKernel(const CachedOperands<T> a) {
  using Sum = SumOf<T>;
  constexpr int kWidth = kVectorWidth<T>;
  const CachedPlace<T, kHeads> at(a);
  const int first = at.piece * a.piece, end = min(at.position + 1, first + a.piece);
  if (first >= end) return;
  const CachedShared<T, kHeads> shared(device::cuda::SharedMemory<Sum>(), a.row);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kHeads * a.row; i += kCachedThreads) {
    const int h = i / a.row, d = i % a.row;
    const bool inside = h < at.heads && d < a.head_dim;
    shared.queries[i] =
        inside ? a.scale * Widen(*a.query.At(at.query, (at.head + h) * a.head_dim + d)) : Sum(0);
  }
  if (thread < kHeads) {
    shared.tops[thread] = std::numeric_limits<Sum>::lowest();
    shared.totals[thread] = Sum(0);
  }
  // Each thread has kWidth columns of every parts-th key.
  const int vectors = a.row / kWidth, parts = kCachedThreads / vectors, part = thread / vectors;
  const T* const keys = a.Rows(at.sequence, at.kv_head);
  const T* const values = a.Rows(at.sequence, a.kv_heads + at.kv_head) + thread % vectors * kWidth;
  Sum out[kHeads][kWidth] = {};
  for (int begin = first; begin < end; begin += kCachedTile) {
    const int count = min(kCachedTile, end - begin);
    __syncthreads();
    CachedScores<T, kHeads>(keys + static_cast<std::int64_t>(begin) * a.row, a.row, count, shared);
    __syncthreads();
    CachedSoftmax<T, kHeads>(shared);
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) out[h][j] *= shared.shrunk[h];
    }
    for (int k = part < parts ? part : count; k < count; k += parts) {
      Sum value[kWidth];
      Load<kWidth>(values + static_cast<std::int64_t>(begin + k) * a.row, value);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const Sum weight = shared.weights[h * kCachedTile + k];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) out[h][j] += weight * value[j];
      }
    }
  }
  FinishCached<T, kHeads>(a, at, shared, out);
}

// Computes out for one head of one query by merging its pieces in order. length must be 1.
template <typename T>
__global__ void __launch_bounds__(kCachedThreads) MergeKernel(const CachedOperands<T> a) {
  using Sum = SumOf<T>;
  const int sequence = static_cast<int>(blockIdx.x) / a.heads;
  const int head = static_cast<int>(blockIdx.x) % a.heads;
  const int last = a.firsts[sequence] / a.piece;
  Sum top = std::numeric_limits<Sum>::lowest();
  for (int i = 0; i <= last; ++i) top = MaxOfTwo()(top, a.Partial(sequence, head, i)[a.row]);
  for (int d = static_cast<int>(threadIdx.x); d < a.head_dim; d += kCachedThreads) {
    Sum sum = 0, total = 0;
    for (int i = 0; i <= last; ++i) {
      const Sum* const partial = a.Partial(sequence, head, i);
      const Sum factor = exp2(partial[a.row] - top);
      sum += factor * partial[d];
      total += factor * partial[a.row + 1];
    }
    *a.out.At(sequence, std::int64_t{head} * a.head_dim + d) = Narrow<T>(sum / total);
  }
}

template <int kHeads, typename T>
void LaunchCached(const device::Stream& stream, std::int64_t rows, const CachedOperands<T>& a) {
  const std::int64_t blocks = rows * a.kv_heads * ((a.Group() + kHeads - 1) / kHeads) * a.pieces;
  device::cuda::Launch(device::cuda::Queue(stream), &CachedKernel<T, kHeads>,
                       dim3(static_cast<unsigned>(blocks)), dim3(kCachedThreads),
                       static_cast<std::size_t>(CachedShared<T, kHeads>::Bytes(a.row)), a);
}

template <typename T>
CachedOperands<T> OperandsOf(const AttentionShape& shape, const Matrix& qkv, const CachedRows& rows,
                             const KeyValueCache& cache, const Matrix& out) {
  CachedOperands<T> a{};
  a.query = ViewOf<const T>(qkv), a.out = ViewOf<T>(out);
  a.cache = static_cast<T*>(cache.data);
  a.slots = rows.slots, a.firsts = rows.firsts;
  a.slot = gpu::KeyValueElements({}, shape, cache.positions), a.positions = cache.positions;
  a.length = static_cast<int>(shape.length);
  a.heads = static_cast<int>(shape.heads), a.kv_heads = static_cast<int>(shape.kv_heads);
  a.head_dim = static_cast<int>(shape.head_dim);
  a.row = static_cast<int>(gpu::CachedRow(shape.head_dim));
  // Only a single row is cut into pieces: several rows give enough blocks, and room is for one row.
  a.piece =
      static_cast<int>(shape.length == 1 ? gpu::CachedPiece(cache.positions) : cache.positions);
  a.pieces = static_cast<int>(CeilDivide(cache.positions, std::int64_t{a.piece}));
  a.scale = static_cast<SumOf<T>>(kAttentionLog2E / shape.Divisor());
  return a;
}

}  // namespace

void KeepKeyValues(const device::Stream& stream, const AttentionShape& shape,
                   const Matrix& key_values, const CachedRows& rows, const KeyValueCache& cache) {
  const std::int64_t d = shape.head_dim, row = gpu::CachedRow(d);
  WithVectors(key_values.dtype, d, {key_values}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, key_values.rows, 2 * shape.kv_heads * row,
         KeepOperation<T, width()>{
             ViewOf<const T>(key_values), static_cast<T*>(cache.data), rows.slots, rows.firsts,
             gpu::KeyValueElements(stream, shape, cache.positions), cache.positions,
             static_cast<int>(shape.length), static_cast<int>(d), static_cast<int>(row)});
  });
}

void CopyKeyValues(const device::Stream& stream, const AttentionShape& shape, const SlotCopy& copy,
                   const KeyValueCache& cache) {
  const std::int64_t row = gpu::CachedRow(shape.head_dim);
  const std::int64_t bytes = gpu::KeyValueElements(stream, shape, cache.positions) *
                             static_cast<std::int64_t>(SizeOf(cache.dtype));
  const auto slot = [&](std::int32_t number) {
    return Matrix{static_cast<char*>(cache.data) + number * bytes, cache.dtype, 2 * shape.kv_heads,
                  copy.positions * row, cache.positions * row};
  };
  cuda::Copy(stream, slot(copy.from), slot(copy.to));
}

void CachedAttention(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                     const CachedRows& rows, const KeyValueCache& cache, const Matrix& out) {
  gpu::CheckHeadDim(shape);
  const std::int64_t queries = shape.sequences * shape.length;
  if (queries == 0) return;
  Dispatch(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto a = OperandsOf<T>(shape, qkv, rows, cache, out);
    const int group = a.Group();
    if (group == 1) {
      LaunchCached<1>(stream, queries, a);
    } else if (group == 2) {
      LaunchCached<2>(stream, queries, a);
    } else if (group <= 4) {
      LaunchCached<4>(stream, queries, a);
    } else {
      LaunchCached<kMostCachedHeads>(stream, queries, a);
    }
    if (a.pieces == 1) return;
    device::cuda::Launch(device::cuda::Queue(stream), &MergeKernel<T>,
                         dim3(static_cast<unsigned>(shape.sequences * shape.heads)),
                         dim3(kCachedThreads), 0, a);
  });
}

}  // namespace trireme::kernels::cuda
