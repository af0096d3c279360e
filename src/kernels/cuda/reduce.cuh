// Sums and maxima over the lanes of a warp and the threads of a block. The order is fixed: all
// threads get the same bits in every run.
#pragma once

#include <cuda_runtime.h>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "trireme/device/cuda/launch.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFF;

// Number of a thread in its block, x fastest.
__device__ __forceinline__ int ThreadNumber() {
  return static_cast<int>((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}
__device__ __forceinline__ int ThreadCount() {
  return static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
}

struct SumOfTwo {
  template <typename S>
  __device__ __forceinline__ S operator()(S a, S b) const {
    return a + b;
  }
};
struct MaxOfTwo {
  template <typename S>
  __device__ __forceinline__ S operator()(S a, S b) const {
    return a < b ? b : a;
  }
};

// Combines `value` over each group of `lanes` neighbouring lanes (a power of two, at most 32). All
// 32 lanes of the warp must call it.
template <typename Combine, typename S>
__device__ __forceinline__ S LaneReduce(S value, int lanes) {
  const Combine combine;
  for (int step = lanes / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}
template <typename S>
__device__ __forceinline__ S LaneSum(S value, int lanes) {
  return LaneReduce<SumOfTwo>(value, lanes);
}
template <typename S>
__device__ __forceinline__ S WarpSum(S value) {
  return LaneReduce<SumOfTwo>(value, kWarpLanes);
}
template <typename S>
__device__ __forceinline__ S WarpMax(S value) {
  return LaneReduce<MaxOfTwo>(value, kWarpLanes);
}

// Sum over the block. All threads must call it; the block consists of whole warps. shared: one
// value per warp; may be reused after another barrier.
template <typename S>
__device__ __forceinline__ S BlockSum(S value, S* shared) {
  value = WarpSum(value);
  const int warps = ThreadCount() / kWarpLanes;
  if (warps == 1) return value;
  const int thread = ThreadNumber();
  if (thread % kWarpLanes == 0) shared[thread / kWarpLanes] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < warps; ++warp) value += shared[warp];
  return value;
}

// Sums over rows, for each column. Rows form fixed groups (one per block); the block's threads add
// fixed shares of a group, whose sums are added up in order. No atomics, so the bits repeat.

inline constexpr int kReduceThreads = 512;

// The `count` rows first, first + step, ...
struct RowSequence {
  std::int64_t first, step, count;
};

// Group g consists of the rows source.Rows(g). source.Term(row, column, values) yields a row's
// values in the columns [column, column + Source::kWidth); source.Finish(g, column, sums) receives
// their sums. Threads along x divide a group's columns, threads along y its rows.
template <typename Source>
__global__ void __launch_bounds__(kReduceThreads)
    ReduceRowsKernel(const Source source, std::int64_t chunks, unsigned column_tiles) {
  using S = typename Source::Sum;
  constexpr int kWidth = Source::kWidth;
  const unsigned group = blockIdx.x / column_tiles, tile = blockIdx.x - group * column_tiles;
  const std::int64_t chunk = std::int64_t{tile} * blockDim.x + threadIdx.x;
  const std::int64_t column = chunk * kWidth;
  S sums[kWidth] = {};
  if (chunk < chunks) {
    const RowSequence rows = source.Rows(group);
    const std::int64_t step = blockDim.y;
    std::int64_t k = threadIdx.y;
    // Loads several rows before the first is added.
    constexpr int kAtOnce = 4;
    for (; k + (kAtOnce - 1) * step < rows.count; k += kAtOnce * step) {
      S values[kAtOnce][kWidth];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        source.Term(rows.first + (k + r * step) * rows.step, column, values[r]);
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) Add(sums, values[r]);
    }
#pragma unroll 1
    for (; k < rows.count; k += step) {
      S values[kWidth];
      source.Term(rows.first + k * rows.step, column, values);
      Add(sums, values);
    }
  }
  S* const shared = device::cuda::SharedMemory<S>();  // [blockDim.y, blockDim.x, kWidth]
  const unsigned along = blockDim.x * kWidth;
  // Stored in 16-byte accesses: single elements of a warp would conflict in the same banks.
  S* const own = shared + threadIdx.x * kWidth;
  Pack<S, kWidth> pack;
  memcpy(&pack, sums, sizeof pack);
  StorePack(pack, own + threadIdx.y * along);
  __syncthreads();
  if (threadIdx.y > 0 || chunk >= chunks) return;
  for (unsigned y = 1; y < blockDim.y; ++y) {
    pack = LoadPack<kWidth>(own + y * along);
    Add(sums, pack.values);
  }
  source.Finish(group, column, sums);
}

// Number of threads along the rows of a block, for groups of up to `most_rows` rows.
inline unsigned ReduceThreadsOver(std::int64_t most_rows, unsigned along) {
  constexpr std::int64_t kRowsEach = 4;
  const std::int64_t wanted = std::max<std::int64_t>((most_rows + kRowsEach - 1) / kRowsEach, 1);
  return std::min(std::bit_ceil(static_cast<unsigned>(std::min<std::int64_t>(wanted, 1024))),
                  kReduceThreads / along);
}
inline unsigned ReduceThreadsAlong(std::int64_t chunks) {
  return std::bit_ceil(static_cast<unsigned>(std::min<std::int64_t>(chunks, 32)));
}

// Sums `groups` groups of up to `most_rows` rows each. columns is a multiple of Source::kWidth.
template <typename Source>
void ReduceRows(const device::Stream& stream, std::int64_t groups, std::int64_t most_rows,
                std::int64_t columns, const Source& source) {
  if (groups <= 0 || columns <= 0) return;
  const std::int64_t chunks = columns / Source::kWidth;
  const unsigned along = ReduceThreadsAlong(chunks);
  const dim3 threads(along, ReduceThreadsOver(most_rows, along));
  const auto column_tiles = static_cast<unsigned>((chunks + along - 1) / along);
  const std::size_t shared =
      std::size_t{threads.x} * threads.y * Source::kWidth * sizeof(typename Source::Sum);
  device::cuda::Launch(device::cuda::Queue(stream), ReduceRowsKernel<Source>,
                       dim3(static_cast<unsigned>(groups) * column_tiles), threads, shared, source,
                       chunks, column_tiles);
}

// The second step of a sum over blocks of rows: first[c] += the sum of column c of `partials` for c
// < split, second[c - split] += that sum for the other columns. Either may be null: not wanted.
template <typename S>
struct PartialSums {
  using Sum = S;
  static constexpr int kWidth = 1;
  const S* partials;  // [count, stride]
  std::int64_t stride, count;
  S *first, *second;
  std::int64_t split;

  __device__ __forceinline__ RowSequence Rows(unsigned) const { return {0, 1, count}; }
  __device__ __forceinline__ void Term(std::int64_t row, std::int64_t column,
                                       S (&values)[kWidth]) const {
    values[0] = partials[row * stride + column];
  }
  __device__ __forceinline__ void Finish(unsigned, std::int64_t column, S (&sums)[kWidth]) const {
    S* const to = column < split ? first : second;
    if (to != nullptr) to[column < split ? column : column - split] += sums[0];
  }
};

}  // namespace trireme::kernels::cuda
