// Attention's gradient of the queries, after inner = rowsum(dO * O): a block has a tile of queries
// and goes through the keys tile by tile. For whole sequences dquery is overwritten, for parts it
// is added to.
#include "attention_backward.cuh"

namespace trireme::kernels::cuda {

namespace {

constexpr int kInnerThreads = 128, kInnerLanes = 8;  // lanes that share a row of a head

// a.inner of all query heads of the tasks.
template <typename T>
__global__ void __launch_bounds__(kInnerThreads) InnerKernel(AttentionOperands<T> a) {
  using Sum = SumOf<T>;
  const int heads = a.tasks * a.Group(), lane = static_cast<int>(threadIdx.x) % kInnerLanes;
  const std::int64_t i = std::int64_t{blockIdx.x} * (kInnerThreads / kInnerLanes) +
                         static_cast<int>(threadIdx.x) / kInnerLanes;
  // Neighbouring heads of one row first: they lie side by side. Lanes beyond the end meet the
  // others, and write nothing.
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
    const auto dout = at.Dout(a);
    const auto out = at.Out(a);
    for (int column = lane * kAttentionWidth; column < a.head_dim;
         column += kInnerLanes * kAttentionWidth) {
      const auto x = dout.Load(row, column), y = out.Load(row, column);
#pragma unroll
      for (int k = 0; k < kAttentionWidth; ++k) sum += x.values[k] * y.values[k];
    }
  }
  sum = LaneSum(sum, kInnerLanes);
  if (inside && lane == 0) *at.Inner(a, row) = sum;
}

template <typename Sizes, typename T>
__global__ void __launch_bounds__(Sizes::kThreads, kAttentionBlocks<Sizes, SumOf<T>>)
    QueryGradientKernel(AttentionOperands<T> a) {
  using Sum = SumOf<T>;
  constexpr int kRows = Sizes::kMyQueries;
  const AttentionBackwardShared<Sizes, Sum> shared(device::cuda::SharedMemory<Sum>(), false);
  // The last queries first: they see the most keys.
  const AttentionPlace<T> at = AttentionPlace<T>::OfQueries(a, static_cast<int>(blockIdx.x));
  if (IsServed(a, at.sequence)) return;
  const AttentionTile queries =
      a.queries.Tile(a.queries.Tiles(Sizes::kQueries) - 1 - at.block, Sizes::kQueries);
  const int first_seen = FirstSeen<Sizes>(a, at.sequence, queries);
  if (!a.whole && a.causal && !a.keys.Reach(queries.Last(), first_seen)) return;
  LoadAttentionRows<Sizes, Sizes::kQueries>(at.Query(a), queries.row, queries.count,
                                            shared.queries);
  LoadAttentionRows<Sizes, Sizes::kQueries>(at.Dout(a), queries.row, queries.count, shared.douts);
  AttentionStatistics<Sizes, Sum> statistics;
  statistics.Load(a, at, queries, true);
  AttentionSums<Sizes, kRows, Sum> sums;
  ClearAttentionSums<Sizes, kRows>(sums);
  const int key_tiles = a.keys.Tiles(Sizes::kKeys);
  for (int i = 0; i < key_tiles; ++i) {
    const AttentionTile keys = PresentKeys(a, at.sequence, a.keys.Tile(i, Sizes::kKeys));
    if (keys.count == 0 || (a.causal && keys.position > queries.Last())) continue;
    if (Sizes::kDocuments && keys.Last() < first_seen) continue;
    __syncthreads();
    LoadAttentionRows<Sizes, Sizes::kKeys>(at.Key(a), keys.row, keys.count, shared.keys);
    LoadAttentionRows<Sizes, Sizes::kKeys>(at.Value(a), keys.row, keys.count, shared.values);
    if (a.threshold > 0) {
      AttentionMask<Sizes::kKeys>::Draw(a, at.sequence, at.head, queries, keys, shared.kept);
    }
    __syncthreads();
    AttentionSlopes(a, queries, keys, statistics, shared);
    __syncwarp();  // the threads of a row are of one warp
    AddAttentionProduct<Sizes, kRows>(shared.slopes + Sizes::Row() * kRows * Sizes::kScoreRow,
                                      shared.keys + Sizes::Column() * kAttentionWidth, keys.count,
                                      a.head_dim, sums);
  }
  const auto dquery = at.Dquery(a);
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

}  // namespace

template <typename T>
void LaunchAttentionInner(cudaStream_t queue, const AttentionOperands<T>& a) {
  const std::int64_t rows = std::int64_t{a.tasks} * a.Group() * a.queries.Count();
  if (rows == 0) return;
  const std::int64_t blocks =
      (rows + kInnerThreads / kInnerLanes - 1) / (kInnerThreads / kInnerLanes);
  device::cuda::Launch(queue, &InnerKernel<T>, dim3(static_cast<unsigned>(blocks)),
                       dim3(kInnerThreads), 0, a);
}
template void LaunchAttentionInner(cudaStream_t, const AttentionOperands<float>&);
template void LaunchAttentionInner(cudaStream_t, const AttentionOperands<double>&);
template void LaunchAttentionInner(cudaStream_t, const AttentionOperands<Bf16>&);

template <typename T>
void LaunchAttentionQueryGradient(cudaStream_t queue, const AttentionOperands<T>& a) {
  const std::int64_t heads = std::int64_t{a.tasks} * a.Group();
  if (heads * a.queries.Count() == 0) return;
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Sizes = AttentionBackwardSizes<SumOf<T>, decltype(dims)::value>;
    const std::int64_t blocks = heads * a.queries.Tiles(Sizes::kQueries);
    device::cuda::Launch(queue,
                         a.begins != nullptr ? &QueryGradientKernel<AttentionDocuments<Sizes>, T>
                                             : &QueryGradientKernel<Sizes, T>,
                         dim3(static_cast<unsigned>(blocks)), dim3(Sizes::kThreads),
                         AttentionBackwardShared<Sizes, SumOf<T>>::Bytes(false), a);
  });
}
template void LaunchAttentionQueryGradient(cudaStream_t, const AttentionOperands<float>&);
template void LaunchAttentionQueryGradient(cudaStream_t, const AttentionOperands<double>&);
template void LaunchAttentionQueryGradient(cudaStream_t, const AttentionOperands<Bf16>&);

}  // namespace trireme::kernels::cuda
