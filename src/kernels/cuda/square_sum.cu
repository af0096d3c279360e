// square_sum: overwrites sums. Squares are taken and added up in fp64: each thread its own, then
// the threads of a block, then the blocks of a range, then the ranges, each in a fixed order.
#include <cstddef>

#include "backends.hpp"
#include "ranges.cuh"
#include "reduce.cuh"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

template <typename T>
struct Range {
  std::int64_t count;
  const T* values;
  bool vectors;  // they begin on a boundary of 16 bytes
};

constexpr int kWarps = kRangeThreads / kWarpLanes;

template <int kWidth, typename T>
__device__ __forceinline__ double Squares(const T* values) {
  SumOf<T> x[kWidth];
  Load<kWidth>(values, x);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

// partials[block] = what the block's threads found in its range.
template <typename T>
__global__ void __launch_bounds__(kRangeThreads)
    SquareSumKernel(const RangeTable<Range<T>> table, double* partials) {
  __shared__ double shared[kWarps];
  constexpr int kWidth = kVectorWidth<T>;
  const int which = table.Find(blockIdx.x);
  const Range<T>& range = table.ranges[which];
  const unsigned first = table.first_block[which];
  const std::int64_t thread =
      std::int64_t{blockIdx.x - first} * kRangeThreads + static_cast<int>(threadIdx.x);
  const std::int64_t step =
      std::int64_t{table.first_block[which + 1] - first} * kRangeThreads * kWidth;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t at = thread * kWidth; at < range.count; at += step) {
    if (range.vectors && at + kWidth <= range.count) {
      sum += Squares<kWidth>(range.values + at);
    } else {
      for (std::int64_t i = at; i < at + kWidth && i < range.count; ++i) {
        sum += Squares<1>(range.values + i);
      }
    }
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// sums[range] = the sum over its blocks; one block a range.
template <typename T>
__global__ void __launch_bounds__(kRangeThreads)
    AddBlocksKernel(const RangeTable<Range<T>> table, const double* partials, double* sums) {
  __shared__ double shared[kWarps];
  double sum = 0;
  for (unsigned i = table.first_block[blockIdx.x] + threadIdx.x;
       i < table.first_block[blockIdx.x + 1]; i += kRangeThreads) {
    sum += partials[i];
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// *total = the sum of sums[0, count); one block.
__global__ void __launch_bounds__(kRangeThreads)
    AddRangesKernel(const double* sums, std::int64_t count, double* total) {
  __shared__ double shared[kWarps];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kRangeThreads) sum += sums[i];
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) *total = sum;
}

// Blocks of a range: enough to read it fast, at most as many as leave the partial sums small.
template <typename T>
std::int64_t BlocksOf(const FlatRange& range) {
  constexpr std::int64_t kAccessesEach = 8, kMost = 1024;
  constexpr std::int64_t kPerBlock = kRangeThreads * kVectorWidth<T> * kAccessesEach;
  return std::min((range.count + kPerBlock - 1) / kPerBlock, kMost);
}

template <typename T>
void SumRanges(const device::Stream& stream, std::span<const FlatRange> ranges, double* sums,
               double* partials) {
  const auto make = [](const FlatRange& range) {
    return Range<T>{range.count, static_cast<const T*>(range.values),
                    OnVectorBoundary(range.values)};
  };
  const cudaStream_t queue = device::cuda::Queue(stream);
  EachTable<Range<T>>(ranges, make, BlocksOf<T>, [&](const auto& table, std::size_t first) {
    if (table.Blocks() > 0) {
      device::cuda::Launch(queue, SquareSumKernel<T>, dim3(table.Blocks()), dim3(kRangeThreads), 0,
                           table, partials);
    }
    device::cuda::Launch(queue, AddBlocksKernel<T>, dim3(static_cast<unsigned>(table.count)),
                         dim3(kRangeThreads), 0, table, partials, sums + first);
  });
}

}  // namespace

void SquareSums(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                double* sums) {
  Dispatch(dtype, [&](auto zero) {
    SumRanges<decltype(zero)>(stream, ranges, sums, reinterpret_cast<double*>(stream.gpu->scratch));
  });
}

double SquareSum(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges) {
  // The scratch holds the total, the ranges' sums, then the blocks'.
  auto* const total = reinterpret_cast<double*>(stream.gpu->scratch);
  double* const sums = total + 1;
  Dispatch(dtype, [&](auto zero) {
    SumRanges<decltype(zero)>(stream, ranges, sums, sums + ranges.size());
  });
  device::cuda::Launch(device::cuda::Queue(stream), AddRangesKernel, dim3(1), dim3(kRangeThreads),
                       0, sums, static_cast<std::int64_t>(ranges.size()), total);
  double found = 0;
  device::CopyOut(stream, total, &found, sizeof found);
  return found;
}

}  // namespace trireme::kernels::cuda
