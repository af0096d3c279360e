// Attention on tensor cores: tiles in shared memory, operands of products, which keys a query sees,
// and dropout masks in the registers of the lanes that need them.
#pragma once

#include <cstdint>

#include "cuda/attention_kernels.cuh"
#include "trireme/device/cuda/matrix.cuh"

namespace trireme::kernels::cuda {

// Tiles for tensor cores: bf16 rows in shared memory, whose pieces of 8 elements are permuted so
// that eight neighbouring rows lie in different banks, and the product operands that a warp loads
// from them (device/cuda/matrix.cuh).

inline constexpr int kMatrixRows = 16;    // rows, and inner elements, of one product
inline constexpr int kMatrixColumns = 8;  // columns of one product
inline constexpr int kMatrixPiece = 8;    // elements in 16 bytes

// Sums of products, [kMatrixRows, 8 kColumns]: a lane has four per 8 columns (MultiplyMatrices).
template <int kColumns>
using MatrixSums = float[kColumns][4];

__device__ __forceinline__ int MatrixLane() { return static_cast<int>(threadIdx.x) % kWarpLanes; }
__device__ __forceinline__ int MatrixWarp() { return static_cast<int>(threadIdx.x) / kWarpLanes; }
// Row and first column of a lane's sums. A lane also has the row 8 below, and the next column.
__device__ __forceinline__ int MatrixRow() { return MatrixLane() / 4; }
__device__ __forceinline__ int MatrixColumn() { return MatrixLane() % 4 * 2; }

// Number of products needed to cover a head's dims.
__device__ __forceinline__ int MatrixSteps(int dims) {
  return (dims + kMatrixRows - 1) / kMatrixRows;
}

template <int kDims>
struct MatrixTile {
  static_assert(kDims == 32 || kDims % 64 == 0);
  static constexpr int kPieces = kDims / kMatrixPiece, kSteps = kDims / kMatrixRows;
  Bf16* data;  // [rows, kDims], aligned to 128 bytes

  static constexpr int Bytes(int rows) { return rows * kDims * static_cast<int>(sizeof(Bf16)); }

  // XOR mask of a row's pieces. Eight pieces, of one row or of two, span all banks once.
  __device__ __forceinline__ static int Swapped(int row) {
    return kPieces >= 8 ? row & 7 : row >> 1 & 3;
  }
  __device__ __forceinline__ Bf16* At(int row, int piece) const {
    return data + (row * kPieces + (piece ^ Swapped(row))) * kMatrixPiece;
  }

  // Begins to copy rows [first, count) of the kRows rows of a head from `row` on; other rows and
  // columns beyond the head's dims become zeros. All threads of the block must call it.
  template <int kRows, int kThreads>
  __device__ __forceinline__ void Copy(const AttentionHead<const Bf16>& head, int row, int first,
                                       int count) const {
    static_assert(kThreads % kPieces == 0);
    // A thread's pieces are below each other and, unless rows are very wide, permuted alike.
    constexpr int kStep = kThreads / kPieces;
    constexpr bool kAlike = kStep % 8 == 0;
    const int mine = static_cast<int>(threadIdx.x) / kPieces;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    const Bf16* from = head.data + (row + mine) * head.stride + piece * kMatrixPiece;
    const std::int64_t step = kStep * head.stride;
    const auto rows =
        static_cast<unsigned>(piece * kMatrixPiece < head.dims ? max(0, count - first) : 0);
    Bf16* const to = At(mine, piece);
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      const bool inside = static_cast<unsigned>(mine + i * kStep - first) < rows;
      device::cuda::CopyAsync(kAlike ? to + i * kStep * kDims : At(mine + i * kStep, piece), from,
                              inside);
      from += step;
    }
  }

  // Address that this lane passes to a load of matrices: piece 2 step + half of row row + lane_row.
  // `row` must be a multiple of 8: then the row's mask depends on lane_row alone.
  __device__ __forceinline__ const Bf16* LaneRow(int row, int lane_row, int half, int step) const {
    const int piece = 2 * step ^ (half ^ Swapped(lane_row));
    return data + lane_row * kDims + row * kDims + piece * kMatrixPiece;
  }
  // Left operand: rows [row, row + 16), dims [16 step, 16 step + 16).
  __device__ __forceinline__ void LoadLeft(int row, int step, unsigned (&a)[4]) const {
    const int lane = MatrixLane();
    device::cuda::LoadMatrices(LaneRow(row, lane % 16, lane / 16, step), a);
  }
  // Right operand of products over dims [16 step, 16 step + 16). Its columns are rows [row, row +
  // 16) of the tile: b[0] and b[1] hold the first eight.
  __device__ __forceinline__ void LoadRight(int row, int step, unsigned (&b)[4]) const {
    const int lane = MatrixLane();
    const int lane_row = lane / 16 * 8 + lane % 8;
    device::cuda::LoadMatrices(LaneRow(row, lane_row, lane / 8 % 2, step), b);
  }
  // The same for products over rows [row, row + 16); columns are dims [16 step, 16 step + 16).
  __device__ __forceinline__ void LoadRightAcross(int row, int step, unsigned (&b)[4]) const {
    const int lane = MatrixLane();
    device::cuda::LoadMatricesTransposed(LaneRow(row, lane % 16, lane / 16, step), b);
  }
};

// Left operands of all dims of some rows: kept in registers (kKept), or loaded again for each step.
template <int kDims, bool kKept>
struct MatrixLeft {
  static constexpr int kSteps = kDims / kMatrixRows;
  MatrixTile<kDims> tile;
  int row;
  unsigned kept[kKept ? kSteps : 1][4];

  __device__ __forceinline__ void Load(const MatrixTile<kDims>& from, int first_row, int steps) {
    tile = from, row = first_row;
    if constexpr (kKept) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step < steps) tile.LoadLeft(row, step, kept[step]);
      }
    }
  }
  __device__ __forceinline__ void Step(int step, unsigned (&a)[4]) const {
    if constexpr (kKept) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = kept[step][i];
    } else {
      tile.LoadLeft(row, step, a);
    }
  }
};

// sums [kTiles][16, 8 kColumns] += left rows . rows [row, row + 8 kColumns) of `right`, over the
// first 16 * `steps` dims.
template <int kDims, bool kKept, int kTiles, int kColumns>
__device__ __forceinline__ void AddMatrixDots(const MatrixLeft<kDims, kKept> (&left)[kTiles],
                                              const MatrixTile<kDims>& right, int row, int steps,
                                              MatrixSums<kColumns> (&sums)[kTiles]) {
  // Unrolled fully, as registers are indexed by the step; partly where registers are scarce.
  [[maybe_unused]] constexpr int kUnrolled = kKept || kDims <= 128 ? MatrixTile<kDims>::kSteps : 4;
#pragma unroll kUnrolled
  for (int step = 0; step < MatrixTile<kDims>::kSteps; ++step) {
    if (step >= steps) continue;
    unsigned a[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) left[i].Step(step, a[i]);
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      unsigned b[4];
      right.LoadRight(row + j * kMatrixColumns, step, b);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        device::cuda::MultiplyMatrices(a[i], b[0], b[1], sums[i][j]);
        device::cuda::MultiplyMatrices(a[i], b[2], b[3], sums[i][j + 1]);
      }
    }
  }
}

// Left operand of a product over columns [16 step, 16 step + 16) of `weights`, rounded to bf16.
template <int kColumns>
__device__ __forceinline__ void PackMatrixLeft(const MatrixSums<kColumns>& weights, int step,
                                               unsigned (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&of)[4] = weights[2 * step + i / 2];
    a[i] = device::cuda::PackBf16(of[i % 2 * 2], of[i % 2 * 2 + 1]);
  }
}

// sums [kTiles][16, 8 kOut] += weights . rows [0, 8 kColumns) of `right`, for the dims from 16
// first_step on that are below 16 * `steps`.
template <int kDims, int kTiles, int kColumns, int kOut>
__device__ __forceinline__ void AddMatrixProduct(const MatrixSums<kColumns> (&weights)[kTiles],
                                                 const MatrixTile<kDims>& right, int first_step,
                                                 int steps, MatrixSums<kOut> (&sums)[kTiles]) {
#pragma unroll
  for (int step = 0; step < kColumns / 2; ++step) {
    unsigned a[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) PackMatrixLeft<kColumns>(weights[i], step, a[i]);
#pragma unroll
    for (int j = 0; j < kOut / 2; ++j) {
      if (first_step + j >= steps) continue;
      unsigned b[4];
      right.LoadRightAcross(step * kMatrixRows, first_step + j, b);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        device::cuda::MultiplyMatrices(a[i], b[0], b[1], sums[i][2 * j]);
        device::cuda::MultiplyMatrices(a[i], b[2], b[3], sums[i][2 * j + 1]);
      }
    }
  }
}

template <int kTiles, int kColumns>
__device__ __forceinline__ void ClearMatrixSums(MatrixSums<kColumns> (&sums)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[i][j][k] = 0;
    }
  }
}

// Load or store two neighbouring elements of a row of `exact`, the unrounded sum over earlier
// blocks; both must be within the head's dims.
__device__ __forceinline__ float2 LoadExactPair(const AttentionHead<float>& exact, int row,
                                                int column) {
  return *reinterpret_cast<const float2*>(exact.data + row * exact.stride + column);
}
__device__ __forceinline__ void StoreExactPair(const AttentionHead<float>& exact, int row,
                                               int column, float low, float high) {
  *reinterpret_cast<float2*>(exact.data + row * exact.stride + column) = make_float2(low, high);
}

// Rounds sums into the 16 rows from `row` on of `tile` (this warp's own), then copies rows [first,
// count) of these to `head`, from row to_row and dim first_dim on. kOut: columns of sums / 8.
template <int kDims, int kOut>
__device__ __forceinline__ void StoreMatrixSums(const MatrixSums<kOut>& sums,
                                                const MatrixTile<kDims>& tile, int row,
                                                const AttentionHead<Bf16>& head, int to_row,
                                                int first, int count, int first_dim) {
  const int lane = MatrixLane();
#pragma unroll
  for (int j = 0; j < kOut; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned word = device::cuda::PackBf16(sums[j][2 * half], sums[j][2 * half + 1]);
      Bf16* const at = tile.At(row + MatrixRow() + 8 * half, j) + MatrixColumn();
      *reinterpret_cast<unsigned*>(at) = word;
    }
  }
  __syncwarp();
  for (int i = lane; i < kMatrixRows * kOut; i += kWarpLanes) {
    const int r = i / kOut, dim = first_dim + i % kOut * kMatrixPiece;
    if (r < first || r >= count || dim >= head.dims) continue;
    StoreGlobal(LoadPack<kMatrixPiece>(tile.At(row + r, i % kOut)),
                head.data + (to_row + r) * head.stride + dim);
  }
}

// A tile of keys: its rows [first, count) are keys. Its first row is at `position`, a multiple of
// 8, so that one Philox counter serves eight rows.
struct MatrixKeys {
  int row, position, first, count;
  __device__ int Last() const { return position + count - 1; }
  __device__ bool Empty() const { return count <= first; }
};

// How a sequence's keys are divided into tiles of kKeys rows.
template <int kKeys>
struct MatrixKeyTiles {
  // Number of a tile's rows before the first key of a block that begins at `position`.
  __host__ __device__ static int Shift(int position) { return position % kPhiloxLanes; }
  __host__ __device__ static int Of(int begin, int count) {
    return count == 0 ? 0 : (Shift(begin) + count + kKeys - 1) / kKeys;
  }
  __host__ __device__ static int Count(const AttentionRows& rows) {
    return Of(rows.early_begin, rows.early_count) + Of(rows.late_begin, rows.late_count);
  }
  __device__ static MatrixKeys Tile(const AttentionRows& rows, int index) {
    const int early = Of(rows.early_begin, rows.early_count);
    const bool late = index >= early;
    const int begin = late ? rows.late_begin : rows.early_begin;
    const int count = late ? rows.late_count : rows.early_count;
    const int start = (late ? index - early : index) * kKeys - Shift(begin);
    return {(late ? rows.early_count : 0) + start, begin + start, max(0, -start),
            min(kKeys, count - start)};
  }
};

// The tile without the keys that are padding.
__device__ __forceinline__ MatrixKeys PresentKeys(const AttentionOperands<Bf16>& a, int sequence,
                                                  MatrixKeys keys) {
  if (a.key_lengths != nullptr) {
    keys.count = min(keys.count, a.key_lengths[sequence] - keys.position);
  }
  return keys;
}

__device__ __forceinline__ int BeginOf(const AttentionOperands<Bf16>& a, int sequence, int row) {
  return a.begins == nullptr ? 0 : a.begins[a.QueryRow(sequence, row)];
}

// The tiles of kKeys keys that a tile of queries goes through.
template <int kKeys>
struct MatrixKeyWalk {
  const AttentionOperands<Bf16>& a;
  int sequence;
  AttentionTile queries;
  int first_seen, tiles;  // position of the first key that a query sees; number of tiles

  __device__ MatrixKeyWalk(const AttentionOperands<Bf16>& operands, int of_sequence,
                           const AttentionTile& of_queries)
      : a(operands),
        sequence(of_sequence),
        queries(of_queries),
        first_seen(BeginOf(operands, of_sequence, of_queries.row)),
        tiles(MatrixKeyTiles<kKeys>::Count(operands.keys)) {}

  // Whether the queries see no key, so that a part's results do not change.
  __device__ bool SeesNothing() const {
    return !a.whole && a.causal && !a.keys.Reach(queries.Last(), first_seen);
  }
  __device__ MatrixKeys Tile(int i) const {
    return PresentKeys(a, sequence, MatrixKeyTiles<kKeys>::Tile(a.keys, i));
  }
  // The first tile from number i on of which a query may see a key.
  __device__ int Next(int i) const {
    for (; i < tiles; ++i) {
      const MatrixKeys keys = Tile(i);
      if (!keys.Empty() && keys.Last() >= first_seen &&
          (!a.causal || keys.position + keys.first <= queries.Last())) {
        break;
      }
    }
    return i;
  }
};

// Begin of the document of the last of the tile's queries [first, first + count); 0: no queries.
__device__ __forceinline__ int LastBegin(const AttentionOperands<Bf16>& a, int sequence,
                                         const AttentionTile& queries, int first, int count) {
  const int last = min(first + count, queries.count) - 1;
  return last < first ? 0 : BeginOf(a, sequence, queries.row + last);
}

// Whether every query of a group sees all kKeys rows of the tile. first: position of the first
// query; begin: where the last query's document begins.
template <int kKeys>
__device__ __forceinline__ bool AllSeen(const AttentionOperands<Bf16>& a, const MatrixKeys& keys,
                                        int first, int begin) {
  return keys.first == 0 && keys.count == kKeys &&
         (!a.causal || keys.position + kKeys - 1 <= first) && begin <= keys.position;
}

// Dropout masks of one sequence and head. threshold: in the upper 16 bits.
struct MatrixDropout {
  std::uint32_t seed, purpose, low, high, threshold;

  __device__ __forceinline__ MatrixDropout(const AttentionOperands<Bf16>& a, int sequence, int head)
      : seed(a.seed), threshold(a.threshold << 16) {
    const std::uint64_t ordinal = a.ordinals[sequence];
    purpose = a.purpose | (static_cast<std::uint32_t>(a.first_head + head) & 0xFFFu) << 20;
    low = static_cast<std::uint32_t>(ordinal), high = static_cast<std::uint32_t>(ordinal >> 32);
  }
  // Bit i says whether key `position` + i is kept for a query; position is a multiple of 8.
  __device__ __forceinline__ unsigned Kept(int query, int position) const {
    const PhiloxBits drawn =
        PhiloxAt(seed, purpose, static_cast<std::uint32_t>(position / kPhiloxLanes),
                 static_cast<std::uint32_t>(query), low, high);
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < kPhiloxLanes / 2; ++i) {
      // Compares 16-bit lanes with the threshold, both in the upper half of a word.
      if (drawn.words[i] << 16 >= threshold) kept |= 1u << 2 * i;
      if (drawn.words[i] >= threshold) kept |= 2u << 2 * i;
    }
    return kept;
  }
};

// Masks of 16 queries (rows of sums) and kKeys keys (columns). Each of the four lanes of a row
// draws a quarter.
template <int kKeys>
struct MatrixRowMasks {
  // Bytes of a row that a lane draws, each for 8 keys: every fourth one.
  static constexpr int kDrawn = kKeys / 32;
  unsigned words[4];  // from the four lanes of this row: row g, then g + 8

  __device__ __forceinline__ void Draw(const MatrixDropout& dropout, int query, int position) {
    const int quarter = MatrixLane() % 4;
    unsigned mine = 0;
#pragma unroll 1
    for (int i = 0; i < 2 * kDrawn; ++i) {
      const int octet = quarter + i % kDrawn * 4;
      mine |= dropout.Kept(query + MatrixRow() + i / kDrawn * 8, position + octet * 8) << 8 * i;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __shfl_sync(~0u, mine, i, 4);
  }
  // Whether element k of this lane's sums for columns [8 j, 8 j + 8) is kept.
  __device__ __forceinline__ bool Kept(int j, int k) const {
    const unsigned octet = words[j % 4] >> 8 * (k / 2 * kDrawn + j / 4);
    return (octet >> (MatrixColumn() + k % 2) & 1) != 0;
  }
};

// Masks of 16 keys (rows of sums) and kQueries queries (columns). Lanes draw in turn.
template <int kQueries>
struct MatrixColumnMasks {
  static constexpr int kDrawn = kQueries / 16;  // bytes drawn per lane
  unsigned word;

  __device__ __forceinline__ void Draw(const MatrixDropout& dropout, int query, int position) {
    word = 0;
#pragma unroll 1
    for (int i = 0; i < kDrawn; ++i) {
      const int column = MatrixLane() + i * kWarpLanes;
      word |= dropout.Kept(query + column % kQueries, position + column / kQueries * 8) << 8 * i;
    }
  }
  // Bit k says whether element k of this lane's sums for columns [8 j, 8 j + 8) is kept. All lanes
  // of the warp must call it.
  __device__ __forceinline__ unsigned Kept(int j) const {
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int column = 8 * j + MatrixColumn() + k;
      const unsigned bytes = __shfl_sync(~0u, word, column % kWarpLanes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned octet = bytes >> 8 * ((8 * j + half * kQueries) / kWarpLanes);
        kept |= (octet >> MatrixRow() & 1) << (2 * half + k);
      }
    }
    return kept;
  }
};

}  // namespace trireme::kernels::cuda
