// Attention's forward pass on tensor cores (Dao 2023, "FlashAttention-2"). A warp has 16 or 32
// queries of one head and goes through keys and values tile by tile; scores and weights stay in its
// registers. Weights are rounded to bf16 for the product with the values, and summed before that.
// For whole sequences it overwrites out and lse, for parts it merges into them.
#include "matrix_operands.cuh"

namespace trireme::kernels::cuda {

namespace {

// kTiles: tiles of 16 queries per warp. kBlocks: blocks per multiprocessor.
template <int kDims_, int kTiles_, int kKeys_, int kBlocks_>
struct ForwardShape {
  static constexpr int kDims = kDims_, kTiles = kTiles_, kKeys = kKeys_, kBlocks = kBlocks_;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarpLanes;
  static constexpr int kMine = kTiles * kMatrixRows, kQueries = kWarps * kMine;
  static constexpr int kColumns = kKeys / kMatrixColumns, kOut = kDims / kMatrixColumns;
  static constexpr bool kKept = kDims <= 64;  // keep queries in registers
  using Tile = MatrixTile<kDims>;
  static constexpr int kBytes = Tile::Bytes(kQueries + 2 * kKeys);
};

// State of a lane's rows g and g + 8 of each tile: running maxima (as exponents of 2) and, relative
// to them, this lane's share of the sums and its elements of the outputs.
template <typename Shape>
struct ForwardRows {
  float top[Shape::kTiles][2], sum[Shape::kTiles][2];
  MatrixSums<Shape::kOut> out[Shape::kTiles];

  __device__ ForwardRows() {
#pragma unroll
    for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[i][half] = std::numeric_limits<float>::lowest();
        sum[i][half] = 0;
      }
    }
    ClearMatrixSums<Shape::kTiles>(out);
  }
};

// Continues from earlier blocks of keys: their out is normalised, so the sum is 1.
template <typename Shape>
__device__ void ResumeRows(const AttentionOperands<Bf16>& a, const AttentionPlace<Bf16>& at,
                           const AttentionTile& queries, int first, ForwardRows<Shape>& rows) {
  const auto exact = at.Exact(a);
  const float factor = a.threshold > 0 ? 1 / a.kept_scale : 1.0F;
#pragma unroll
  for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + i * kMatrixRows + MatrixRow() + 8 * half;
      if (row >= queries.count) continue;
      const float lse = *at.Lse(a, queries.row + row);
      if (lse == -std::numeric_limits<float>::infinity()) continue;
      rows.top[i][half] = lse * static_cast<float>(kAttentionLog2E);
      rows.sum[i][half] = MatrixColumn() == 0 ? 1.0F : 0.0F;
#pragma unroll
      for (int j = 0; j < Shape::kOut; ++j) {
        const int column = j * kMatrixColumns + MatrixColumn();
        if (column >= a.head_dim) continue;
        const float2 pair = LoadExactPair(exact, queries.row + row, column);
        rows.out[i][j][2 * half] = pair.x * factor;
        rows.out[i][j][2 * half + 1] = pair.y * factor;
      }
    }
  }
}

// Sets scores of keys that are not seen to -infinity. first: the warp's first query in its tile.
template <typename Shape>
__device__ __forceinline__ void HideScores(const AttentionOperands<Bf16>& a, int sequence,
                                           const AttentionTile& queries, const MatrixKeys& keys,
                                           int first,
                                           MatrixSums<Shape::kColumns> (&scores)[Shape::kTiles]) {
#pragma unroll
  for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + i * kMatrixRows + MatrixRow() + 8 * half;
      const bool present = row < queries.count;
      const int begin = present ? BeginOf(a, sequence, queries.row + row) : 0;
      const int low = max(keys.first, begin - keys.position);
      const int seen = a.causal ? queries.position + row + 1 - keys.position : keys.count;
      const int high = present ? min(keys.count, seen) : 0;
#pragma unroll
      for (int j = 0; j < Shape::kColumns; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int column = j * kMatrixColumns + MatrixColumn() + k;
          if (column < low || column >= high) {
            scores[i][j][2 * half + k] = -std::numeric_limits<float>::infinity();
          }
        }
      }
    }
  }
}

// Turns scores into weights relative to the new maxima, and rescales sums and outputs in `rows`.
template <typename Shape>
__device__ __forceinline__ void WeighScores(float exponents, ForwardRows<Shape>& rows,
                                            MatrixSums<Shape::kColumns> (&scores)[Shape::kTiles]) {
#pragma unroll
  for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = scores[i][0][2 * half];
#pragma unroll
      for (int j = 0; j < Shape::kColumns; ++j) {
        largest = fmaxf(largest, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const float top = fmaxf(rows.top[i][half], largest * exponents);
      const float shrunk = device::cuda::FastExp2(rows.top[i][half] - top);
      rows.top[i][half] = top;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < Shape::kColumns; ++j) {
#pragma unroll
        for (int k = 2 * half; k < 2 * half + 2; ++k) {
          scores[i][j][k] = device::cuda::FastExp2(fmaf(scores[i][j][k], exponents, -top));
          sum += scores[i][j][k];
        }
      }
      rows.sum[i][half] = fmaf(rows.sum[i][half], shrunk, sum);
#pragma unroll
      for (int j = 0; j < Shape::kOut; ++j) {
        rows.out[i][j][2 * half] *= shrunk;
        rows.out[i][j][2 * half + 1] *= shrunk;
      }
    }
  }
}

template <typename Shape>
__device__ void FinishRows(const AttentionOperands<Bf16>& a, const AttentionPlace<Bf16>& at,
                           const AttentionTile& queries, int first,
                           const MatrixTile<Shape::kDims>& tile, ForwardRows<Shape>& rows) {
  const auto exact = at.Exact(a);
#pragma unroll
  for (int i = 0; i < Shape::kTiles; ++i) {
    const int begin = first + i * kMatrixRows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = begin + MatrixRow() + 8 * half;
      float sum = rows.sum[i][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const bool mine = row < queries.count;
      if (mine && MatrixColumn() == 0) {
        // Without keys (sum 0) the output is 0. A NaN stays NaN.
        *at.Lse(a, queries.row + row) =
            sum == 0 ? -std::numeric_limits<float>::infinity()
                     : rows.top[i][half] * static_cast<float>(kAttentionLn2) + logf(sum);
      }
      const float inverse = sum == 0 ? 0.0F : (a.threshold > 0 ? a.kept_scale : 1.0F) / sum;
#pragma unroll
      for (int j = 0; j < Shape::kOut; ++j) {
        float(&out)[4] = rows.out[i][j];
        out[2 * half] *= inverse;
        out[2 * half + 1] *= inverse;
        const int column = j * kMatrixColumns + MatrixColumn();
        if (mine && exact.data != nullptr && column < a.head_dim) {
          StoreExactPair(exact, queries.row + row, column, out[2 * half], out[2 * half + 1]);
        }
      }
    }
    StoreMatrixSums<Shape::kDims>(rows.out[i], tile, begin, at.Queries(a, a.out),
                                  queries.row + begin, 0, queries.count - begin, 0);
  }
}

// A block's place, its tiles in shared memory, and the queries of this warp.
template <typename Shape>
struct ForwardBlock {
  using Tile = typename Shape::Tile;
  const AttentionOperands<Bf16>& a;
  AttentionPlace<Bf16> at;
  AttentionTile queries;
  MatrixKeyWalk<Shape::kKeys> walk;
  Tile query_tile, key_tile, value_tile;
  int first, last_begin;  // warp's first query, in the tile; where its last query's document begins

  // Last queries first: they see the most keys, so their blocks take longest.
  __device__ explicit ForwardBlock(const AttentionOperands<Bf16>& operands)
      : a(operands),
        at(AttentionPlace<Bf16>::OfQueries(a, static_cast<int>(blockIdx.x))),
        queries(a.queries.Tile(a.queries.Tiles(Shape::kQueries) - 1 - at.block, Shape::kQueries)),
        walk(a, at.sequence, queries),
        query_tile{device::cuda::SharedMemory<Bf16>()},
        key_tile{query_tile.At(Shape::kQueries, 0)},
        value_tile{key_tile.At(Shape::kKeys, 0)},
        first(MatrixWarp() * Shape::kMine),
        last_begin(LastBegin(a, at.sequence, queries, first, Shape::kMine)) {}

  __device__ __forceinline__ void Copy(const Tile& to, const AttentionHead<const Bf16>& head,
                                       int i) const {
    if (i < walk.tiles) {
      const MatrixKeys keys = walk.Tile(i);
      to.template Copy<Shape::kKeys, Shape::kThreads>(head, keys.row, keys.first, keys.count);
    }
    device::cuda::CommitCopies();
  }
  __device__ __forceinline__ void CopyQueries() const {
    query_tile.template Copy<Shape::kQueries, Shape::kThreads>(at.Queries(a, a.query), queries.row,
                                                               0, queries.count);
  }

  // Turns the scores of a tile into weights and applies dropout to them.
  template <bool kDropout>
  __device__ __forceinline__ void Weigh(
      const MatrixKeys& keys, ForwardRows<Shape>& rows,
      MatrixSums<Shape::kColumns> (&scores)[Shape::kTiles]) const {
    if (queries.count < first + Shape::kMine ||
        !AllSeen<Shape::kKeys>(a, keys, queries.position + first, last_begin)) {
      HideScores<Shape>(a, at.sequence, queries, keys, first, scores);
    }
    WeighScores<Shape>(a.scale * static_cast<float>(kAttentionLog2E), rows, scores);
    if constexpr (kDropout) {
      const MatrixDropout dropout(a, at.sequence, at.head);
#pragma unroll
      for (int k = 0; k < Shape::kTiles; ++k) {
        MatrixRowMasks<Shape::kKeys> masks;
        masks.Draw(dropout, queries.position + first + k * kMatrixRows, keys.position);
#pragma unroll
        for (int j = 0; j < Shape::kColumns; ++j) {
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            if (!masks.Kept(j, n)) scores[k][j][n] = 0;
          }
        }
      }
    }
  }
};

template <typename Shape, bool kDropout>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    MatrixForwardKernel(AttentionOperands<Bf16> a) {
  const ForwardBlock<Shape> block(a);
  if (IsServed(a, block.at.sequence) || block.walk.SeesNothing()) return;
  const int steps = MatrixSteps(a.head_dim);
  block.CopyQueries();
  int i = block.walk.Next(0);
  block.Copy(block.key_tile, block.at.Keys(a, a.key), i);
  ForwardRows<Shape> rows;
  if (!a.whole) ResumeRows<Shape>(a, block.at, block.queries, block.first, rows);
  MatrixLeft<Shape::kDims, Shape::kKept> left[Shape::kTiles];
  device::cuda::WaitForCopies<0>();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < Shape::kTiles; ++k) {
    left[k].Load(block.query_tile, block.first + k * kMatrixRows, steps);
  }
  while (i < block.walk.tiles) {
    const MatrixKeys keys = block.walk.Tile(i);
    block.Copy(block.value_tile, block.at.Keys(a, a.value), i);
    MatrixSums<Shape::kColumns> scores[Shape::kTiles];
    ClearMatrixSums<Shape::kTiles>(scores);
    AddMatrixDots<Shape::kDims, Shape::kKept, Shape::kTiles, Shape::kColumns>(left, block.key_tile,
                                                                              0, steps, scores);
    device::cuda::WaitForCopies<0>();
    __syncthreads();  // the values have arrived, all are done with the keys
    i = block.walk.Next(i + 1);
    block.Copy(block.key_tile, block.at.Keys(a, a.key), i);
    block.template Weigh<kDropout>(keys, rows, scores);
    AddMatrixProduct<Shape::kDims, Shape::kTiles, Shape::kColumns, Shape::kOut>(
        scores, block.value_tile, 0, steps, rows.out);
    device::cuda::WaitForCopies<0>();
    __syncthreads();  // the next keys have arrived, all are done with the values
  }
  FinishRows<Shape>(a, block.at, block.queries, block.first, block.query_tile, rows);
}

template <int kDims>
using ForwardShapeOf =
    ForwardShape<kDims, kDims <= 64 ? 2 : 1, kDims <= 128 ? 64 : 32, kDims <= 128 ? 2 : 1>;

}  // namespace

void LaunchMatrixForward(const device::Stream& stream, const AttentionOperands<Bf16>& a) {
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Shape = ForwardShapeOf<decltype(dims)::value>;
    LaunchAttention(
        stream,
        a.threshold > 0 ? &MatrixForwardKernel<Shape, true> : &MatrixForwardKernel<Shape, false>,
        std::int64_t{a.queries.Tiles(Shape::kQueries)} * a.tasks * a.Group(), Shape::kThreads,
        Shape::kBytes, a);
  });
}

}  // namespace trireme::kernels::cuda
