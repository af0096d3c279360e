// Gradient of the queries on tensor cores (equations: attention_backward.cu). A warp has 16 queries
// and goes through keys and values tile by tile; the next tile is loaded while one is computed. For
// whole sequences it overwrites dquery, for parts it adds.
#include "matrix_operands.cuh"

namespace trireme::kernels::cuda {

namespace {

// kOutDims: dims of the gradient that one block computes; for wider heads several blocks are used.
template <int kDims_, int kKeys_, int kOutDims_, int kBlocks_>
struct QueryShape {
  static constexpr int kDims = kDims_, kKeys = kKeys_, kOutDims = kOutDims_, kBlocks = kBlocks_;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarpLanes;
  static constexpr int kQueries = kWarps * kMatrixRows, kParts = kDims / kOutDims;
  static constexpr int kColumns = kKeys / kMatrixColumns, kOut = kOutDims / kMatrixColumns;
  static constexpr bool kKept = kDims <= 128;  // keep queries and dO in registers
  using Tile = MatrixTile<kDims>;
  static constexpr int kStages = 2;
  // Shared memory: queries and dO, then keys and values of each stage.
  static constexpr int kQueryBytes = 2 * Tile::Bytes(kQueries);
  static constexpr int kBytes = kQueryBytes + kStages * 2 * Tile::Bytes(kKeys);
};

// What a lane holds about its rows g and g + 8.
struct QueryRows {
  float lse[2], delta[2];  // lse: base 2, infinity if there is no query or it sees nothing
  int low[2], high[2];     // [low, high): positions that are seen

  __device__ __forceinline__ void Load(const AttentionOperands<Bf16>& a,
                                       const AttentionPlace<Bf16>& at, const AttentionTile& queries,
                                       int first) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + MatrixRow() + 8 * half;
      const bool present = row < queries.count;
      lse[half] = kInfinity, delta[half] = 0, low[half] = 0, high[half] = 0;
      if (!present) continue;
      const float stored = *at.Lse(a, queries.row + row);
      if (stored != -kInfinity) lse[half] = stored * static_cast<float>(kAttentionLog2E);
      delta[half] = *at.Delta(a, queries.row + row);
      low[half] = BeginOf(a, at.sequence, queries.row + row);
      high[half] = a.causal ? queries.position + row + 1 : std::numeric_limits<int>::max();
    }
  }
};

// Makes the weights of keys that are not seen 0.
template <typename Shape>
__device__ __forceinline__ void HideFromRows(const MatrixKeys& keys, const QueryRows& rows,
                                             MatrixSums<Shape::kColumns>& scores,
                                             MatrixSums<Shape::kColumns>& ds) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int low = max(keys.first, rows.low[half] - keys.position);
    const int high = min(keys.count, rows.high[half] - keys.position);
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) {
#pragma unroll
      for (int k = 2 * half; k < 2 * half + 2; ++k) {
        const int column = j * kMatrixColumns + MatrixColumn() + k % 2;
        if (column >= low && column < high) continue;
        scores[j][k] = -std::numeric_limits<float>::infinity();
        ds[j][k] = 0;
      }
    }
  }
}

template <typename Shape>
__device__ void StoreQueryGradient(const AttentionOperands<Bf16>& a, const AttentionPlace<Bf16>& at,
                                   const AttentionTile& queries, int first, int first_dim,
                                   const MatrixTile<Shape::kOutDims>& tile,
                                   MatrixSums<Shape::kOut>& sums) {
  const auto dquery = at.Queries(a, a.dquery);
  const auto exact = at.Exact(a);
#pragma unroll
  for (int j = 0; j < Shape::kOut; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const pair = &sums[j][2 * half];
      pair[0] *= a.scale, pair[1] *= a.scale;
      const int row = first + MatrixRow() + 8 * half;
      const int column = first_dim + j * kMatrixColumns + MatrixColumn();
      if (a.whole || row >= queries.count || column >= a.head_dim) continue;
      const float2 before = LoadExactPair(exact, queries.row + row, column);
      pair[0] += before.x, pair[1] += before.y;
      StoreExactPair(exact, queries.row + row, column, pair[0], pair[1]);
    }
  }
  StoreMatrixSums<Shape::kOutDims>(sums, tile, first, dquery, queries.row + first, 0,
                                   queries.count - first, first_dim);
}

// A block's place, its tiles in shared memory, and the queries of this warp.
template <typename Shape>
struct QueryBlock {
  using Tile = typename Shape::Tile;
  const AttentionOperands<Bf16>& a;
  AttentionPlace<Bf16> at;
  AttentionTile queries;
  MatrixKeyWalk<Shape::kKeys> walk;
  Tile query_tile, dout_tile;
  int first, last_begin;  // warp's first query, in the tile; where its last query's document begins

  // Last queries first: they see the most keys, so their blocks take longest.
  __device__ explicit QueryBlock(const AttentionOperands<Bf16>& operands)
      : a(operands),
        at(AttentionPlace<Bf16>::OfQueries(a, static_cast<int>(blockIdx.x) / Shape::kParts)),
        queries(a.queries.Tile(a.queries.Tiles(Shape::kQueries) - 1 - at.block, Shape::kQueries)),
        walk(a, at.sequence, queries),
        query_tile{device::cuda::SharedMemory<Bf16>()},
        dout_tile{query_tile.At(Shape::kQueries, 0)},
        first(MatrixWarp() * kMatrixRows),
        last_begin(LastBegin(a, at.sequence, queries, first, kMatrixRows)) {}

  __device__ __forceinline__ Tile KeyTile(int stage) const {
    return {dout_tile.At(Shape::kQueries, 0) + stage * 2 * Shape::kKeys * Shape::kDims};
  }
  __device__ __forceinline__ Tile ValueTile(int stage) const {
    return {KeyTile(stage).data + Shape::kKeys * Shape::kDims};
  }
  __device__ __forceinline__ void CopyKeys(int stage, int i) const {
    if (i < walk.tiles) {
      const MatrixKeys keys = walk.Tile(i);
      KeyTile(stage).template Copy<Shape::kKeys, Shape::kThreads>(at.Keys(a, a.key), keys.row,
                                                                  keys.first, keys.count);
      ValueTile(stage).template Copy<Shape::kKeys, Shape::kThreads>(at.Keys(a, a.value), keys.row,
                                                                    keys.first, keys.count);
    }
    device::cuda::CommitCopies();
  }
  __device__ __forceinline__ void CopyQueries() const {
    query_tile.template Copy<Shape::kQueries, Shape::kThreads>(at.Queries(a, a.query), queries.row,
                                                               0, queries.count);
    dout_tile.template Copy<Shape::kQueries, Shape::kThreads>(at.Queries(a, a.dout), queries.row, 0,
                                                              queries.count);
  }

  // Given the scores S of a tile and the warp's queries, turns dP = dO V^T (in `ds`) into dS /
  // scale.
  template <bool kDropout>
  __device__ __forceinline__ void ScoreGradients(const MatrixKeys& keys, const QueryRows& rows,
                                                 MatrixSums<Shape::kColumns>& scores,
                                                 MatrixSums<Shape::kColumns>& ds) const {
    const int query = queries.position + first;
    if (!AllSeen<Shape::kKeys>(a, keys, query, last_begin)) {
      HideFromRows<Shape>(keys, rows, scores, ds);
    }
    const float exponents = a.scale * static_cast<float>(kAttentionLog2E);
    [[maybe_unused]] MatrixRowMasks<Shape::kKeys> masks;
    if constexpr (kDropout)
      masks.Draw(MatrixDropout(a, at.sequence, at.head), query, keys.position);
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float weight =
            device::cuda::FastExp2(fmaf(scores[j][k], exponents, -rows.lse[k / 2]));
        float dp = ds[j][k];
        if constexpr (kDropout) dp = masks.Kept(j, k) ? dp * a.kept_scale : 0.0F;
        ds[j][k] = weight * (dp - rows.delta[k / 2]);
      }
    }
  }
};

template <typename Shape, bool kDropout>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    MatrixQueryGradientKernel(AttentionOperands<Bf16> a) {
  const QueryBlock<Shape> block(a);
  if (IsServed(a, block.at.sequence) || block.walk.SeesNothing()) return;
  const int steps = MatrixSteps(a.head_dim);
  const int first_dim = static_cast<int>(blockIdx.x) % Shape::kParts * Shape::kOutDims;
  block.CopyQueries();
  int i = block.walk.Next(0), stage = 0;
  block.CopyKeys(stage, i);
  QueryRows rows;
  rows.Load(a, block.at, block.queries, block.first);
  MatrixSums<Shape::kOut> sums[1];
  ClearMatrixSums<1>(sums);
  MatrixLeft<Shape::kDims, Shape::kKept> left[1], left_dout[1];
  device::cuda::WaitForCopies<0>();
  __syncthreads();
  left[0].Load(block.query_tile, block.first, steps);
  left_dout[0].Load(block.dout_tile, block.first, steps);
  while (i < block.walk.tiles) {
    const MatrixKeys keys = block.walk.Tile(i);
    i = block.walk.Next(i + 1);
    block.CopyKeys(stage ^ 1, i);
    MatrixSums<Shape::kColumns> scores[1], ds[1];
    ClearMatrixSums<1>(scores);
    ClearMatrixSums<1>(ds);
    AddMatrixDots<Shape::kDims, Shape::kKept, 1, Shape::kColumns>(left, block.KeyTile(stage), 0,
                                                                  steps, scores);
    AddMatrixDots<Shape::kDims, Shape::kKept, 1, Shape::kColumns>(left_dout, block.ValueTile(stage),
                                                                  0, steps, ds);
    block.template ScoreGradients<kDropout>(keys, rows, scores[0], ds[0]);
    AddMatrixProduct<Shape::kDims, 1, Shape::kColumns, Shape::kOut>(
        ds, block.KeyTile(stage), first_dim / kMatrixRows, steps, sums);
    device::cuda::WaitForCopies<0>();
    __syncthreads();  // the next keys have arrived, all are done with these
    stage ^= 1;
  }
  // The sums pass through this warp's rows of query_tile, which have enough room.
  StoreQueryGradient<Shape>(a, block.at, block.queries, block.first, first_dim,
                            MatrixTile<Shape::kOutDims>{block.query_tile.data}, sums[0]);
}

template <int kDims>
using QueryShapeOf = QueryShape<kDims, kDims <= 64 ? 64 : 32, kDims <= 128 ? kDims : 128,
                                kDims <= 32    ? 3
                                : kDims <= 128 ? 2
                                               : 1>;

}  // namespace

void LaunchMatrixQueryGradient(const device::Stream& stream, const AttentionOperands<Bf16>& a) {
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Shape = QueryShapeOf<decltype(dims)::value>;
    LaunchAttention(
        stream,
        a.threshold > 0 ? &MatrixQueryGradientKernel<Shape, true>
                        : &MatrixQueryGradientKernel<Shape, false>,
        std::int64_t{a.queries.Tiles(Shape::kQueries)} * a.tasks * a.Group() * Shape::kParts,
        Shape::kThreads, Shape::kBytes, a);
  });
}

}  // namespace trireme::kernels::cuda
