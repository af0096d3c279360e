// Attention's backward pass (Dao et al. 2022, appendix B), and what its two kernels share. With
// weights P = 2^(s - lse), D = dropout, and delta = rowsum(dO * O): dV = D(P)^T dO; dP = D(dO V^T);
// dS = P (dP - delta); dQ = scale dS K; dK = scale dS^T Q. P and dS exist for one tile at a time.
#include "attention.hpp"
#include "attention_kernels.cuh"

namespace trireme::kernels::cuda {

namespace {

// Shared memory of a block.
template <typename Sizes, typename Sum>
struct AttentionBackwardShared {
  using Mask = AttentionMask<Sizes::kKeys>;
  Sum* queries;         // [kQueries, kRow]
  Sum* douts;           // [kQueries, kRow]
  Sum* keys;            // [kKeys, kRow]
  Sum* values;          // [kKeys, kRow]
  Sum* ds;              // [kQueries, kScoreRow]: dS times scale
  Sum* weights;         // [kQueries, kScoreRow]: D(P); null in the query kernel
  unsigned char* kept;  // [kQueries, Mask::kRow]

  static constexpr int kRows = 2 * (Sizes::kQueries + Sizes::kKeys) * Sizes::kRow;
  static constexpr int kScores = Sizes::kQueries * Sizes::kScoreRow;
  static constexpr int Bytes(bool with_weights) {
    return (kRows + (with_weights ? 2 : 1) * kScores) * static_cast<int>(sizeof(Sum)) +
           Sizes::kQueries * Mask::kRow;
  }

  __device__ AttentionBackwardShared(Sum* memory, bool with_weights)
      : queries(memory),
        douts(queries + Sizes::kQueries * Sizes::kRow),
        keys(douts + Sizes::kQueries * Sizes::kRow),
        values(keys + Sizes::kKeys * Sizes::kRow),
        ds(memory + kRows),
        weights(with_weights ? ds + kScores : nullptr),
        kept(reinterpret_cast<unsigned char*>(ds + (with_weights ? 2 : 1) * kScores)) {}
};

// What a thread holds about each of its queries.
template <typename Sizes, typename Sum>
struct AttentionQueryRows {
  Sum lse[Sizes::kMyQueries];  // base 2
  Sum delta[Sizes::kMyQueries];
  AttentionBegins<Sizes> begins;

  template <typename T>
  __device__ void Load(const AttentionOperands<T>& a, const AttentionPlace<T>& at,
                       const AttentionTile& queries, bool with_delta) {
    begins.Load(a, at.sequence, queries);
#pragma unroll
    for (int i = 0; i < Sizes::kMyQueries; ++i) {
      const int row = Sizes::Row() * Sizes::kMyQueries + i;
      const bool inside = row < queries.count;
      lse[i] = inside ? *at.Lse(a, queries.row + row) * static_cast<Sum>(kAttentionLog2E) : Sum(0);
      delta[i] = inside && with_delta ? *at.Delta(a, queries.row + row) : Sum(0);
    }
  }
};

// Computes scale dS, and D(P) if shared.weights is set, of a tile whose operands are in shared
// memory; both are 0 for keys that the query does not see.
template <typename Sizes, typename T>
__device__ __forceinline__ void AttentionScoreGradients(
    const AttentionOperands<T>& a, const AttentionTile& queries, const AttentionTile& keys,
    const AttentionQueryRows<Sizes, SumOf<T>>& rows,
    const AttentionBackwardShared<Sizes, SumOf<T>>& shared) {
  using Sum = SumOf<T>;
  const int dims = RoundUpDims(a.head_dim), first_row = Sizes::Row() * Sizes::kMyQueries;
  Sum score[Sizes::kMyQueries][Sizes::kMyKeys] = {}, dp[Sizes::kMyQueries][Sizes::kMyKeys] = {};
  AddAttentionDots(shared.queries + first_row * Sizes::kRow, Sizes::kRow,
                   shared.keys + Sizes::Column() * Sizes::kRow, Sizes::kColumnThreads * Sizes::kRow,
                   dims, score);
  AddAttentionDots(shared.douts + first_row * Sizes::kRow, Sizes::kRow,
                   shared.values + Sizes::Column() * Sizes::kRow,
                   Sizes::kColumnThreads * Sizes::kRow, dims, dp);
  const Sum exponents = a.scale * static_cast<Sum>(kAttentionLog2E);
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    const int row = first_row + i;
    const int visible = row < queries.count ? AttentionVisible(a, queries.position + row, keys) : 0;
#pragma unroll
    for (int j = 0; j < Sizes::kMyKeys; ++j) {
      const int column = Sizes::Column() + j * Sizes::kColumnThreads;
      const bool seen = column < visible && rows.begins.Allow(i, keys, column);
      const Sum weight = seen ? exp2(score[i][j] * exponents - rows.lse[i]) : Sum(0);
      Sum factor = Sum(1);
      if (a.threshold > 0 && seen) {
        using Mask = typename AttentionBackwardShared<Sizes, Sum>::Mask;
        factor = Mask::Kept(shared.kept, row, keys, column) ? a.kept_scale : Sum(0);
      }
      const int place = row * Sizes::kScoreRow + column;
      shared.ds[place] = seen ? weight * (factor * dp[i][j] - rows.delta[i]) * a.scale : Sum(0);
      if (shared.weights != nullptr) shared.weights[place] = factor * weight;
    }
  }
}

// Tile sizes for each head_dim, limited by shared memory.
template <typename Sum, int kDims>
struct AttentionBackwardSizes;
template <typename Sum>
struct AttentionBackwardSizes<Sum, 32> : AttentionSizes<8, 8, 4, 4, 32> {};
template <>
struct AttentionBackwardSizes<float, 64> : AttentionSizes<16, 16, 4, 4, 64> {};
template <>
struct AttentionBackwardSizes<double, 64> : AttentionSizes<8, 16, 4, 2, 64> {};
template <typename Sum>
struct AttentionBackwardSizes<Sum, 128> : AttentionSizes<8, 16, 4, 2, 128> {};
template <>
struct AttentionBackwardSizes<float, 256> : AttentionSizes<8, 16, 4, 2, 256> {};
template <>
struct AttentionBackwardSizes<double, 256> : AttentionSizes<8, 16, 2, 1, 256> {};

// Gradient of the queries, computed after delta = rowsum(dO * O). A block has a tile of queries and
// goes through the keys tile by tile. For whole sequences it overwrites dquery, for parts it adds.

constexpr int kDeltaThreads = 128, kDeltaLanes = 8;  // kDeltaLanes lanes share a row of a head

// Computes a.delta for all query heads of the tasks.
template <typename T>
__global__ void __launch_bounds__(kDeltaThreads) DeltaKernel(AttentionOperands<T> a) {
  using Sum = SumOf<T>;
  const int heads = a.tasks * a.Group(), lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const std::int64_t i = std::int64_t{blockIdx.x} * (kDeltaThreads / kDeltaLanes) +
                         static_cast<int>(threadIdx.x) / kDeltaLanes;
  // Neighbouring heads of one row come first, since they are side by side in memory. Lanes beyond
  // the end take part in the warp's sums, but write nothing.
  bool inside = i < std::int64_t{heads} * a.queries.Count();
  const int group = a.Group() * a.kv_heads;
  AttentionPlace<T> at{};
  int row = 0;
  if (inside) {
    const std::int64_t head = a.first_task * std::int64_t{a.Group()} + i % heads;
    at.sequence = static_cast<int>(head / group);
    at.head = static_cast<int>(head % group);
    row = static_cast<int>(i / heads);
    inside = !IsServed(a, at.sequence);
  }
  Sum sum = Sum(0);
  if (inside) {
    const auto dout = at.Queries(a, a.dout);
    const auto out = at.Queries(a, a.out);
    for (int column = lane * kAttentionWidth; column < a.head_dim;
         column += kDeltaLanes * kAttentionWidth) {
      const auto x = dout.Load(row, column), y = out.Load(row, column);
#pragma unroll
      for (int k = 0; k < kAttentionWidth; ++k) sum += x.values[k] * y.values[k];
    }
  }
  sum = LaneSum(sum, kDeltaLanes);
  if (inside && lane == 0) *at.Delta(a, row) = sum;
}

template <typename Sizes, typename T>
__global__ void __launch_bounds__(Sizes::kThreads, kAttentionBlocks<Sizes, SumOf<T>>)
    QueryGradientKernel(AttentionOperands<T> a) {
  using Sum = SumOf<T>;
  constexpr int kRows = Sizes::kMyQueries;
  const AttentionBackwardShared<Sizes, Sum> shared(device::cuda::SharedMemory<Sum>(), false);
  // Last queries first: they see the most keys, so their blocks take longest.
  const AttentionPlace<T> at = AttentionPlace<T>::OfQueries(a, static_cast<int>(blockIdx.x));
  if (IsServed(a, at.sequence)) return;
  const AttentionTile queries =
      a.queries.Tile(a.queries.Tiles(Sizes::kQueries) - 1 - at.block, Sizes::kQueries);
  const int first_seen = FirstSeen<Sizes>(a, at.sequence, queries);
  if (!a.whole && a.causal && !a.keys.Reach(queries.Last(), first_seen)) return;
  LoadAttentionRows<Sizes, Sizes::kQueries>(at.Queries(a, a.query), queries.row, queries.count,
                                            shared.queries);
  LoadAttentionRows<Sizes, Sizes::kQueries>(at.Queries(a, a.dout), queries.row, queries.count,
                                            shared.douts);
  AttentionQueryRows<Sizes, Sum> rows;
  rows.Load(a, at, queries, true);
  AttentionSums<Sizes, kRows, Sum> sums;
  ClearAttentionSums<Sizes, kRows>(sums);
  const int key_tiles = a.keys.Tiles(Sizes::kKeys);
  for (int i = 0; i < key_tiles; ++i) {
    const AttentionTile keys = PresentKeys(a, at.sequence, a.keys.Tile(i, Sizes::kKeys));
    if (keys.count == 0 || (a.causal && keys.position > queries.Last())) continue;
    if (Sizes::kDocuments && keys.Last() < first_seen) continue;
    __syncthreads();
    LoadAttentionRows<Sizes, Sizes::kKeys>(at.Keys(a, a.key), keys.row, keys.count, shared.keys);
    LoadAttentionRows<Sizes, Sizes::kKeys>(at.Keys(a, a.value), keys.row, keys.count,
                                           shared.values);
    if (a.threshold > 0) {
      AttentionMask<Sizes::kKeys>::Draw(a, at.sequence, at.head, queries, keys, shared.kept);
    }
    __syncthreads();
    AttentionScoreGradients(a, queries, keys, rows, shared);
    __syncwarp();  // the threads of a row belong to one warp
    AddAttentionProduct<Sizes, kRows>(shared.ds + Sizes::Row() * kRows * Sizes::kScoreRow,
                                      shared.keys + Sizes::Column() * kAttentionWidth, keys.count,
                                      a.head_dim, sums);
  }
  const auto dquery = at.Queries(a, a.dquery);
  const auto exact = at.Exact(a);
  ForEachAttentionSum<Sizes, kRows>(
      sums, a.head_dim, [&](int i, int column, AttentionPack<Sum>& pack) {
        const int row = Sizes::Row() * kRows + i;
        if (row >= queries.count) return;
        if (!a.whole) {
          const auto before = LoadExact(dquery, exact, queries.row + row, column);
#pragma unroll
          for (int k = 0; k < kAttentionWidth; ++k) pack.values[k] += before.values[k];
        }
        dquery.Store(pack, queries.row + row, column);
        if (exact.data != nullptr) exact.Store(pack, queries.row + row, column);
      });
}

// Call it after a.delta has been computed.
template <typename T>
void LaunchAttentionQueryGradient(const device::Stream& stream, const AttentionOperands<T>& a) {
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Sizes = AttentionBackwardSizes<SumOf<T>, decltype(dims)::value>;
    LaunchAttention(stream,
                    a.begins != nullptr ? &QueryGradientKernel<AttentionDocuments<Sizes>, T>
                                        : &QueryGradientKernel<Sizes, T>,
                    std::int64_t{a.tasks} * a.Group() * a.queries.Tiles(Sizes::kQueries),
                    Sizes::kThreads, AttentionBackwardShared<Sizes, SumOf<T>>::Bytes(false), a);
  });
}

// Gradients of keys and values, overwritten. A block has a tile of keys of one key/value head and
// goes through the query heads that read it, in order, and through their queries tile by tile. For
// short sequences, which are one tile, it also computes the gradient of the queries.

// rowsum(dO * O) of this thread's queries; dO is in shared memory.
template <typename Sizes, typename T>
__device__ __forceinline__ void AttentionDelta(const AttentionOperands<T>& a,
                                               const AttentionPlace<T>& at,
                                               const AttentionTile& queries, const SumOf<T>* douts,
                                               SumOf<T> (&delta)[Sizes::kMyQueries]) {
  using Sum = SumOf<T>;
  const auto out = at.Queries(a, a.out);
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    const int row = Sizes::Row() * Sizes::kMyQueries + i;
    Sum sum = Sum(0);
    for (int column = Sizes::Column() * kAttentionWidth; row < queries.count && column < a.head_dim;
         column += Sizes::kStep) {
      const auto x = LoadPack<kAttentionWidth>(douts + row * Sizes::kRow + column);
      const auto y = out.Load(queries.row + row, column);
#pragma unroll
      for (int k = 0; k < kAttentionWidth; ++k) sum += x.values[k] * y.values[k];
    }
    delta[i] = LaneSum(sum, Sizes::kColumnThreads);
  }
}

// Writes dquery of the tile; scale dS and the keys are in shared memory.
template <typename Sizes, typename T>
__device__ __forceinline__ void WriteQueryGradient(
    const AttentionOperands<T>& a, const AttentionPlace<T>& at, const AttentionTile& queries,
    const AttentionTile& keys, const AttentionBackwardShared<Sizes, SumOf<T>>& shared) {
  using Sum = SumOf<T>;
  constexpr int kRows = Sizes::kMyQueries;
  AttentionSums<Sizes, kRows, Sum> sums;
  ClearAttentionSums<Sizes, kRows>(sums);
  AddAttentionProduct<Sizes, kRows>(shared.ds + Sizes::Row() * kRows * Sizes::kScoreRow,
                                    shared.keys + Sizes::Column() * kAttentionWidth, keys.count,
                                    a.head_dim, sums);
  const auto dquery = at.Queries(a, a.dquery);
  ForEachAttentionSum<Sizes, kRows>(sums, a.head_dim,
                                    [&](int i, int column, const AttentionPack<Sum>& pack) {
                                      const int row = Sizes::Row() * kRows + i;
                                      if (row < queries.count)
                                        dquery.Store(pack, queries.row + row, column);
                                    });
}

// kAll: queries and keys are one tile each; it then overwrites dquery too, and ignores a.delta.
template <typename Sizes, typename T, bool kAll>
__global__ void __launch_bounds__(Sizes::kThreads, kAttentionBlocks<Sizes, SumOf<T>>)
    KeyGradientKernel(AttentionOperands<T> a) {
  using Sum = SumOf<T>;
  constexpr int kRows = Sizes::kKeyRows;
  const AttentionBackwardShared<Sizes, Sum> shared(device::cuda::SharedMemory<Sum>(), true);
  // First keys first: most queries see them, so their blocks take longest.
  AttentionPlace<T> at = AttentionPlace<T>::OfKeys(a, static_cast<int>(blockIdx.x));
  if (IsServed(a, at.sequence)) return;
  const AttentionTile tile = a.keys.Tile(at.block, Sizes::kKeys);
  const AttentionTile keys = PresentKeys(a, at.sequence, tile);
  LoadAttentionRows<Sizes, Sizes::kKeys>(at.Keys(a, a.key), keys.row, keys.count, shared.keys);
  LoadAttentionRows<Sizes, Sizes::kKeys>(at.Keys(a, a.value), keys.row, keys.count, shared.values);
  AttentionSums<Sizes, kRows, Sum> dkeys, dvalues;
  ClearAttentionSums<Sizes, kRows>(dkeys);
  ClearAttentionSums<Sizes, kRows>(dvalues);
  const int query_tiles = a.queries.Tiles(Sizes::kQueries), first_column = Sizes::Row() * kRows;
  const int first_dim = Sizes::Column() * kAttentionWidth;
  const bool any = kAll || keys.count > 0;
  for (int i = 0; any && i < a.Group() * query_tiles; ++i) {
    at.head = at.kv_head * a.Group() + i / query_tiles;
    const AttentionTile queries = a.queries.Tile(i % query_tiles, Sizes::kQueries);
    if (a.causal && queries.Last() < keys.position) continue;
    if (FirstSeen<Sizes>(a, at.sequence, queries) > tile.Last()) continue;
    __syncthreads();
    LoadAttentionRows<Sizes, Sizes::kQueries>(at.Queries(a, a.query), queries.row, queries.count,
                                              shared.queries);
    LoadAttentionRows<Sizes, Sizes::kQueries>(at.Queries(a, a.dout), queries.row, queries.count,
                                              shared.douts);
    if (a.threshold > 0) {
      AttentionMask<Sizes::kKeys>::Draw(a, at.sequence, at.head, queries, keys, shared.kept);
    }
    AttentionQueryRows<Sizes, Sum> rows;
    rows.Load(a, at, queries, !kAll);
    __syncthreads();
    if constexpr (kAll) {
      AttentionDelta<Sizes>(a, at, queries, shared.douts, rows.delta);
    }
    AttentionScoreGradients(a, queries, keys, rows, shared);
    __syncthreads();
    AddAttentionTransposed<Sizes, kRows>(shared.weights + first_column, shared.douts + first_dim,
                                         queries.count, a.head_dim, dvalues);
    AddAttentionTransposed<Sizes, kRows>(shared.ds + first_column, shared.queries + first_dim,
                                         queries.count, a.head_dim, dkeys);
    if constexpr (kAll) WriteQueryGradient(a, at, queries, keys, shared);
  }
  const auto store = [&](const AttentionHead<T>& head, AttentionSums<Sizes, kRows, Sum>& sums) {
    ForEachAttentionSum<Sizes, kRows>(sums, a.head_dim,
                                      [&](int i, int column, const AttentionPack<Sum>& pack) {
                                        if (first_column + i < tile.count)
                                          head.Store(pack, keys.row + first_column + i, column);
                                      });
  };
  store(at.Keys(a, a.dkey), dkeys);
  store(at.Keys(a, a.dvalue), dvalues);
}

template <typename Sizes, typename T, bool kAll>
void LaunchKeyGradient(const device::Stream& stream, const AttentionOperands<T>& a) {
  LaunchAttention(stream,
                  a.begins != nullptr ? &KeyGradientKernel<AttentionDocuments<Sizes>, T, kAll>
                                      : &KeyGradientKernel<Sizes, T, kAll>,
                  std::int64_t{a.keys.Tiles(Sizes::kKeys)} * a.tasks, Sizes::kThreads,
                  AttentionBackwardShared<Sizes, SumOf<T>>::Bytes(true), a);
}

}  // namespace

template <typename T>
bool AttentionIsOneTile(const AttentionOperands<T>& a) {
  bool one = false;
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Sizes = AttentionBackwardSizes<SumOf<T>, decltype(dims)::value>;
    one = a.whole && a.queries.Tiles(Sizes::kQueries) <= 1 && a.keys.Tiles(Sizes::kKeys) <= 1;
  });
  return one;
}
template bool AttentionIsOneTile(const AttentionOperands<Bf16>&);

template <typename T>
void LaunchAttentionDelta(const device::Stream& stream, const AttentionOperands<T>& a) {
  constexpr std::int64_t kRows = kDeltaThreads / kDeltaLanes;  // rows per block
  const std::int64_t rows = std::int64_t{a.tasks} * a.Group() * a.queries.Count();
  LaunchAttention(stream, &DeltaKernel<T>, CeilDivide(rows, kRows), kDeltaThreads, 0, a);
}
template void LaunchAttentionDelta(const device::Stream&, const AttentionOperands<Bf16>&);

template <typename T>
void LaunchAttentionBackward(const device::Stream& stream, const AttentionOperands<T>& a) {
  const bool one = AttentionIsOneTile(a);
  if (!one) {
    LaunchAttentionDelta(stream, a);
    LaunchAttentionQueryGradient(stream, a);
  }
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Sizes = AttentionBackwardSizes<SumOf<T>, decltype(dims)::value>;
    if (one) {
      LaunchKeyGradient<Sizes, T, true>(stream, a);
    } else {
      LaunchKeyGradient<Sizes, T, false>(stream, a);
    }
  });
}
template void LaunchAttentionBackward(const device::Stream&, const AttentionOperands<float>&);
template void LaunchAttentionBackward(const device::Stream&, const AttentionOperands<double>&);
template void LaunchAttentionBackward(const device::Stream&, const AttentionOperands<Bf16>&);

// Copies attention's log-sum-exp between our layout and cuDNN's. Overwrites the destination.

namespace {

constexpr int kLseThreads = 256;

// lse: rows are `stride` elements apart, sequences `sequence_rows` rows apart. packed: [sequences,
// heads, rows].
template <bool kPack>
__global__ void __launch_bounds__(kLseThreads)
    LseKernel(float* lse, std::int64_t stride, float* packed, std::int64_t elements, int heads,
              int rows, std::int64_t sequence_rows) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kLseThreads + threadIdx.x;
  if (i >= elements) return;
  const std::int64_t position = i % rows, head = i / rows % heads;
  const std::int64_t row = i / rows / heads * sequence_rows + position;
  if constexpr (kPack) {
    packed[i] = lse[row * stride + head];
  } else {
    lse[row * stride + head] = packed[i];
  }
}

template <bool kPack>
void Move(const device::Stream& stream, const AttentionWindow& window, const Matrix& lse,
          float* packed) {
  const std::int64_t elements = window.sequences * window.rows * window.heads;
  if (elements == 0) return;
  device::cuda::Launch(device::cuda::Queue(stream), &LseKernel<kPack>,
                       dim3(static_cast<unsigned>(CeilDivide(elements, kLseThreads))),
                       dim3(kLseThreads), 0, lse.As<float>(), lse.stride, packed, elements,
                       static_cast<int>(window.heads), static_cast<int>(window.rows),
                       window.sequence_rows);
}

}  // namespace

void PackLse(const device::Stream& stream, const AttentionWindow& window, const Matrix& lse,
             float* packed) {
  Move<true>(stream, window, lse, packed);
}

void UnpackLse(const device::Stream& stream, const AttentionWindow& window, const float* packed,
               const Matrix& lse) {
  // With kPack = false the kernel only reads `packed`.
  Move<false>(stream, window, lse, const_cast<float*>(packed));
}

}  // namespace trireme::kernels::cuda
