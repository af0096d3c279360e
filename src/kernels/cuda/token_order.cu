// token_order: a stable radix sort (least significant digit first; Knuth, vol. 3, 5.2.5) of rows by
// token. A pass counts the digits of every tile of rows, then puts each row after all rows of
// smaller digits and of its own digit in earlier tiles, warps and lanes. Atomics only count.
#include "token_order.cuh"

#include <algorithm>
#include <bit>

#include "reduce.cuh"
#include "trireme/device/cuda/launch.cuh"

namespace trireme::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kMostDigitBits = 9, kMostBins = 1 << kMostDigitBits;
constexpr std::int64_t kMostTiles = 128;

struct SortPass {
  RowTokens tokens;  // keys come from here in the first pass
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

// offsets[bin] = begin of this tile's rows of that digit.
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
  // Rows of all smaller digits: those of earlier lanes, of earlier warps, then of the thread's own.
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
  // Each warp has a stretch of the tile.
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
    unsigned peers = __ballot_sync(kAllLanes, valid);  // lanes of the same digit
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
  return (count + multiple - 1) / multiple * multiple;
}
std::int64_t TileRows(std::int64_t rows) {
  constexpr std::int64_t kLeast = 4 * kThreads;
  return std::max(Rounded((rows + kMostTiles - 1) / kMostTiles, kThreads), kLeast);
}
// Elements of one of the four arrays of keys and rows, a multiple of 16 bytes.
std::int64_t Room(std::int64_t rows) { return Rounded(rows, 4); }

}  // namespace

std::int64_t TokenOrderBytes(std::int64_t rows) {
  return (4 * Room(rows) + kMostTiles * kMostBins) *
         static_cast<std::int64_t>(sizeof(std::uint32_t));
}

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

}  // namespace trireme::kernels::cuda
