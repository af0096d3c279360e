// Attention's forward pass (Dao 2023, "FlashAttention-2"). A block has a tile of queries of one
// head and goes through keys and values tile by tile; scores exist for one tile at a time, in
// registers and shared memory. For whole sequences it overwrites out and lse, for parts it merges
// into them.
#include "attention_kernels.cuh"

namespace trireme::kernels::cuda {

namespace {

// Shared memory of a block.
template <typename Sizes, typename Sum>
struct ForwardShared {
  using Mask = AttentionMask<Sizes::kKeys>;
  Sum* queries;         // [kQueries, kRow]
  Sum* keys;            // [kKeys, kRow]
  Sum* values;          // [kKeys, kRow]
  Sum* weights;         // [kQueries, kScoreRow]
  unsigned char* kept;  // [kQueries, Mask::kRow]

  static constexpr int kElements =
      (Sizes::kQueries + 2 * Sizes::kKeys) * Sizes::kRow + Sizes::kQueries * Sizes::kScoreRow;
  static constexpr int Bytes() {
    return kElements * static_cast<int>(sizeof(Sum)) + Sizes::kQueries * Mask::kRow;
  }

  __device__ explicit ForwardShared(Sum* memory)
      : queries(memory),
        keys(queries + Sizes::kQueries * Sizes::kRow),
        values(keys + Sizes::kKeys * Sizes::kRow),
        weights(values + Sizes::kKeys * Sizes::kRow),
        kept(reinterpret_cast<unsigned char*>(memory + kElements)) {}
};

// State of a thread's queries: running maxima (as exponents of 2, the same in all threads of a
// row), and relative to them this thread's share of the sums and its columns of the outputs.
template <typename Sizes, typename Sum>
struct ForwardState {
  Sum top[Sizes::kMyQueries], sum[Sizes::kMyQueries];
  AttentionBegins<Sizes> begins;
  AttentionSums<Sizes, Sizes::kMyQueries, Sum> out;

  __device__ ForwardState() {
#pragma unroll
    for (int i = 0; i < Sizes::kMyQueries; ++i) {
      top[i] = std::numeric_limits<Sum>::lowest();
      sum[i] = Sum(0);
    }
    ClearAttentionSums<Sizes, Sizes::kMyQueries>(out);
  }
};

// Continues from earlier blocks of keys: their out is normalised, so the sum is 1.
template <typename Sizes, typename T>
__device__ void ResumeForward(const AttentionOperands<T>& a, const AttentionPlace<T>& at,
                              const AttentionTile& tile, ForwardState<Sizes, SumOf<T>>& state) {
  using Sum = SumOf<T>;
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    const int row = Sizes::Row() * Sizes::kMyQueries + i;
    if (row >= tile.count) continue;
    const Sum lse = *at.Lse(a, tile.row + row);
    if (lse == -std::numeric_limits<Sum>::infinity()) continue;
    state.top[i] = lse * static_cast<Sum>(kAttentionLog2E);
    state.sum[i] = Sizes::Column() == 0 ? Sum(1) : Sum(0);
#pragma unroll
    for (int j = 0; j < Sizes::kPieces; ++j) {
      const int column = Sizes::Column() * kAttentionWidth + j * Sizes::kStep;
      if (column < a.head_dim) {
        state.out[i][j] = LoadExact(at.Queries(a, a.out), at.Exact(a), tile.row + row, column);
      }
    }
  }
}

// Turns this thread's scores into exponents of 2 and raises state.top to include them. shrunk: the
// factors by which the sums and outputs in `state` must be multiplied.
template <typename Sizes, typename T>
__device__ __forceinline__ void RaiseTops(const AttentionOperands<T>& a,
                                          const AttentionTile& queries, const AttentionTile& keys,
                                          SumOf<T> (&score)[Sizes::kMyQueries][Sizes::kMyKeys],
                                          ForwardState<Sizes, SumOf<T>>& state,
                                          SumOf<T> (&shrunk)[Sizes::kMyQueries]) {
  using Sum = SumOf<T>;
  const Sum exponents = a.scale * static_cast<Sum>(kAttentionLog2E);
  Sum top[Sizes::kMyQueries];
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    const int row = Sizes::Row() * Sizes::kMyQueries + i;
    const int visible = AttentionVisible(a, queries.position + row, keys);
    top[i] = state.top[i];
#pragma unroll
    for (int j = 0; j < Sizes::kMyKeys; ++j) {
      const int column = Sizes::Column() + j * Sizes::kColumnThreads;
      const bool seen = column < visible && state.begins.Allow(i, keys, column);
      score[i][j] = seen ? score[i][j] * exponents : -std::numeric_limits<Sum>::infinity();
      top[i] = MaxOfTwo()(top[i], score[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    top[i] = LaneReduce<MaxOfTwo>(top[i], Sizes::kColumnThreads);
    shrunk[i] = exp2(state.top[i] - top[i]);
    state.top[i] = top[i];
  }
}

// Turns this thread's scores into weights relative to the new maxima, in shared memory, and
// rescales the sums and outputs in `state`.
template <typename Sizes, typename T>
__device__ __forceinline__ void AttentionSoftmax(
    const AttentionOperands<T>& a, const AttentionTile& queries, const AttentionTile& keys,
    const ForwardShared<Sizes, SumOf<T>>& shared,
    SumOf<T> (&score)[Sizes::kMyQueries][Sizes::kMyKeys], ForwardState<Sizes, SumOf<T>>& state) {
  using Sum = SumOf<T>;
  Sum shrunk[Sizes::kMyQueries];
  RaiseTops(a, queries, keys, score, state, shrunk);
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    const int row = Sizes::Row() * Sizes::kMyQueries + i;
    state.sum[i] *= shrunk[i];
#pragma unroll
    for (int j = 0; j < Sizes::kMyKeys; ++j) {
      const int column = Sizes::Column() + j * Sizes::kColumnThreads;
      Sum weight = exp2(score[i][j] - state.top[i]);
      state.sum[i] += weight;
      // For keys that are not seen the weight is 0, whatever the mask says.
      if (a.threshold > 0 && column < keys.count) {
        using Mask = typename ForwardShared<Sizes, Sum>::Mask;
        weight = Mask::Kept(shared.kept, row, keys, column) ? weight * a.kept_scale : Sum(0);
      }
      shared.weights[row * Sizes::kScoreRow + column] = weight;
    }
#pragma unroll
    for (int j = 0; j < Sizes::kPieces; ++j) {
#pragma unroll
      for (int k = 0; k < kAttentionWidth; ++k) state.out[i][j].values[k] *= shrunk[i];
    }
  }
}

template <typename Sizes, typename T>
__device__ void FinishForward(const AttentionOperands<T>& a, const AttentionPlace<T>& at,
                              const AttentionTile& tile, ForwardState<Sizes, SumOf<T>>& state) {
  using Sum = SumOf<T>;
  bool mine[Sizes::kMyQueries];
#pragma unroll
  for (int i = 0; i < Sizes::kMyQueries; ++i) {
    const int row = Sizes::Row() * Sizes::kMyQueries + i;
    const Sum sum = LaneSum(state.sum[i], Sizes::kColumnThreads);
    mine[i] = row < tile.count;
    // Without keys (sum 0) the output is 0. A NaN stays NaN.
    const Sum inverse = sum == Sum(0) ? Sum(0) : Sum(1) / sum;
    if (mine[i] && Sizes::Column() == 0) {
      *at.Lse(a, tile.row + row) = sum == Sum(0)
                                       ? -std::numeric_limits<Sum>::infinity()
                                       : state.top[i] * static_cast<Sum>(kAttentionLn2) + log(sum);
    }
#pragma unroll
    for (int j = 0; j < Sizes::kPieces; ++j) {
#pragma unroll
      for (int k = 0; k < kAttentionWidth; ++k) state.out[i][j].values[k] *= inverse;
    }
  }
  const auto out = at.Queries(a, a.out);
  const auto exact = at.Exact(a);
  ForEachAttentionSum<Sizes, Sizes::kMyQueries>(
      state.out, a.head_dim, [&](int i, int column, const AttentionPack<Sum>& pack) {
        if (!mine[i]) return;
        const int row = tile.row + Sizes::Row() * Sizes::kMyQueries + i;
        out.Store(pack, row, column);
        if (exact.data != nullptr) exact.Store(pack, row, column);
      });
}

template <typename Sizes, typename T>
__global__ void __launch_bounds__(Sizes::kThreads, kAttentionBlocks<Sizes, SumOf<T>>)
    ForwardKernel(AttentionOperands<T> a) {
  using Sum = SumOf<T>;
  const ForwardShared<Sizes, Sum> shared(device::cuda::SharedMemory<Sum>());
  // Last queries first: they see the most keys, so their blocks take longest.
  const AttentionPlace<T> at = AttentionPlace<T>::OfQueries(a, static_cast<int>(blockIdx.x));
  if (IsServed(a, at.sequence)) return;
  const AttentionTile queries =
      a.queries.Tile(a.queries.Tiles(Sizes::kQueries) - 1 - at.block, Sizes::kQueries);
  const int first_seen = FirstSeen<Sizes>(a, at.sequence, queries);
  if (!a.whole && a.causal && !a.keys.Reach(queries.Last(), first_seen)) return;
  LoadAttentionRows<Sizes, Sizes::kQueries>(at.Queries(a, a.query), queries.row, queries.count,
                                            shared.queries);
  ForwardState<Sizes, Sum> state;
  state.begins.Load(a, at.sequence, queries);
  if (!a.whole) ResumeForward<Sizes>(a, at, queries, state);
  const int dims = RoundUpDims(a.head_dim);
  const int first_row = Sizes::Row() * Sizes::kMyQueries;
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
    Sum score[Sizes::kMyQueries][Sizes::kMyKeys] = {};
    AddAttentionDots(shared.queries + first_row * Sizes::kRow, Sizes::kRow,
                     shared.keys + Sizes::Column() * Sizes::kRow,
                     Sizes::kColumnThreads * Sizes::kRow, dims, score);
    AttentionSoftmax(a, queries, keys, shared, score, state);
    __syncwarp();  // the threads of a row belong to one warp
    AddAttentionProduct<Sizes, Sizes::kMyQueries>(shared.weights + first_row * Sizes::kScoreRow,
                                                  shared.values + Sizes::Column() * kAttentionWidth,
                                                  keys.count, a.head_dim, state.out);
  }
  FinishForward<Sizes>(a, at, queries, state);
}

// Tile sizes for each head_dim, limited by shared memory.
template <typename Sum, int kDims>
struct ForwardSizes;
template <typename Sum>
struct ForwardSizes<Sum, 32> : AttentionSizes<8, 8, 4, 4, 32> {};
template <typename Sum>
struct ForwardSizes<Sum, 64> : AttentionSizes<16, 16, 4, 4, 64> {};
template <typename Sum>
struct ForwardSizes<Sum, 128> : AttentionSizes<16, 16, 4, 2, 128> {};
template <>
struct ForwardSizes<float, 256> : AttentionSizes<8, 16, 4, 2, 256> {};
template <>
struct ForwardSizes<double, 256> : AttentionSizes<8, 16, 4, 1, 256> {};

}  // namespace

template <typename T>
void LaunchAttentionForward(const device::Stream& stream, const AttentionOperands<T>& a) {
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Sizes = ForwardSizes<SumOf<T>, decltype(dims)::value>;
    LaunchAttention(stream,
                    a.begins != nullptr ? &ForwardKernel<AttentionDocuments<Sizes>, T>
                                        : &ForwardKernel<Sizes, T>,
                    std::int64_t{a.queries.Tiles(Sizes::kQueries)} * a.tasks * a.Group(),
                    Sizes::kThreads, ForwardShared<Sizes, SumOf<T>>::Bytes(), a);
  });
}
template void LaunchAttentionForward(const device::Stream&, const AttentionOperands<float>&);
template void LaunchAttentionForward(const device::Stream&, const AttentionOperands<double>&);
template void LaunchAttentionForward(const device::Stream&, const AttentionOperands<Bf16>&);

}  // namespace trireme::kernels::cuda
