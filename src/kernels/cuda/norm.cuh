// Common parts of the norms' kernels: distribution of threads over rows, and sums over a row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "reduce.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

// A block is [rows, lanes] threads: `lanes` of them (a power of two up to 32, or whole warps) share
// a row, each with up to `chunks` accesses, `lanes` accesses apart. chunks = 0: rows are too long
// to be kept in registers.
struct RowTeams {
  unsigned lanes = 1, rows = 1;
  int chunks = 0;
};

// One access per thread if a warp or less suffices, else at most kMostChunks; up to most_lanes.
inline RowTeams TeamsOf(std::int64_t accesses, int most_chunks, std::int64_t most_lanes,
                        std::int64_t block_threads) {
  RowTeams teams;
  std::int64_t lanes = 0;
  if (accesses <= kWarpLanes) {
    lanes = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(accesses, 1))));
  } else {
    const std::int64_t needed = (accesses + most_chunks - 1) / most_chunks;
    lanes = std::min((needed + kWarpLanes - 1) / kWarpLanes * kWarpLanes, most_lanes);
  }
  const std::int64_t chunks = (accesses + lanes - 1) / lanes;
  teams.chunks = chunks <= most_chunks ? static_cast<int>(chunks) : 0;
  teams.lanes = static_cast<unsigned>(lanes);
  teams.rows = static_cast<unsigned>(std::max<std::int64_t>(block_threads / lanes, 1));
  return teams;
}

// Each value becomes its sum over groups of `lanes` neighbouring lanes (a power of two; more than
// 32 count as 32). All lanes of the warp take part.
template <int kCount, typename S>
__device__ __forceinline__ void LaneSums(S (&values)[kCount], int lanes) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    if (step < lanes) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += __shfl_xor_sync(kAllLanes, values[i], step);
    }
  }
}

// Each value becomes its sum over the threads that share a row (those of one threadIdx.y). All
// threads of the block take part. shared: [warps of the block, kCount], free again when the block
// has met at another barrier.
template <int kCount, typename S>
__device__ __forceinline__ void TeamSum(S (&values)[kCount], S (*shared)[kCount]) {
  const int lanes = static_cast<int>(blockDim.x);
  LaneSums(values, lanes);
  if (lanes <= kWarpLanes) return;
  const int thread = ThreadNumber(), warps = lanes / kWarpLanes, lane = thread % kWarpLanes;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[thread / kWarpLanes][i] = values[i];
  }
  __syncthreads();
  const int first = static_cast<int>(threadIdx.y) * warps;
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = lane < warps ? shared[first + lane][i] : S(0);
  LaneSums(values, kWarpLanes);
}

// Calls body(column, chunk) for the columns of the thread: chunk < kChunks, a constant once the
// loop is unrolled; kChunks = 0: however many there are, chunk is 0.
template <int kWidth, int kChunks, typename Body>
__device__ __forceinline__ void EachAccess(std::int64_t columns, Body body) {
  if constexpr (kChunks == 0) {
    for (std::int64_t column = std::int64_t{threadIdx.x} * kWidth; column < columns;
         column += std::int64_t{blockDim.x} * kWidth) {
      body(column, 0);
    }
  } else {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const std::int64_t column = (std::int64_t{chunk} * blockDim.x + threadIdx.x) * kWidth;
      if (column < columns) body(column, chunk);
    }
  }
}

}  // namespace trireme::kernels::cuda
