// embedding, backward: adds to dweight, and to dpositions of documents. Rows are sorted by token,
// then cut into pieces of equal size: a block adds up the runs of a token in its piece, so that no
// block waits for a frequent token; runs that cross the edge of a piece are put together in order.
// No atomics.
#include <algorithm>
#include <bit>
#include <limits>

#include "backends.hpp"
#include "token_order.cuh"
#include "trireme/device/cuda/launch.cuh"
#include "trireme/device/gpu.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

constexpr int kMostPiece = 512, kLeastPiece = 16;  // rows
constexpr int kMostThreads = 256;
constexpr unsigned kBatch = 4;  // rows loaded at once
constexpr std::uint32_t kNoKey = std::numeric_limits<std::uint32_t>::max();

template <typename T>
struct Gradient {
  TokenOrder order;
  unsigned rows, piece;   // of the sorted rows
  std::uint32_t outside;  // key of tokens that the slice does not have
  SumOf<T> scale;
  View<const T> dout;      // [rows, dim]
  View<SumOf<T>> dweight;  // [slice of the vocabulary, dim]
  // Of each piece: the sum of the run that began before it, and of the run that goes on after it.
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

// A block a piece and kWidth * blockDim.x columns; grid [pieces, columns].
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads) PieceKernel(const Gradient<T> of) {
  using S = SumOf<T>;
  __shared__ std::uint32_t keys[kMostPiece + 2], rows[kMostPiece];  // keys: from the one before
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
    // Many loads are under way at once, whatever becomes of them.
    Pack<T, kWidth> batch[kBatch];
#pragma unroll
    for (unsigned j = 0; j < kBatch; ++j) {
      batch[j] = LoadPack<kWidth>(of.dout.At(rows[min(first + j, count - 1)], column));
    }
#pragma unroll
    for (unsigned j = 0; j < kBatch; ++j) {
      const unsigned i = first + j;
      if (i >= count || key == of.outside) return;  // like all after it
      S values[kWidth];
      WidenPack(batch[j], values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sums[k] += values[k];
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

// The number of sorted rows whose key is at most `key`.
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

// Runs that begin in the block's piece and go on after it: the tail, then the heads, in order.
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
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sums[k] += values[k];
  }
  AddToWeight<kWidth>(of, key, column, sums);
}

std::int64_t RoundedBytes(std::int64_t bytes) {
  constexpr std::int64_t kMultiple = 256;
  return (bytes + kMultiple - 1) / kMultiple * kMultiple;
}

// Cut of the rows: `slab` at a time, since scratch is bounded, in pieces of `piece`.
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
  Dispatch(dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(dout.columns, dout, dweight), [&](auto width) {
      AddRows<T, width()>(stream, tokens, first, scale, dout, dweight);
    });
  });
}

}  // namespace

void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                       double scale, const Matrix& dout, const Matrix& dweight) {
  AddAll(stream, {tokens}, first, scale, dout, dweight);
}

void DocumentPositionBackward(const device::Stream& stream, const std::int32_t* begins,
                              const Dropout& dropout, const Matrix& dout,
                              const Matrix& dpositions) {
  AddAll(stream, {nullptr, begins + dropout.first_row, DropoutPlace(dropout)}, 0, 1, dout,
         dpositions);
}

}  // namespace trireme::kernels::cuda
