// Gradients of keys and values on tensor cores, overwritten (equations: attention_backward.cu). A
// warp has 16 keys of one key/value head and goes through the query heads that read it, in order,
// and through their queries tile by tile; the next tile is loaded while one is computed. Scores are
// transposed: rows are keys, columns queries.
#include "matrix_operands.cuh"

namespace trireme::kernels::cuda {

namespace {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kNewerThanHopper = true;
#else
constexpr bool kNewerThanHopper = false;
#endif

// kOutDims: dims of the gradients that one block computes; for wider heads several blocks are used.
template <int kDims_, int kQueries_, int kOutDims_, int kBlocks_>
struct KeyShape {
  static constexpr int kDims = kDims_, kQueries = kQueries_, kOutDims = kOutDims_;
  static constexpr int kBlocks = kBlocks_, kWarps = 4, kThreads = kWarps * kWarpLanes;
  static constexpr int kKeys = kWarps * kMatrixRows, kParts = kDims / kOutDims;
  static constexpr int kColumns = kQueries / kMatrixColumns, kOut = kOutDims / kMatrixColumns;
  static constexpr bool kValuesKept = kDims <= 64;  // keep values in registers
  // Keep keys in registers too, except where the compiler would run out of registers.
  static constexpr bool kKept = kDims <= (kNewerThanHopper ? 32 : 64);
  using Tile = MatrixTile<kDims>;
  static constexpr int kStages = 2;
  static constexpr int kStageBytes = 2 * Tile::Bytes(kQueries);
  static constexpr int kBytes =
      2 * Tile::Bytes(kKeys) +
      kStages * (kStageBytes + kQueries * static_cast<int>(sizeof(float2) + sizeof(int)));
};

// Log-sum-exp, delta and document begin of each query of a tile.
template <typename Shape>
struct QueryFacts {
  float2* sums;  // [stages, kQueries]: {log-sum-exp, base 2, or infinity if nothing is seen; delta}
  int* begins;   // [stages, kQueries]: where each query's document begins

  __device__ void Load(const AttentionOperands<Bf16>& a, const AttentionPlace<Bf16>& at,
                       const AttentionTile& queries, int stage) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const int row = static_cast<int>(threadIdx.x);
    if (row >= Shape::kQueries) return;
    float2 both = {kInfinity, 0};
    if (row < queries.count) {
      const float lse = *at.Lse(a, queries.row + row);
      if (lse != -kInfinity) both.x = lse * static_cast<float>(kAttentionLog2E);
      both.y = *at.Delta(a, queries.row + row);
    }
    sums[stage * Shape::kQueries + row] = both;
    begins[stage * Shape::kQueries + row] =
        row < queries.count ? BeginOf(a, at.sequence, queries.row + row) : 0;
  }
};

// Makes the weight of each query that does not see a key 0. row: the warp's first key in its tile.
template <typename Shape>
__device__ __forceinline__ void HideFromColumns(const AttentionOperands<Bf16>& a,
                                                const AttentionTile& queries,
                                                const MatrixKeys& keys, int row, const int* begins,
                                                MatrixSums<Shape::kColumns>& scores,
                                                MatrixSums<Shape::kColumns>& ds) {
  int position[2], least[2];  // positions of a lane's keys; first column that sees each
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = row + MatrixRow() + 8 * half;
    position[half] = keys.position + key;
    least[half] = a.causal ? position[half] - queries.position : 0;
    if (key < keys.first || key >= keys.count) least[half] = Shape::kQueries;
  }
#pragma unroll
  for (int j = 0; j < Shape::kColumns; ++j) {
    const int first = j * kMatrixColumns + MatrixColumn();
    const int2 begin = *reinterpret_cast<const int2*>(begins + first);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool seen =
          (first + k % 2 >= least[k / 2]) & (position[k / 2] >= (k % 2 == 0 ? begin.x : begin.y));
      scores[j][k] = seen ? scores[j][k] : -std::numeric_limits<float>::infinity();
      ds[j][k] = seen ? ds[j][k] : 0.0F;
    }
  }
}

template <typename Shape>
__device__ void StoreKeyGradient(const AttentionHead<Bf16>& head, const MatrixKeys& all, int first,
                                 int first_dim, float factor,
                                 const MatrixTile<Shape::kOutDims>& tile,
                                 MatrixSums<Shape::kOut>& sums) {
#pragma unroll
  for (int j = 0; j < Shape::kOut; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[j][k] *= factor;
  }
  StoreMatrixSums<Shape::kOutDims>(sums, tile, first, head, all.row + first, all.first - first,
                                   all.count - first, first_dim);
}

// A block's place, its tiles in shared memory, and the order of query heads and tiles of queries.
template <typename Shape>
struct KeyBlock {
  using Tile = typename Shape::Tile;
  const AttentionOperands<Bf16>& a;
  AttentionPlace<Bf16> at;  // `head` changes with the tile of queries
  MatrixKeys all, keys;     // tile with and without the keys that are padding
  int query_tiles, tiles;   // number of tiles of queries: of one head, of all heads
  Tile key_tile, value_tile;
  QueryFacts<Shape> facts;

  // First keys first: most queries see them, so their blocks take longest.
  __device__ explicit KeyBlock(const AttentionOperands<Bf16>& operands)
      : a(operands),
        at(AttentionPlace<Bf16>::OfKeys(a, static_cast<int>(blockIdx.x) / Shape::kParts)),
        all(MatrixKeyTiles<Shape::kKeys>::Tile(a.keys, at.block)),
        keys(PresentKeys(a, at.sequence, all)),
        query_tiles(a.queries.Tiles(Shape::kQueries)),
        tiles(keys.Empty() ? 0 : a.Group() * query_tiles),
        key_tile{device::cuda::SharedMemory<Bf16>()},
        value_tile{key_tile.At(Shape::kKeys, 0)} {
    facts.sums = reinterpret_cast<float2*>(QueryTile(Shape::kStages).data);
    facts.begins = reinterpret_cast<int*>(facts.sums + Shape::kStages * Shape::kQueries);
  }

  __device__ __forceinline__ Tile QueryTile(int stage) const {
    return {value_tile.At(Shape::kKeys, 0) + stage * 2 * Shape::kQueries * Shape::kDims};
  }
  __device__ __forceinline__ Tile DoutTile(int stage) const {
    return {QueryTile(stage).data + Shape::kQueries * Shape::kDims};
  }
  __device__ __forceinline__ AttentionTile Queries(int i) const {
    return a.queries.Tile(i % query_tiles, Shape::kQueries);
  }
  __device__ __forceinline__ int Head(int i) const {
    return at.kv_head * a.Group() + i / query_tiles;
  }
  // The first tile from number i on whose queries may see one of the keys.
  __device__ int Next(int i) const {
    for (; i < tiles; ++i) {
      const AttentionTile queries = Queries(i);
      if ((!a.causal || queries.Last() >= keys.position + keys.first) &&
          BeginOf(a, at.sequence, queries.row) <= keys.Last()) {
        break;
      }
    }
    return i;
  }
  __device__ __forceinline__ void CopyQueries(int stage, int i) {
    if (i < tiles) {
      const AttentionTile queries = Queries(i);
      at.head = Head(i);
      QueryTile(stage).template Copy<Shape::kQueries, Shape::kThreads>(
          at.Queries(a, a.query), queries.row, 0, queries.count);
      DoutTile(stage).template Copy<Shape::kQueries, Shape::kThreads>(
          at.Queries(a, a.dout), queries.row, 0, queries.count);
      facts.Load(a, at, queries, stage);
    }
    device::cuda::CommitCopies();
  }
  __device__ __forceinline__ void CopyKeys() const {
    key_tile.template Copy<Shape::kKeys, Shape::kThreads>(at.Keys(a, a.key), keys.row, keys.first,
                                                          keys.count);
    value_tile.template Copy<Shape::kKeys, Shape::kThreads>(at.Keys(a, a.value), keys.row,
                                                            keys.first, keys.count);
  }

  // For the queries of tile i, which are in `stage`: turns transposed scores S into weights D(P)
  // without dropout's factor, and dP = dO V^T (in `ds`) into dS / scale. first: the warp's first
  // key in its tile.
  template <bool kDropout>
  __device__ __forceinline__ void ScoreGradients(int i, int stage, int first,
                                                 MatrixSums<Shape::kColumns>& scores,
                                                 MatrixSums<Shape::kColumns>& ds) const {
    const AttentionTile queries = Queries(i);
    const int facts_of_stage = stage * Shape::kQueries;
    // With documents, visibility must be tested for each key.
    if (a.begins != nullptr || !AllSeen<Shape::kKeys>(a, keys, queries.position, 0)) {
      HideFromColumns<Shape>(a, queries, keys, first, facts.begins + facts_of_stage, scores, ds);
    }
    const float2* const sums = facts.sums + facts_of_stage;
    const float exponents = a.scale * static_cast<float>(kAttentionLog2E);
    [[maybe_unused]] MatrixColumnMasks<Shape::kQueries> masks;
    if constexpr (kDropout) {
      masks.Draw(MatrixDropout(a, at.sequence, Head(i)), queries.position, keys.position + first);
    }
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) {
      [[maybe_unused]] unsigned kept = 0;
      if constexpr (kDropout) kept = masks.Kept(j);
      // {log-sum-exp, delta} of two neighbouring columns, aligned to 16 bytes.
      const float4 both =
          *reinterpret_cast<const float4*>(sums + j * kMatrixColumns + MatrixColumn());
      const float lse[2] = {both.x, both.z}, delta[2] = {both.y, both.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float weight = device::cuda::FastExp2(fmaf(scores[j][k], exponents, -lse[k % 2]));
        float dp = ds[j][k];
        float kept_weight = weight;
        if constexpr (kDropout) {
          const bool is_kept = (kept >> k & 1) != 0;
          dp = is_kept ? dp * a.kept_scale : 0.0F;
          kept_weight = is_kept ? weight : 0.0F;
        }
        scores[j][k] = kept_weight;
        ds[j][k] = weight * (dp - delta[k % 2]);
      }
    }
  }
};

template <typename Shape, bool kDropout>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    MatrixKeyGradientKernel(AttentionOperands<Bf16> a) {
  KeyBlock<Shape> block(a);
  if (IsServed(a, block.at.sequence)) return;
  const int first = MatrixWarp() * kMatrixRows, steps = MatrixSteps(a.head_dim);
  const int first_dim = static_cast<int>(blockIdx.x) % Shape::kParts * Shape::kOutDims;
  block.CopyKeys();
  int next = block.Next(0), stage = 0;
  block.CopyQueries(stage, next);
  MatrixSums<Shape::kOut> dkeys[1], dvalues[1];
  ClearMatrixSums<1>(dkeys);
  ClearMatrixSums<1>(dvalues);
  MatrixLeft<Shape::kDims, Shape::kKept> left[1];
  MatrixLeft<Shape::kDims, Shape::kValuesKept> left_value[1];
  device::cuda::WaitForCopies<0>();
  __syncthreads();
  left[0].Load(block.key_tile, first, steps);
  left_value[0].Load(block.value_tile, first, steps);
  while (next < block.tiles) {
    const int i = next;
    next = block.Next(i + 1);
    block.CopyQueries(stage ^ 1, next);
    MatrixSums<Shape::kColumns> scores[1], ds[1];
    ClearMatrixSums<1>(scores);
    ClearMatrixSums<1>(ds);
    AddMatrixDots<Shape::kDims, Shape::kKept, 1, Shape::kColumns>(left, block.QueryTile(stage), 0,
                                                                  steps, scores);
    AddMatrixDots<Shape::kDims, Shape::kValuesKept, 1, Shape::kColumns>(
        left_value, block.DoutTile(stage), 0, steps, ds);
    block.template ScoreGradients<kDropout>(i, stage, first, scores[0], ds[0]);
    AddMatrixProduct<Shape::kDims, 1, Shape::kColumns, Shape::kOut>(
        scores, block.DoutTile(stage), first_dim / kMatrixRows, steps, dvalues);
    AddMatrixProduct<Shape::kDims, 1, Shape::kColumns, Shape::kOut>(
        ds, block.QueryTile(stage), first_dim / kMatrixRows, steps, dkeys);
    device::cuda::WaitForCopies<0>();
    __syncthreads();  // the next queries have arrived, all are done with these
    stage ^= 1;
  }
  // The sums pass through this warp's rows of key_tile and value_tile, which have enough room.
  const float kept_scale = a.threshold > 0 ? a.kept_scale : 1.0F;
  using OutTile = MatrixTile<Shape::kOutDims>;
  StoreKeyGradient<Shape>(block.at.Keys(a, a.dkey), block.all, first, first_dim, a.scale,
                          OutTile{block.key_tile.data}, dkeys[0]);
  StoreKeyGradient<Shape>(block.at.Keys(a, a.dvalue), block.all, first, first_dim, kept_scale,
                          OutTile{block.value_tile.data}, dvalues[0]);
}

template <int kDims>
using KeyShapeOf =
    KeyShape<kDims, kDims <= 64 ? 64 : 32, kDims <= 128 ? kDims : 128, kDims <= 128 ? 2 : 1>;

}  // namespace

void LaunchMatrixKeyGradient(const device::Stream& stream, const AttentionOperands<Bf16>& a) {
  WithAttentionDims(a.head_dim, [&](auto dims) {
    using Shape = KeyShapeOf<decltype(dims)::value>;
    LaunchAttention(
        stream,
        a.threshold > 0 ? &MatrixKeyGradientKernel<Shape, true>
                        : &MatrixKeyGradientKernel<Shape, false>,
        std::int64_t{MatrixKeyTiles<Shape::kKeys>::Count(a.keys)} * a.tasks * Shape::kParts,
        Shape::kThreads, Shape::kBytes, a);
  });
}

}  // namespace trireme::kernels::cuda
