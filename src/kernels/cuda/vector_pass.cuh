// One pass over all elements of a matrix, one 16-byte access (or one element) per thread: the frame
// of every element-wise kernel.
#ifndef TRIREME_SRC_KERNELS_CUDA_VECTOR_PASS_CUH_
#define TRIREME_SRC_KERNELS_CUDA_VECTOR_PASS_CUH_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "trireme/device/cuda/launch.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

inline constexpr int kPassThreads = 256;

// Calls operation(row, column) for the first column of each chunk of Operation::kWidth columns.
template <typename Operation>
__global__ void __launch_bounds__(kPassThreads)
    PassKernel(const Operation operation, std::int64_t rows, std::int64_t chunks,
               unsigned column_tiles) {
  const unsigned row_tile = blockIdx.x / column_tiles;
  const unsigned column_tile = blockIdx.x - row_tile * column_tiles;
  const std::int64_t row = std::int64_t{row_tile} * blockDim.y + threadIdx.y;
  const std::int64_t chunk = std::int64_t{column_tile} * blockDim.x + threadIdx.x;
  if (row < rows && chunk < chunks) operation(row, chunk * Operation::kWidth);
}

// Threads of a block along the columns: the most that leave few without work.
inline unsigned ThreadsAlong(std::int64_t chunks) {
  constexpr std::int64_t kWarp = 32, kWasteAllowed = 8;  // an eighth
  if (chunks <= kWarp) return std::bit_ceil(static_cast<unsigned>(chunks));
  for (std::int64_t threads = kPassThreads; threads > kWarp; threads /= 2) {
    const std::int64_t used = (chunks + threads - 1) / threads * threads;
    if ((used - chunks) * kWasteAllowed <= chunks) return static_cast<unsigned>(threads);
  }
  return kWarp;
}

// operation(row, column) over [rows, columns]; columns is a multiple of Operation::kWidth. Nothing
// for no elements.
template <typename Operation>
void Pass(const device::Stream& stream, std::int64_t rows, std::int64_t columns,
          const Operation& operation) {
  if (rows <= 0 || columns <= 0) return;
  const std::int64_t chunks = columns / Operation::kWidth;
  const unsigned along = ThreadsAlong(chunks);
  const dim3 threads(along, kPassThreads / along);
  const auto column_tiles = static_cast<unsigned>((chunks + along - 1) / along);
  const auto row_tiles = static_cast<unsigned>((rows + threads.y - 1) / threads.y);
  device::cuda::Launch(device::cuda::Queue(stream), PassKernel<Operation>,
                       dim3(row_tiles * column_tiles), threads, 0, operation, rows, chunks,
                       column_tiles);
}

// Calls operation.template Run<width>(index) for the elements [index, index + width) of flat
// storage: Operation::kWidth at a time, then what is left one by one.
template <typename Operation>
__global__ void __launch_bounds__(kPassThreads)
    FlatPassKernel(const Operation operation, std::int64_t count) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::int64_t index = thread * Operation::kWidth;
  if (index + Operation::kWidth <= count) {
    operation.template Run<Operation::kWidth>(index);
  } else {
    for (; index < count; ++index) operation.template Run<1>(index);
  }
}

template <typename Operation>
void FlatPass(const device::Stream& stream, std::int64_t count, const Operation& operation) {
  if (count <= 0) return;
  constexpr std::int64_t kPerBlock = std::int64_t{kPassThreads} * Operation::kWidth;
  const auto blocks = static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  device::cuda::Launch(device::cuda::Queue(stream), FlatPassKernel<Operation>, dim3(blocks),
                       dim3(kPassThreads), 0, operation, count);
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_VECTOR_PASS_CUH_
