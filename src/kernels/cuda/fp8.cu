// fp8 operands: Fp8Largest raises `largest`, Fp8Round overwrites out and raises `largest`,
// Fp8FirstScale overwrites a scale. Maxima are taken on the bits of magnitudes, as
// whole numbers: the order does not matter, and what is not a number is the largest of all.
#include <cuda_fp8.h>

#include <algorithm>

#include "cuda/fp8.hpp"
#include "reduce.cuh"
#include "trireme/base/partition.hpp"
#include "trireme/device/cuda/launch.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kUnit = static_cast<int>(kFp8Unit);
constexpr int kTile = 64;          // rows and columns of a transposed tile
constexpr int kPitch = kTile + 4;  // bytes: columns of a tile begin in different banks
constexpr unsigned kInfinity = 0x7F800000;

enum class Fp8Type { kE4m3, kE5m2 };

template <Fp8Type kType>
__device__ __forceinline__ unsigned char Round(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE,
                               kType == Fp8Type::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

__device__ __forceinline__ unsigned Larger(unsigned largest, float value) {
  const unsigned bits = __float_as_uint(value) & 0x7FFFFFFFu;
  return bits > largest ? bits : largest;
}

// The block's maximum into *largest. Every thread takes part.
__device__ __forceinline__ void RaiseLargest(unsigned mine, unsigned* largest) {
  __shared__ unsigned shared[kThreads / kWarpLanes];
  const unsigned whole = BlockMax(mine, shared);
  if (ThreadNumber() == 0 && whole > 0) atomicMax(largest, whole);
}

// x: [rows, columns]; chunks of kWidth columns.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    LargestKernel(View<const Bf16> x, std::int64_t rows, std::int64_t columns, unsigned* largest) {
  const std::int64_t chunks = columns / kWidth;
  unsigned mine = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * chunks;
       i += step) {
    const std::int64_t row = i / chunks;
    float values[kWidth];
    Load<kWidth>(x.At(row, (i - row * chunks) * kWidth), values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) mine = Larger(mine, values[j]);
  }
  RaiseLargest(mine, largest);
}

// As Fp8::UpdateScales has it, of this step alone.
__global__ void FirstScaleKernel(Fp8Scales scales, int tensor, float most) {
  const unsigned largest = scales.largest[tensor];
  float scale = 1;
  if (largest > 0 && largest < kInfinity) {
    scale = fminf(most / __uint_as_float(largest), kFp8LargestScale);
  }
  scales.scale[tensor] = scale;
  scales.inverse[tensor] = 1.0f / scale;
}

// out: [rows, columns] dense; a thread rounds kUnit neighbouring columns.
template <Fp8Type kType, int kWidth>
__global__ void __launch_bounds__(kThreads)
    RoundKernel(View<const Bf16> x, std::int64_t rows, std::int64_t columns, const float* scale,
                unsigned char* out, unsigned* largest) {
  const std::int64_t chunks = columns / kUnit;
  const float factor = *scale;
  unsigned mine = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * chunks;
       i += step) {
    const std::int64_t row = i / chunks, column = (i - row * chunks) * kUnit;
    Pack<unsigned char, kUnit> rounded;
#pragma unroll
    for (int part = 0; part < kUnit; part += kWidth) {
      float values[kWidth];
      Load<kWidth>(x.At(row, column + part), values);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        mine = Larger(mine, values[j]);
        rounded.values[part + j] = Round<kType>(values[j] * factor);
      }
    }
    StorePack(rounded, out + row * columns + column);
  }
  RaiseLargest(mine, largest);
}

// out: [columns, rows] dense; a block transposes a tile of kTile x kTile by way of shared memory.
template <Fp8Type kType, int kWidth>
__global__ void __launch_bounds__(kThreads)
    RoundTransposedKernel(View<const Bf16> x, std::int64_t rows, std::int64_t columns,
                          unsigned row_tiles, const float* scale, unsigned char* out,
                          unsigned* largest) {
  __shared__ __align__(16) unsigned char tile[kTile * kPitch];  // [column, row]
  const float factor = *scale;
  const std::int64_t first_row = std::int64_t{blockIdx.x % row_tiles} * kTile;
  const std::int64_t first_column = std::int64_t{blockIdx.x / row_tiles} * kTile;
  unsigned mine = 0;
  constexpr int kChunks = kTile / kWidth;  // of a row of the tile
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * kWidth;
    if (first_row + row >= rows || first_column + column >= columns) continue;
    float values[kWidth];
    Load<kWidth>(x.At(first_row + row, first_column + column), values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      mine = Larger(mine, values[j]);
      tile[(column + j) * kPitch + row] = Round<kType>(values[j] * factor);
    }
  }
  __syncthreads();
  constexpr int kUnits = kTile / kUnit;  // of a column of the tile: one a thread
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kUnits; i += kThreads) {
    const int column = i / kUnits, row = i % kUnits * kUnit;
    if (first_row + row >= rows || first_column + column >= columns) continue;
    const auto* words = reinterpret_cast<const unsigned*>(tile + column * kPitch + row);
    const uint4 sixteen = make_uint4(words[0], words[1], words[2], words[3]);
    *reinterpret_cast<uint4*>(out + (first_column + column) * rows + first_row + row) = sixteen;
  }
  RaiseLargest(mine, largest);
}

// Blocks of a pass over so many chunks: enough to fill the card, each with several chunks a thread.
dim3 Blocks(const device::Stream& stream, std::int64_t chunks) {
  constexpr std::int64_t kBlocksEach = 8;  // on a multiprocessor
  const std::int64_t most = std::int64_t{stream.gpu->multiprocessors} * kBlocksEach;
  return dim3(static_cast<unsigned>(
      std::clamp<std::int64_t>(CeilDivide(chunks, std::int64_t{kThreads}), 1, most)));
}

template <Fp8Type kType, int kWidth>
void RoundAs(const device::Stream& stream, const tensor::Matrix& x, const float* scale,
             bool transposed, unsigned char* out, unsigned* largest) {
  cudaStream_t queue = device::cuda::Queue(stream);
  if (!transposed) {
    return device::cuda::Launch(queue, RoundKernel<kType, kWidth>, Blocks(stream, x.Size() / kUnit),
                                dim3(kThreads), 0, ViewOf<const Bf16>(x), x.rows, x.columns, scale,
                                out, largest);
  }
  const auto row_tiles = static_cast<unsigned>(CeilDivide(x.rows, std::int64_t{kTile}));
  const auto column_tiles = static_cast<unsigned>(CeilDivide(x.columns, std::int64_t{kTile}));
  device::cuda::Launch(queue, RoundTransposedKernel<kType, kWidth>, dim3(row_tiles * column_tiles),
                       dim3(kThreads), 0, ViewOf<const Bf16>(x), x.rows, x.columns, row_tiles,
                       scale, out, largest);
}

}  // namespace

void Fp8Largest(const device::Stream& stream, const tensor::Matrix& x, unsigned* largest) {
  if (x.Size() == 0) return;
  WithWidth<Bf16>(AllowVectors<Bf16>(x.columns, x), [&](auto width) {
    device::cuda::Launch(device::cuda::Queue(stream), LargestKernel<width.value>,
                         Blocks(stream, x.Size() / width.value), dim3(kThreads), 0,
                         ViewOf<const Bf16>(x), x.rows, x.columns, largest);
  });
}

void Fp8FirstScale(const device::Stream& stream, const Fp8Scales& scales, int tensor) {
  device::cuda::Launch(device::cuda::Queue(stream), FirstScaleKernel, dim3(1), dim3(1), 0, scales,
                       tensor, LargestOf(RoleOf(tensor)));
}

void Fp8Round(const device::Stream& stream, const tensor::Matrix& x, const Fp8Scales& scales,
              int tensor, bool transposed, unsigned char* out) {
  if (x.Size() == 0) return;
  WithWidth<Bf16>(AllowVectors<Bf16>(x.columns, x), [&](auto width) {
    const float* scale = scales.scale + tensor;
    unsigned* largest = scales.largest + tensor;
    if (RoleOf(tensor) == Fp8Role::kGradient) {
      RoundAs<Fp8Type::kE5m2, width.value>(stream, x, scale, transposed, out, largest);
    } else {
      RoundAs<Fp8Type::kE4m3, width.value>(stream, x, scale, transposed, out, largest);
    }
  });
}

}  // namespace trireme::kernels::cuda
