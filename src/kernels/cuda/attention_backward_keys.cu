// Attention's gradients of keys and values, overwritten: a block has a tile of keys of one
// key/value head and goes through the query heads that read it, in order, and their queries tile by
// tile. For short sequences, which are one tile, also the gradient of the queries.
#include "attention_backward.cuh"

namespace trireme::kernels::cuda {

namespace {

// rowsum(dO * O) of this thread's queries; dO lies in shared memory.
template <typename Sizes, typename T>
__device__ __forceinline__ void AttentionInner(const AttentionOperands<T>& a,
                                               const AttentionPlace<T>& at,
                                               const AttentionTile& queries, const SumOf<T>* douts,
                                               SumOf<T> (&inner)[Sizes::kMyQueries]) {
  using Sum = SumOf<T>;
  const auto out = at.Out(a);
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
    inner[i] = LaneSum(sum, Sizes::kColumnThreads);
  }
}

// dquery of the tile: slopes and keys lie in shared memory.
template <typename Sizes, typename T>
__device__ __forceinline__ void WriteQueryGradient(
    const AttentionOperands<T>& a, const AttentionPlace<T>& at, const AttentionTile& queries,
    const AttentionTile& keys, const AttentionBackwardShared<Sizes, SumOf<T>>& shared) {
  using Sum = SumOf<T>;
  constexpr int kRows = Sizes::kMyQueries;
  AttentionSums<Sizes, kRows, Sum> sums;
  ClearAttentionSums<Sizes, kRows>(sums);
  AddAttentionProduct<Sizes, kRows>(shared.slopes + Sizes::Row() * kRows * Sizes::kScoreRow,
                                    shared.keys + Sizes::Column() * kAttentionWidth, keys.count,
                                    a.head_dim, sums);
  const auto dquery = at.Dquery(a);
  ForEachAttentionSum<Sizes, kRows>(sums, a.head_dim,
                                    [&](int i, int column, const AttentionPack<Sum>& pack) {
                                      const int row = Sizes::Row() * kRows + i;
                                      if (row < queries.count)
                                        dquery.Store(pack, queries.row + row, column);
                                    });
}

// kAll: queries and keys are one tile each; dquery is overwritten, a.inner is not read.
template <typename Sizes, typename T, bool kAll>
__global__ void __launch_bounds__(Sizes::kThreads, kAttentionBlocks<Sizes, SumOf<T>>)
    KeyGradientKernel(AttentionOperands<T> a) {
  using Sum = SumOf<T>;
  constexpr int kRows = Sizes::kKeyRows;
  const AttentionBackwardShared<Sizes, Sum> shared(device::cuda::SharedMemory<Sum>(), true);
  // The first keys first: the most queries see them.
  AttentionPlace<T> at = AttentionPlace<T>::OfKeys(a, static_cast<int>(blockIdx.x));
  if (IsServed(a, at.sequence)) return;
  const AttentionTile tile = a.keys.Tile(at.block, Sizes::kKeys);
  const AttentionTile keys = PresentKeys(a, at.sequence, tile);
  LoadAttentionRows<Sizes, Sizes::kKeys>(at.Key(a), keys.row, keys.count, shared.keys);
  LoadAttentionRows<Sizes, Sizes::kKeys>(at.Value(a), keys.row, keys.count, shared.values);
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
    LoadAttentionRows<Sizes, Sizes::kQueries>(at.Query(a), queries.row, queries.count,
                                              shared.queries);
    LoadAttentionRows<Sizes, Sizes::kQueries>(at.Dout(a), queries.row, queries.count, shared.douts);
    if (a.threshold > 0) {
      AttentionMask<Sizes::kKeys>::Draw(a, at.sequence, at.head, queries, keys, shared.kept);
    }
    AttentionStatistics<Sizes, Sum> statistics;
    statistics.Load(a, at, queries, !kAll);
    __syncthreads();
    if constexpr (kAll) {
      AttentionInner<Sizes>(a, at, queries, shared.douts, statistics.inner);
    }
    AttentionSlopes(a, queries, keys, statistics, shared);
    __syncthreads();
    AddAttentionTransposed<Sizes, kRows>(shared.weights + first_column, shared.douts + first_dim,
                                         queries.count, a.head_dim, dvalues);
    AddAttentionTransposed<Sizes, kRows>(shared.slopes + first_column, shared.queries + first_dim,
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
  store(at.Dkey(a), dkeys);
  store(at.Dvalue(a), dvalues);
}

template <typename Sizes, typename T, bool kAll>
void LaunchKeyGradient(cudaStream_t queue, const AttentionOperands<T>& a) {
  const std::int64_t blocks = std::int64_t{a.keys.Tiles(Sizes::kKeys)} * a.tasks;
  if (blocks == 0) return;
  device::cuda::Launch(queue,
                       a.begins != nullptr ? &KeyGradientKernel<AttentionDocuments<Sizes>, T, kAll>
                                           : &KeyGradientKernel<Sizes, T, kAll>,
                       dim3(static_cast<unsigned>(blocks)), dim3(Sizes::kThreads),
                       AttentionBackwardShared<Sizes, SumOf<T>>::Bytes(true), a);
}

}  // namespace

template <typename T>
int AttentionBackwardBytes(int head_dim) {
  int bytes = 0;
  WithAttentionDims(head_dim, [&](auto dims) {
    using Sum = SumOf<T>;
    using Sizes = AttentionBackwardSizes<Sum, decltype(dims)::value>;
    bytes = AttentionBackwardShared<Sizes, Sum>::Bytes(true);
  });
  return bytes;
}
template int AttentionBackwardBytes<float>(int);
template int AttentionBackwardBytes<double>(int);
template int AttentionBackwardBytes<Bf16>(int);

template <typename T>
bool AttentionIsOneTile(const AttentionOperands<T>& a) {
  bool one = false;
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Sizes = AttentionBackwardSizes<SumOf<T>, decltype(dims)::value>;
    one = a.whole && a.queries.Tiles(Sizes::kQueries) <= 1 && a.keys.Tiles(Sizes::kKeys) <= 1;
  });
  return one;
}
template bool AttentionIsOneTile(const AttentionOperands<float>&);
template bool AttentionIsOneTile(const AttentionOperands<double>&);
template bool AttentionIsOneTile(const AttentionOperands<Bf16>&);

template <typename T>
void LaunchAttentionBackward(cudaStream_t queue, const AttentionOperands<T>& a) {
  const bool one = AttentionIsOneTile(a);
  if (!one) {
    LaunchAttentionInner(queue, a);
    LaunchAttentionQueryGradient(queue, a);
  }
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Sizes = AttentionBackwardSizes<SumOf<T>, decltype(dims)::value>;
    if (one) {
      LaunchKeyGradient<Sizes, T, true>(queue, a);
    } else {
      LaunchKeyGradient<Sizes, T, false>(queue, a);
    }
  });
}
template void LaunchAttentionBackward(cudaStream_t, const AttentionOperands<float>&);
template void LaunchAttentionBackward(cudaStream_t, const AttentionOperands<double>&);
template void LaunchAttentionBackward(cudaStream_t, const AttentionOperands<Bf16>&);

}  // namespace trireme::kernels::cuda
