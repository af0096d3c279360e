// Sums over rows, added to `sums`. The shape and the number of multiprocessors decide how rows are
// cut into blocks; the blocks' sums are added up in order.
#include <cstddef>

#include "backends.hpp"
#include "reduce.cuh"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

// Sums over blocks of consecutive rows: the sum of block g overwrites row g of `to`. With `add` (a
// single block) it is added to `to`.
template <typename T, int kElements>
struct RowBlocks {
  using Sum = SumOf<T>;
  static constexpr int kWidth = kElements;
  View<const T> x;  // [rows, columns]
  std::int64_t rows;
  unsigned blocks;
  View<Sum> to;  // [blocks, columns]
  bool add;

  __device__ __forceinline__ RowSequence Rows(unsigned group) const {
    const std::int64_t begin = rows * group / blocks;
    return {begin, 1, rows * (group + 1) / blocks - begin};
  }
  __device__ __forceinline__ void Term(std::int64_t row, std::int64_t column,
                                       Sum (&values)[kWidth]) const {
    Load<kWidth>(x.At(row, column), values);
  }
  __device__ __forceinline__ void Finish(unsigned group, std::int64_t column,
                                         Sum (&sums)[kWidth]) const {
    if (add) return AddInto<kWidth>(sums, to.At(group, column));
    Store<kWidth>(sums, to.At(group, column));
  }
};

// Number of blocks of rows: enough to keep the GPU busy, but each of at least kLeastRows rows.
std::int64_t BlocksOfRows(const device::GpuContext& gpu, std::int64_t rows, std::int64_t chunks,
                          std::int64_t row_bytes) {
  constexpr std::int64_t kLeastRows = 64, kBlocksAProcessor = 4;
  const std::int64_t along = ReduceThreadsAlong(chunks);
  const std::int64_t tiles = (chunks + along - 1) / along;
  const std::int64_t busy = (kBlocksAProcessor * gpu.multiprocessors + tiles - 1) / tiles;
  const std::int64_t room = gpu.scratch_bytes / row_bytes;
  return std::max<std::int64_t>(std::min({rows / kLeastRows, busy, room}), 1);
}

}  // namespace

void ColumnSum(const device::Stream& stream, const Matrix& x, const Matrix& sums, const Matrix&) {
  if (x.rows == 0 || x.columns == 0) return;
  WithVectors(x.dtype, x.columns, {x, sums}, [&](auto zero, auto width) {
    using T = decltype(zero);
    using S = SumOf<T>;
    const std::int64_t n = x.columns;
    const std::int64_t blocks =
        BlocksOfRows(*stream.gpu, x.rows, n / width(), n * static_cast<std::int64_t>(sizeof(S)));
    S* const partials = reinterpret_cast<S*>(stream.gpu->scratch);
    const bool direct = blocks == 1;
    const View<S> to{direct ? sums.As<S>() : partials, n};
    ReduceRows(stream, blocks, CeilDivide(x.rows, blocks), n,
               RowBlocks<T, width()>{ViewOf<const T>(x), x.rows, static_cast<unsigned>(blocks), to,
                                     direct});
    if (direct) return;
    ReduceRows(stream, 1, blocks, n, PartialSums<S>{partials, n, blocks, sums.As<S>(), nullptr, n});
  });
}

// Sums of squares; overwrite their results. Squares are computed and added up in fp64: per thread,
// then over the block's threads, a range's blocks and the ranges, each in a fixed order.

namespace {

template <typename T>
struct Range {
  std::int64_t count;
  const T* values;
  bool vectors;  // values are aligned to 16 bytes
};

constexpr int kWarps = kRangeThreads / kWarpLanes;

template <typename T, int kWidth>
__device__ __forceinline__ void AddSquares(const SumOf<T> (&x)[kWidth], double& sum) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto value = static_cast<double>(x[i]);
    sum += value * value;
  }
}

// Sum of squares of the whole accesses of one thread: at `at`, at + step, ..., as long as they end
// by `end`. Loads kCount of them before the first is added. Moves `at` past them.
template <int kWidth, typename T>
__device__ __forceinline__ double SumOfAccesses(const T* values, std::int64_t end,
                                                std::int64_t step, std::int64_t& at) {
  constexpr int kCount = 4;
  double sum = 0;
  for (; at + (kCount - 1) * step + kWidth <= end; at += kCount * step) {
    SumOf<T> x[kCount][kWidth];
#pragma unroll
    for (int i = 0; i < kCount; ++i) Load<kWidth>(values + at + i * step, x[i]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) AddSquares<T>(x[i], sum);
  }
  for (; at + kWidth <= end; at += step) {
    SumOf<T> x[kWidth];
    Load<kWidth>(values + at, x);
    AddSquares<T>(x, sum);
  }
  return sum;
}

// partials[block] = sum over what the block's threads read of its range.
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
  std::int64_t at = thread * kWidth;
  double sum = range.vectors ? SumOfAccesses<kWidth>(range.values, range.count, step, at) : 0;
  // The remainder, or a whole range without vectors, in the same order.
  for (; at < range.count; at += step) {
    const std::int64_t end = at + kWidth < range.count ? at + kWidth : range.count;
#pragma unroll 1
    for (std::int64_t i = at; i < end; ++i) {
      SumOf<T> x[1];
      Load<1>(range.values + i, x);
      AddSquares<T>(x, sum);
    }
  }
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// sums[range] = sum over the range's partials; one block per range.
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

// *total = sum of sums[0, count), in a single block.
__global__ void __launch_bounds__(kRangeThreads)
    AddRangesKernel(const double* sums, std::int64_t count, double* total) {
  __shared__ double shared[kWarps];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kRangeThreads) sum += sums[i];
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) *total = sum;
}

// Blocks for a range: enough to read it fast, at most kMost, to keep partial sums few.
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
  // Scratch holds the total, then the ranges' sums, then the partials.
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
