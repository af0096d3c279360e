// fp8 operands. Fp8Largest raises `largest`; Fp8Round overwrites out and raises `largest`;
// Fp8FirstScale overwrites a scale. Maxima compare the bits of magnitudes as integers: the order of
// comparisons does not matter, and NaN counts as the largest.
#include <cuda_fp8.h>

#include <algorithm>
#include <cstring>

#include "libraries.hpp"
#include "reduce.cuh"
#include "trireme/base/partition.hpp"
#include "trireme/device/cuda/launch.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr int kUnit = static_cast<int>(kFp8Unit);
// A tile that is transposed; its columns are written in whole lines of 128 bytes.
constexpr int kTileRows = 128, kTileColumns = 64;
constexpr unsigned kInfinity = 0x7F800000;

enum class Fp8Type { kE4m3, kE5m2 };

// Rounds two values into the lower 16 bits of a word, `a` into the lowest byte.
template <Fp8Type kType>
__device__ __forceinline__ unsigned RoundTwo(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE,
                                  kType == Fp8Type::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}
// Rounds four values into a word, `a` into the lowest byte.
template <Fp8Type kType>
__device__ __forceinline__ unsigned RoundFour(float a, float b, float c, float d) {
  return RoundTwo<kType>(a, b) | RoundTwo<kType>(c, d) << 16;
}

// The largest magnitudes that a thread has seen, of even and of odd elements. A NaN is kept.
class Largest {
 public:
  template <int kWidth>
  __device__ __forceinline__ void See(const Pack<Bf16, kWidth>& pack) {
    if constexpr (kWidth == 1) {
      pair_ = __hmax2_nan(pair_, __habs2(__halves2bfloat162(pack.values[0], pack.values[0])));
    } else {
      __nv_bfloat162 pairs[kWidth / 2];
      memcpy(pairs, &pack, sizeof pairs);
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) pair_ = __hmax2_nan(pair_, __habs2(pairs[i]));
    }
  }
  // The bits of the larger one, as fp32.
  __device__ __forceinline__ unsigned Bits() const {
    const unsigned even = __bfloat16_as_ushort(__low2bfloat16(pair_));
    const unsigned odd = __bfloat16_as_ushort(__high2bfloat16(pair_));
    return max(even, odd) << 16;
  }

 private:
  __nv_bfloat162 pair_ = __float2bfloat162_rn(0.0f);
};

// Raise *largest to the block's maximum, in two steps with a barrier between them: LeaveLargest
// stores each warp's maximum, then RaiseLargest's first warp updates *largest. The check before the
// atomic may read an older, lower value; then the atomic changes nothing.
__device__ __forceinline__ void LeaveLargest(const Largest& seen, unsigned (&shared)[kWarps]) {
  const unsigned mine = WarpMax(seen.Bits());
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = mine;
}
__device__ __forceinline__ void RaiseLargest(const unsigned (&shared)[kWarps], unsigned* largest) {
  if (threadIdx.x >= kWarpLanes) return;
  const unsigned whole = LaneReduce<MaxOfTwo>(shared[threadIdx.x % kWarps], kWarps);
  if (threadIdx.x > 0) return;
  const volatile unsigned* const before = largest;
  if (whole > *before) atomicMax(largest, whole);
}

// x: [rows, columns], in chunks of kWidth columns.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    LargestKernel(View<const Bf16> x, std::int64_t rows, std::int64_t columns, unsigned* largest) {
  __shared__ unsigned shared[kWarps];
  const std::int64_t chunks = columns / kWidth;
  Largest seen;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * chunks;
       i += step) {
    const std::int64_t row = i / chunks;
    seen.See(LoadPack<kWidth>(x.At(row, (i - row * chunks) * kWidth)));
  }
  LeaveLargest(seen, shared);
  __syncthreads();
  RaiseLargest(shared, largest);
}

// The scale as in Fp8::UpdateScales, but from this step's maximum alone.
__global__ void FirstScaleKernel(Fp8Scales scales, int tensor, float most) {
  const unsigned largest = scales.largest[tensor];
  float scale = 1;
  if (largest > 0 && largest < kInfinity) {
    scale = fminf(most / __uint_as_float(largest), kFp8LargestScale);
  }
  scales.scale[tensor] = scale;
  scales.inverse[tensor * kFp8InverseStep] = 1.0f / scale;
}

// out: [rows, columns] dense; each thread rounds kUnit neighbouring columns.
template <Fp8Type kType, int kWidth>
__global__ void __launch_bounds__(kThreads)
    RoundKernel(View<const Bf16> x, std::int64_t rows, std::int64_t columns, const float* scale,
                unsigned char* out, unsigned* largest) {
  __shared__ unsigned shared[kWarps];
  const std::int64_t chunks = columns / kUnit;
  const float factor = *scale;
  Largest seen;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * chunks;
       i += step) {
    const std::int64_t row = i / chunks, column = (i - row * chunks) * kUnit;
    const Bf16* const from = x.At(row, column);
    Pack<Bf16, kWidth> packs[kUnit / kWidth];
#pragma unroll
    for (int p = 0; p < kUnit / kWidth; ++p) packs[p] = LoadPack<kWidth>(from + p * kWidth);
    float values[kUnit];
#pragma unroll
    for (int p = 0; p < kUnit / kWidth; ++p) {
      seen.See(packs[p]);
      float part[kWidth];
      WidenPack(packs[p], part);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[p * kWidth + j] = part[j] * factor;
    }
    unsigned words[kUnit / 4];
#pragma unroll
    for (int w = 0; w < kUnit / 4; ++w) {
      words[w] =
          RoundFour<kType>(values[4 * w], values[4 * w + 1], values[4 * w + 2], values[4 * w + 3]);
    }
    *reinterpret_cast<uint4*>(out + row * columns + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  LeaveLargest(seen, shared);
  __syncthreads();
  RaiseLargest(shared, largest);
}

// Where kUnit rows of a tile's column are in shared memory, [column, unit]. Units are permuted for
// every eight columns, so that threads writing four rows of columns eight apart, and threads
// reading units of one column, use different banks.
constexpr int kTileUnits = kTileRows / kUnit;
__device__ __forceinline__ int UnitPlace(int column, int unit) {
  return column * kTileUnits + (unit ^ (column / 8 % kTileUnits));
}

// Byte `row` of each of four words, as one word.
__device__ __forceinline__ unsigned ByteOfEach(const unsigned* words, int row) {
  const int bits = 8 * row;
  return (words[0] >> bits & 0xffu) | (words[1] >> bits & 0xffu) << 8 |
         (words[2] >> bits & 0xffu) << 16 | (words[3] >> bits & 0xffu) << 24;
}

// Writes four rounded rows of kWidth columns in x's layout. words[j]: the four rows of column j.
template <int kWidth>
__device__ __forceinline__ void StoreRows(const unsigned (&words)[kWidth], unsigned char* to,
                                          std::int64_t columns) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if constexpr (kWidth == 8) {
      *reinterpret_cast<uint2*>(to + r * columns) =
          make_uint2(ByteOfEach(words, r), ByteOfEach(words + 4, r));
    } else {
      static_assert(kWidth == 1);
      to[r * columns] = static_cast<unsigned char>(words[0] >> 8 * r);
    }
  }
}

// out: [columns, rows] dense; a block transposes a tile through shared memory, and each thread
// rounds four rows of kWidth columns. With kPlain it also writes plain, [rows, columns] dense.
template <Fp8Type kType, int kWidth, bool kPlain>
__global__ void __launch_bounds__(kThreads)
    RoundTransposedKernel(View<const Bf16> x, std::int64_t rows, std::int64_t columns,
                          unsigned row_tiles, const float* scale, unsigned char* plain,
                          unsigned char* out, unsigned* largest) {
  constexpr int kRowsEach = 4, kChunks = kTileColumns / kWidth, kWordsOfUnit = kUnit / kRowsEach;
  __shared__ uint4 tile[kTileColumns * kTileUnits];
  __shared__ unsigned shared[kWarps];
  const float factor = *scale;
  const std::int64_t first_row = std::int64_t{blockIdx.x % row_tiles} * kTileRows;
  const std::int64_t first_column = std::int64_t{blockIdx.x / row_tiles} * kTileColumns;
  Largest seen;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows / kRowsEach * kChunks; i += kThreads) {
    const int word = i / kChunks, column = i % kChunks * kWidth;
    const std::int64_t row = first_row + word * kRowsEach;
    if (row >= rows || first_column + column >= columns) continue;
    const Bf16* const from = x.At(row, first_column + column);
    Pack<Bf16, kWidth> packs[kRowsEach];
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) packs[r] = LoadPack<kWidth>(from + r * x.stride);
    float values[kRowsEach][kWidth];
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      seen.See(packs[r]);
      WidenPack(packs[r], values[r]);
    }
    // The kWidth columns belong to the same group of eight, so they share one permutation.
    auto* const to = reinterpret_cast<unsigned*>(tile + UnitPlace(column, word / kWordsOfUnit)) +
                     word % kWordsOfUnit;
    unsigned words[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      words[j] = RoundFour<kType>(values[0][j] * factor, values[1][j] * factor,
                                  values[2][j] * factor, values[3][j] * factor);
      to[j * kTileUnits * kWordsOfUnit] = words[j];
    }
    if constexpr (kPlain) {
      StoreRows<kWidth>(words, plain + row * columns + first_column + column, columns);
    }
  }
  LeaveLargest(seen, shared);
  __syncthreads();
  const int unit = static_cast<int>(threadIdx.x) % kTileUnits;
  const std::int64_t row = first_row + unit * kUnit;
#pragma unroll
  for (int turn = 0; turn < kTileColumns * kTileUnits / kThreads; ++turn) {
    const int column = (static_cast<int>(threadIdx.x) + turn * kThreads) / kTileUnits;
    if (row >= rows || first_column + column >= columns) continue;
    *reinterpret_cast<uint4*>(out + (first_column + column) * rows + row) =
        tile[UnitPlace(column, unit)];
  }
  RaiseLargest(shared, largest);
}

// Number of blocks for a pass over `chunks`: enough to fill the card, with several chunks per
// thread.
dim3 Blocks(const device::Stream& stream, std::int64_t chunks) {
  constexpr std::int64_t kBlocksEach = 8;  // per multiprocessor
  const std::int64_t most = std::int64_t{stream.gpu->multiprocessors} * kBlocksEach;
  return dim3(static_cast<unsigned>(
      std::clamp<std::int64_t>(CeilDivide(chunks, std::int64_t{kThreads}), 1, most)));
}

template <Fp8Type kType, int kWidth>
void RoundAs(const device::Stream& stream, const Matrix& x, const float* scale, const Fp8Forms& out,
             unsigned* largest) {
  cudaStream_t queue = device::cuda::Queue(stream);
  auto* const plain = reinterpret_cast<unsigned char*>(out.plain);
  auto* const transposed = reinterpret_cast<unsigned char*>(out.transposed);
  if (transposed == nullptr) {
    return device::cuda::Launch(queue, RoundKernel<kType, kWidth>, Blocks(stream, x.Size() / kUnit),
                                dim3(kThreads), 0, ViewOf<const Bf16>(x), x.rows, x.columns, scale,
                                plain, largest);
  }
  const auto row_tiles = static_cast<unsigned>(CeilDivide(x.rows, std::int64_t{kTileRows}));
  const auto column_tiles =
      static_cast<unsigned>(CeilDivide(x.columns, std::int64_t{kTileColumns}));
  const auto launch = [&](auto* kernel) {
    device::cuda::Launch(queue, kernel, dim3(row_tiles * column_tiles), dim3(kThreads), 0,
                         ViewOf<const Bf16>(x), x.rows, x.columns, row_tiles, scale, plain,
                         transposed, largest);
  };
  if (plain == nullptr) {
    launch(RoundTransposedKernel<kType, kWidth, false>);
  } else {
    launch(RoundTransposedKernel<kType, kWidth, true>);
  }
}

}  // namespace

void Fp8Largest(const device::Stream& stream, const Matrix& x, unsigned* largest) {
  if (x.Size() == 0) return;
  WithWidth<Bf16>(AllowVectors<Bf16>(x.columns, {x}), [&](auto width) {
    device::cuda::Launch(device::cuda::Queue(stream), LargestKernel<width.value>,
                         Blocks(stream, x.Size() / width.value), dim3(kThreads), 0,
                         ViewOf<const Bf16>(x), x.rows, x.columns, largest);
  });
}

void Fp8FirstScale(const device::Stream& stream, const Fp8Scales& scales, int tensor) {
  device::cuda::Launch(device::cuda::Queue(stream), FirstScaleKernel, dim3(1), dim3(1), 0, scales,
                       tensor, LargestOf(RoleOf(tensor)));
}

void Fp8Round(const device::Stream& stream, const Matrix& x, const Fp8Scales& scales, int tensor,
              const Fp8Forms& out) {
  if (x.Size() == 0) return;
  WithWidth<Bf16>(AllowVectors<Bf16>(x.columns, {x}), [&](auto width) {
    const float* scale = scales.scale + tensor;
    unsigned* largest = scales.largest + tensor;
    if (RoleOf(tensor) == Fp8Role::kGradient) {
      RoundAs<Fp8Type::kE5m2, width.value>(stream, x, scale, out, largest);
    } else {
      RoundAs<Fp8Type::kE4m3, width.value>(stream, x, scale, out, largest);
    }
  });
}

}  // namespace trireme::kernels::cuda
