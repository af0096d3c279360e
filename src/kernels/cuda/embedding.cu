// Embeddings: EmbeddingForward overwrites out, PositionForward changes x, backward passes add.
#include <algorithm>
#include <bit>
#include <limits>

#include "backends.hpp"
#include "dropout.cuh"
#include "reduce.cuh"
#include "trireme/device/cuda/launch.cuh"
#include "trireme/device/gpu.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

template <typename T, int kElements>
struct EmbeddingOperation {
  static constexpr int kWidth = kElements;
  const std::int32_t* tokens;  // [rows]
  std::int64_t first, count;   // this slice of the vocabulary
  View<const T> weight;        // [count, dim]
  SumOf<T> scale;
  View<T> out;  // [rows, dim]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = tokens[row] - first;
    SumOf<T> values[kWidth] = {};
    if (at >= 0 && at < count) {
      LoadConstant<kWidth>(weight.At(at, column), values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] *= scale;
    }
    Store<kWidth>(values, out.At(row, column));
  }
};

template <typename T, int kElements>
struct PositionOperation {
  static constexpr int kWidth = kElements;
  View<const T> positions;  // [all positions that occur, dim], or null
  DropoutPlace place;
  const std::int32_t* begins;  // [rows of the matrix], or null
  View<T> x;                   // [rows, dim]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> values[kWidth];
    Load<kWidth>(x.At(row, column), values);
    if (positions.data != nullptr) {
      const std::uint32_t begin = begins == nullptr ? 0 : static_cast<std::uint32_t>(begins[row]);
      AddConstant<kWidth>(positions.At(place.PositionOf(row) - begin, column), values);
    }
    if (place.Active()) RowDropout(place, row).template Apply<kWidth>(column, values);
    Store<kWidth>(values, x.At(row, column));
  }
};

}  // namespace

void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                      const Matrix& weight, double scale, const Matrix& out) {
  WithVectors(out.dtype, out.columns, {weight, out}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, out.rows, out.columns,
         EmbeddingOperation<T, width()>{tokens, first, weight.rows, ViewOf<const T>(weight),
                                        static_cast<SumOf<T>>(scale), ViewOf<T>(out)});
  });
}

void PositionForward(const device::Stream& stream, const Matrix& positions,
                     const std::int32_t* begins, const Dropout& dropout, const Matrix& x) {
  if (positions.Empty() && !dropout.Active()) return;
  WithVectors(dropout, x.dtype, x.columns, {positions, x}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, x.rows, x.columns,
         PositionOperation<T, width()>{ViewOf<const T>(positions), DropoutPlace(dropout),
                                       begins == nullptr ? nullptr : begins + dropout.first_row,
                                       ViewOf<T>(x)});
  });
}

// Sorts a batch's rows by token (or by position in a document), rows of one token by row number:
// with this order the gradient of an embedding needs no atomics. A stable radix sort (least
// significant digit first; Knuth, vol. 3, 5.2.5): each pass counts the digits in each tile of rows,
// then puts each row after all rows with smaller digits and after those with the same digit in
// earlier tiles, warps and lanes. Atomics only count.

namespace {

// A slice of the vocabulary. A token's sort key is token - first, or `count` if it is outside.
struct TokenSlice {
  std::int32_t first;
  std::uint32_t count;
};

// Keys by which rows are sorted: tokens or, if `tokens` is null, positions in their documents.
struct RowTokens {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* begins = nullptr;  // as in kernels/elementwise.hpp
  DropoutPlace place = {};               // used for positions only

  __device__ __forceinline__ std::int64_t At(unsigned row) const {
    if (tokens != nullptr) return tokens[row];
    return std::int64_t{place.PositionOf(row)} - begins[row];
  }
  // The same for the rows from `row` on.
  RowTokens From(std::int64_t row) const {
    RowTokens later = *this;
    if (tokens != nullptr) later.tokens += row;
    if (begins != nullptr) later.begins += row;
    later.place.first_row += static_cast<std::uint32_t>(row);
    return later;
  }
};

struct TokenOrder {
  const std::uint32_t* keys;  // [rows], ascending
  const std::uint32_t* rows;  // [rows]: number of the row that has this key
};

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kMostDigitBits = 9, kMostBins = 1 << kMostDigitBits;
constexpr std::int64_t kMostTiles = 128;

struct SortPass {
  RowTokens tokens;  // source of the keys in the first pass
  TokenSlice slice;
  const std::uint32_t *keys_in, *rows_in;  // null in the first pass
  std::uint32_t *keys_out, *rows_out;
  unsigned* counts;  // [tiles, bins]
  unsigned rows, tile_rows;
  int shift, digit_bits;

  __device__ __forceinline__ unsigned Bins() const { return 1u << digit_bits; }
  __device__ __forceinline__ std::uint32_t KeyAt(unsigned i) const {
    if (keys_in != nullptr) return keys_in[i];
    const std::int64_t at = tokens.At(i) - slice.first;
    return at >= 0 && at < slice.count ? static_cast<std::uint32_t>(at) : slice.count;
  }
  __device__ __forceinline__ unsigned DigitOf(std::uint32_t key) const {
    return key >> shift & (Bins() - 1);
  }
};

__global__ void __launch_bounds__(kThreads) CountKernel(const SortPass pass) {
  __shared__ unsigned counts[kMostBins];
  for (unsigned bin = threadIdx.x; bin < pass.Bins(); bin += kThreads) counts[bin] = 0;
  __syncthreads();
  const unsigned begin = blockIdx.x * pass.tile_rows;
  const unsigned end = min(begin + pass.tile_rows, pass.rows);
  for (unsigned i = begin + threadIdx.x; i < end; i += kThreads) {
    atomicAdd(&counts[pass.DigitOf(pass.KeyAt(i))], 1u);
  }
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < pass.Bins(); bin += kThreads) {
    pass.counts[blockIdx.x * pass.Bins() + bin] = counts[bin];
  }
}

// offsets[bin]: where this tile's rows with that digit begin in the output.
__device__ void FindOffsets(const SortPass& pass, unsigned (&offsets)[kMostBins]) {
  constexpr int kBinsEach = kMostBins / kThreads;
  __shared__ unsigned warp_totals[kWarps];
  unsigned before[kBinsEach], totals[kBinsEach], sum = 0;
#pragma unroll
  for (int k = 0; k < kBinsEach; ++k) {
    const unsigned bin = threadIdx.x * kBinsEach + k;
    before[k] = 0;
    totals[k] = 0;
    if (bin < pass.Bins()) {
      for (unsigned tile = 0; tile < gridDim.x; ++tile) {
        const unsigned count = pass.counts[tile * pass.Bins() + bin];
        if (tile < blockIdx.x) before[k] += count;
        totals[k] += count;
      }
    }
    sum += totals[k];
  }
  // Counts the rows with smaller digits: of earlier lanes, of earlier warps, then the thread's own.
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  unsigned up_to = sum;
  for (int step = 1; step < kWarpLanes; step *= 2) {
    const unsigned lower = __shfl_up_sync(kAllLanes, up_to, step);
    if (lane >= step) up_to += lower;
  }
  if (lane == kWarpLanes - 1) warp_totals[warp] = up_to;
  __syncthreads();
  unsigned smaller = up_to - sum;
  for (int earlier = 0; earlier < warp; ++earlier) smaller += warp_totals[earlier];
#pragma unroll
  for (int k = 0; k < kBinsEach; ++k) {
    offsets[threadIdx.x * kBinsEach + k] = smaller + before[k];
    smaller += totals[k];
  }
}

__global__ void __launch_bounds__(kThreads) ScatterKernel(const SortPass pass) {
  __shared__ unsigned offsets[kMostBins], places[kWarps][kMostBins];
  for (int warp = 0; warp < kWarps; ++warp) {
    for (unsigned bin = threadIdx.x; bin < pass.Bins(); bin += kThreads) places[warp][bin] = 0;
  }
  FindOffsets(pass, offsets);
  __syncthreads();
  // Each warp handles a contiguous part of the tile.
  const unsigned warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const unsigned stretch = pass.tile_rows / kWarps;
  const unsigned begin = blockIdx.x * pass.tile_rows + warp * stretch;
  const unsigned end = min(begin + stretch, pass.rows);
  for (unsigned i = begin + lane; i < end; i += kWarpLanes) {
    atomicAdd(&places[warp][pass.DigitOf(pass.KeyAt(i))], 1u);
  }
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < pass.Bins(); bin += kThreads) {
    unsigned next = offsets[bin];
    for (int w = 0; w < kWarps; ++w) {
      const unsigned count = places[w][bin];
      places[w][bin] = next;
      next += count;
    }
  }
  __syncthreads();
  for (unsigned first = begin; first < end; first += kWarpLanes) {
    const unsigned i = first + lane;
    const bool valid = i < end;
    const std::uint32_t key = valid ? pass.KeyAt(i) : 0;
    const unsigned digit = pass.DigitOf(key);
    unsigned peers = __ballot_sync(kAllLanes, valid);  // becomes the lanes with the same digit
    for (int bit = 0; bit < pass.digit_bits; ++bit) {
      const bool set = (digit >> bit & 1) != 0;
      const unsigned with = __ballot_sync(kAllLanes, set);
      peers &= set ? with : ~with;
    }
    const unsigned earlier = __popc(peers & ((1u << lane) - 1));
    unsigned at = 0;
    if (valid) at = places[warp][digit] + earlier;
    __syncwarp();
    if (valid && earlier == 0) places[warp][digit] += __popc(peers);
    __syncwarp();
    if (valid) {
      pass.keys_out[at] = key;
      pass.rows_out[at] = pass.rows_in != nullptr ? pass.rows_in[i] : i;
    }
  }
}

std::int64_t Rounded(std::int64_t count, std::int64_t multiple) {
  return CeilDivide(count, multiple) * multiple;
}
std::int64_t TileRows(std::int64_t rows) {
  constexpr std::int64_t kLeast = 4 * kThreads;
  return std::max(Rounded((rows + kMostTiles - 1) / kMostTiles, kThreads), kLeast);
}
// Elements of each of the four arrays of keys and rows, rounded up to 16 bytes.
std::int64_t Room(std::int64_t rows) { return Rounded(rows, 4); }

// Bytes of device memory that SortTokens needs.
std::int64_t TokenOrderBytes(std::int64_t rows) {
  return (4 * Room(rows) + kMostTiles * kMostBins) *
         static_cast<std::int64_t>(sizeof(std::uint32_t));
}

// Queues a sort of `rows` rows (at most 2^31) by token. The result lies in `scratch`:
// TokenOrderBytes(rows) bytes, aligned to 16.
TokenOrder SortTokens(const device::Stream& stream, const RowTokens& tokens, std::int64_t rows,
                      const TokenSlice& slice, std::byte* scratch) {
  auto* const memory = reinterpret_cast<std::uint32_t*>(scratch);
  std::uint32_t* const keys[2] = {memory, memory + Room(rows)};
  std::uint32_t* const order[2] = {memory + 2 * Room(rows), memory + 3 * Room(rows)};
  const int bits = std::max(static_cast<int>(std::bit_width(slice.count)), 1);
  const int passes = (bits + kMostDigitBits - 1) / kMostDigitBits;
  const int digit_bits = (bits + passes - 1) / passes;
  const std::int64_t tile_rows = TileRows(rows);
  const dim3 tiles(static_cast<unsigned>((rows + tile_rows - 1) / tile_rows));
  const cudaStream_t queue = device::cuda::Queue(stream);
  for (int number = 0; number < passes; ++number) {
    const int to = number % 2;
    const SortPass pass{tokens,
                        slice,
                        number == 0 ? nullptr : keys[1 - to],
                        number == 0 ? nullptr : order[1 - to],
                        keys[to],
                        order[to],
                        memory + 4 * Room(rows),
                        static_cast<unsigned>(rows),
                        static_cast<unsigned>(tile_rows),
                        number * digit_bits,
                        digit_bits};
    device::cuda::Launch(queue, CountKernel, tiles, dim3(kThreads), 0, pass);
    device::cuda::Launch(queue, ScatterKernel, tiles, dim3(kThreads), 0, pass);
  }
  const int last = (passes - 1) % 2;
  return {keys[last], order[last]};
}

// Backward pass: adds to dweight, or to dpositions with documents. Rows are sorted by token, then
// cut into pieces of equal size, one per block, so that no block has to sum all rows of a frequent
// token. A block adds up each token's run within its piece; runs that cross pieces are combined
// afterwards, in order. No atomics.

constexpr int kMostPiece = 512, kLeastPiece = 16;  // rows
constexpr int kMostThreads = 256;
constexpr unsigned kBatch = 4;  // rows loaded at once
constexpr std::uint32_t kNoKey = std::numeric_limits<std::uint32_t>::max();

template <typename T>
struct Gradient {
  TokenOrder order;
  unsigned rows, piece;   // number of sorted rows, and of rows per piece
  std::uint32_t outside;  // key of tokens outside of this slice
  SumOf<T> scale;
  View<const T> dout;      // [rows, dim]
  View<SumOf<T>> dweight;  // [slice of the vocabulary, dim]
  // Per piece: sums of a run begun in an earlier piece, and of one that goes on in the next.
  SumOf<T>*heads, *tails;  // [pieces, dim]
  std::int64_t dim;

  __device__ __forceinline__ std::uint32_t KeyAt(unsigned i) const {
    return i < rows ? order.keys[i] : kNoKey;
  }
};

template <int kWidth, typename T>
__device__ __forceinline__ void AddToWeight(const Gradient<T>& of, std::uint32_t key,
                                            std::int64_t column, const SumOf<T> (&sums)[kWidth]) {
  SumOf<T>* const to = of.dweight.At(key, column);
  SumOf<T> values[kWidth];
  Load<kWidth>(to, values);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] += of.scale * sums[i];
  Store<kWidth>(values, to);
}

// One block per piece and kWidth * blockDim.x columns; grid: [pieces, column blocks].
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads) PieceKernel(const Gradient<T> of) {
  using S = SumOf<T>;
  __shared__ std::uint32_t keys[kMostPiece + 2], rows[kMostPiece];  // keys[0]: before the piece
  const unsigned begin = blockIdx.x * of.piece, end = min(begin + of.piece, of.rows);
  for (unsigned i = threadIdx.x; i < end - begin + 2; i += blockDim.x) {
    keys[i] = begin + i == 0 ? kNoKey : of.KeyAt(begin + i - 1);
    if (i < end - begin) rows[i] = of.order.rows[begin + i];
  }
  __syncthreads();
  const std::int64_t column = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kWidth;
  if (column >= of.dim) return;
  std::uint32_t key = keys[1];
  bool continued = keys[0] == key;
  S sums[kWidth] = {};
  const unsigned count = end - begin;
  for (unsigned first = 0; first < count; first += kBatch) {
    // Loads several rows before any is used, even if some turn out not to be needed.
    Pack<T, kWidth> batch[kBatch];
#pragma unroll
    for (unsigned j = 0; j < kBatch; ++j) {
      batch[j] = LoadPack<kWidth>(of.dout.At(rows[min(first + j, count - 1)], column));
    }
#pragma unroll
    for (unsigned j = 0; j < kBatch; ++j) {
      const unsigned i = first + j;
      if (i >= count || key == of.outside) return;  // the largest key: later rows have it too
      S values[kWidth];
      WidenPack(batch[j], values);
      cuda::Add(sums, values);
      const std::uint32_t next = keys[i + 2];
      if (next == key && i + 1 < count) continue;
      if (continued) {
        Store<kWidth>(sums, of.heads + blockIdx.x * of.dim + column);
      } else if (next == key) {
        Store<kWidth>(sums, of.tails + blockIdx.x * of.dim + column);
      } else {
        AddToWeight<kWidth>(of, key, column, sums);
      }
      key = next;
      continued = false;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sums[k] = 0;
    }
  }
}

// Number of sorted rows whose key is at most `key`.
template <typename T>
__device__ unsigned RowsUpTo(const Gradient<T>& of, std::uint32_t key) {
  unsigned low = 0, high = of.rows;
  while (low < high) {
    const unsigned middle = low + (high - low) / 2;
    if (of.order.keys[middle] <= key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// For a run that begins in the block's piece and goes on: adds tail, then later heads, in order.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads) RunsKernel(const Gradient<T> of) {
  using S = SumOf<T>;
  const unsigned begin = blockIdx.x * of.piece, end = min(begin + of.piece, of.rows);
  const std::uint32_t key = of.KeyAt(end - 1);
  if (key == of.outside || of.KeyAt(end) != key) return;
  if (begin > 0 && of.KeyAt(begin - 1) == key) return;  // the run began in an earlier piece
  const std::int64_t column = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kWidth;
  if (column >= of.dim) return;
  const unsigned last = (RowsUpTo(of, key) - 1) / of.piece;
  S sums[kWidth];
  Load<kWidth>(of.tails + blockIdx.x * of.dim + column, sums);
#pragma unroll 4
  for (unsigned piece = blockIdx.x + 1; piece <= last; ++piece) {
    S values[kWidth];
    Load<kWidth>(of.heads + piece * of.dim + column, values);
    cuda::Add(sums, values);
  }
  AddToWeight<kWidth>(of, key, column, sums);
}

std::int64_t RoundedBytes(std::int64_t bytes) { return Rounded(bytes, 256); }

// How the rows are cut: `slab` rows at a time, since scratch is limited, in pieces of `piece` rows.
struct Cut {
  std::int64_t slab = 0, piece = 0, pieces = 0;
};
Cut CutRows(std::int64_t rows, std::int64_t edge_bytes, std::int64_t scratch_bytes) {
  constexpr std::int64_t kMostSlab = 1 << 18;
  Cut cut;
  cut.slab = std::min(rows, kMostSlab);
  const std::int64_t room = scratch_bytes - RoundedBytes(TokenOrderBytes(cut.slab));
  const std::int64_t most = std::max<std::int64_t>(room / edge_bytes, 1);
  cut.slab = std::min(cut.slab, most * kMostPiece);
  const auto least = static_cast<std::uint64_t>((cut.slab + most - 1) / most);
  cut.piece = std::max<std::int64_t>(static_cast<std::int64_t>(std::bit_ceil(least)), kLeastPiece);
  cut.pieces = (cut.slab + cut.piece - 1) / cut.piece;
  return cut;
}

template <typename T, int kWidth>
void AddSlab(const device::Stream& stream, const Gradient<T>& gradient) {
  const std::int64_t chunks = gradient.dim / kWidth;
  const auto threads =
      static_cast<unsigned>(std::min<std::int64_t>((chunks + 31) / 32 * 32, kMostThreads));
  const dim3 blocks((gradient.rows + gradient.piece - 1) / gradient.piece,
                    static_cast<unsigned>((chunks + threads - 1) / threads));
  const cudaStream_t queue = device::cuda::Queue(stream);
  device::cuda::Launch(queue, PieceKernel<T, kWidth>, blocks, dim3(threads), 0, gradient);
  if (blocks.x > 1) {
    device::cuda::Launch(queue, RunsKernel<T, kWidth>, blocks, dim3(threads), 0, gradient);
  }
}

template <typename T, int kWidth>
void AddRows(const device::Stream& stream, const RowTokens& tokens, std::int32_t first,
             double scale, const Matrix& dout, const Matrix& dweight) {
  using S = SumOf<T>;
  const std::int64_t dim = dout.columns;
  const auto edge_bytes = 2 * dim * static_cast<std::int64_t>(sizeof(S));
  const Cut cut = CutRows(dout.rows, edge_bytes, stream.gpu->scratch_bytes);
  const TokenSlice slice{first, static_cast<std::uint32_t>(dweight.rows)};
  std::byte* const scratch = stream.gpu->scratch;
  S* const edges = reinterpret_cast<S*>(scratch + RoundedBytes(TokenOrderBytes(cut.slab)));
  for (std::int64_t begin = 0; begin < dout.rows; begin += cut.slab) {
    const Matrix slab = dout.Rows(begin, std::min(cut.slab, dout.rows - begin));
    const TokenOrder order = SortTokens(stream, tokens.From(begin), slab.rows, slice, scratch);
    AddSlab<T, kWidth>(
        stream, {order, static_cast<unsigned>(slab.rows), static_cast<unsigned>(cut.piece),
                 slice.count, static_cast<S>(scale), ViewOf<const T>(slab), ViewOf<S>(dweight),
                 edges, edges + cut.pieces * dim, dim});
  }
}

void AddAll(const device::Stream& stream, const RowTokens& tokens, std::int32_t first, double scale,
            const Matrix& dout, const Matrix& dweight) {
  if (dout.rows == 0 || dout.columns == 0 || dweight.rows == 0) return;
  WithVectors(dout.dtype, dout.columns, {dout, dweight}, [&](auto zero, auto width) {
    AddRows<decltype(zero), width()>(stream, tokens, first, scale, dout, dweight);
  });
}

// Sums over all sequences, one group per position: its rows.
template <typename T, int kElements>
struct PositionRows {
  using Sum = SumOf<T>;
  static constexpr int kWidth = kElements;
  View<const T> dout;  // [rows, dim]
  std::int64_t rows, length;
  DropoutPlace place;    // used for positions only
  View<Sum> dpositions;  // [all positions that occur, dim]

  __device__ __forceinline__ RowSequence Rows(unsigned group) const {
    return {group, length, (rows - group + length - 1) / length};
  }
  __device__ __forceinline__ void Term(std::int64_t row, std::int64_t column,
                                       Sum (&values)[kWidth]) const {
    Load<kWidth>(dout.At(row, column), values);
  }
  __device__ __forceinline__ void Finish(unsigned group, std::int64_t column,
                                         Sum (&sums)[kWidth]) const {
    AddInto<kWidth>(sums, dpositions.At(place.PositionOf(group), column));
  }
};

}  // namespace

void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                       double scale, const Matrix& dout, const Matrix& dweight) {
  AddAll(stream, {tokens}, first, scale, dout, dweight);
}

void PositionBackward(const device::Stream& stream, const std::int32_t* begins,
                      const Dropout& dropout, const Matrix& dout, const Matrix& dpositions) {
  if (dpositions.Empty() || dout.rows == 0) return;
  if (begins != nullptr) {  // positions restart in documents: rows are sorted by them
    return AddAll(stream, {nullptr, begins + dropout.first_row, DropoutPlace(dropout)}, 0, 1, dout,
                  dpositions);
  }
  WithVectors(dout.dtype, dout.columns, {dout, dpositions}, [&](auto zero, auto width) {
    using T = decltype(zero);
    // The first rows of the shard have each of its positions once.
    ReduceRows(stream, std::min(dropout.length, dout.rows), CeilDivide(dout.rows, dropout.length),
               dout.columns,
               PositionRows<T, width()>{ViewOf<const T>(dout), dout.rows, dropout.length,
                                        DropoutPlace(dropout), ViewOf<SumOf<T>>(dpositions)});
  });
}

}  // namespace trireme::kernels::cuda
