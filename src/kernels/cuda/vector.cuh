// 16-byte accesses (several neighbouring elements at once), and when operands allow them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>

#include "trireme/base/dtype.hpp"
#include "trireme/device/cuda/launch.cuh"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels::cuda {

// Element types of GPU kernels: the type in which they are summed, and dispatch from a run-time
// type to a compile-time one.

using Bf16 = __nv_bfloat16;

// Type in which values of type T are computed and added up: what SumTypeOf is for a Dtype.
template <typename T>
struct SumOfType {
  using Type = T;
};
template <>
struct SumOfType<Bf16> {
  using Type = float;
};
template <typename T>
using SumOf = typename SumOfType<T>::Type;

template <typename T>
__device__ __forceinline__ SumOf<T> Widen(T value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return __bfloat162float(value);
  } else {
    return value;
  }
}

// Rounds to nearest, ties to even.
template <typename T>
__device__ __forceinline__ T Narrow(SumOf<T> value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

// Calls body(T{}), T being the C++ type of `type`: chooses a kernel's type on the host.
template <typename Body>
decltype(auto) Dispatch(Dtype type, Body&& body) {
  if (type == Dtype::kBfloat16) return std::forward<Body>(body)(Bf16{});
  return DispatchDtype(type, std::forward<Body>(body));
}

// e^x in two instructions, for results that are rounded to bf16 in the end.
__device__ __forceinline__ float FastExp(float x) {
  constexpr float kLog2OfE = 1.44269504f;
  return device::cuda::FastExp2(x * kLog2OfE);
}

inline constexpr int kVectorBytes = 16;

// Elements per 16-byte access.
template <typename T>
inline constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

// kWidth neighbouring elements, moved in as few 16-byte accesses as possible.
template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T) < kVectorBytes ? kWidth * sizeof(T) : kVectorBytes) Pack {
  T values[kWidth];
};

// A type of kBytes bytes that is loaded or stored in one access.
template <int kBytes>
using WordsOf = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<kBytes == 8, uint2,
                       std::conditional_t<kBytes == 4, unsigned, unsigned short>>>;

// `from` (and `to` below) is aligned to 16 bytes, or to the pack's size if that is smaller.
// kConstant: nobody writes this memory while the kernel runs, so loads may be moved before stores.
template <int kWidth, bool kConstant = false, typename T>
__device__ __forceinline__ Pack<T, kWidth> LoadPack(const T* from) {
  using Words = WordsOf<alignof(Pack<T, kWidth>)>;
  constexpr int kCount = static_cast<int>(sizeof(Pack<T, kWidth>) / sizeof(Words));
  Words words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const Words* const at = reinterpret_cast<const Words*>(from) + i;
    words[i] = kConstant ? __ldg(at) : *at;
  }
  Pack<T, kWidth> pack;
  memcpy(&pack, words, sizeof(pack));
  return pack;
}
template <int kWidth, typename T>
__device__ __forceinline__ void StorePack(const Pack<T, kWidth>& pack, T* to) {
  using Words = WordsOf<alignof(Pack<T, kWidth>)>;
  constexpr int kCount = static_cast<int>(sizeof(Pack<T, kWidth>) / sizeof(Words));
  Words words[kCount];
  memcpy(words, &pack, sizeof(pack));
#pragma unroll
  for (int i = 0; i < kCount; ++i) reinterpret_cast<Words*>(to)[i] = words[i];
}

// StorePack for global memory that always stores 16 bytes at a time: compilers do not always
// combine StorePack's accesses.
template <int kWidth, typename T>
__device__ __forceinline__ void StoreGlobal(const Pack<T, kWidth>& pack, T* to) {
  using Words = WordsOf<alignof(Pack<T, kWidth>)>;
  constexpr int kCount = static_cast<int>(sizeof(Pack<T, kWidth>) / sizeof(Words));
  Words words[kCount];
  memcpy(words, &pack, sizeof(pack));
#pragma unroll
  for (int i = 0; i < kCount; ++i) __stcg(reinterpret_cast<Words*>(to) + i, words[i]);
}

template <typename T, int kWidth>
__device__ __forceinline__ void WidenPack(const Pack<T, kWidth>& pack, SumOf<T> (&values)[kWidth]) {
  if constexpr (std::is_same_v<T, Bf16> && kWidth % 2 == 0) {
    // Two values per word: one instruction each, where extracting single halves needs up to two.
    unsigned words[kWidth / 2];
    memcpy(words, &pack, sizeof words);
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      values[i] = __uint_as_float(words[i / 2] << 16);
      values[i + 1] = __uint_as_float(words[i / 2] & 0xFFFF0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = Widen(pack.values[i]);
  }
}
template <typename T, int kWidth>
__device__ __forceinline__ Pack<T, kWidth> NarrowPack(const SumOf<T> (&values)[kWidth]) {
  Pack<T, kWidth> pack;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) pack.values[i] = Narrow<T>(values[i]);
  return pack;
}

// A pack that is widened later. It is kept as whole words: a branch that assigned single elements
// would make the compiler take the words apart.
template <typename T, int kWidth>
struct HeldPack {
  using Words = WordsOf<alignof(Pack<T, kWidth>)>;
  Words words[sizeof(Pack<T, kWidth>) / sizeof(Words)];

  __device__ __forceinline__ void Hold(const T* from) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof words / sizeof(Words)); ++i) {
      words[i] = reinterpret_cast<const Words*>(from)[i];
    }
  }
  __device__ __forceinline__ void Widen(SumOf<T> (&values)[kWidth]) const {
    Pack<T, kWidth> pack;
    memcpy(&pack, words, sizeof pack);
    WidenPack(pack, values);
  }
};

// Load, LoadConstant: values = from[0, kWidth), in the type of sums. Store: to[0, kWidth) = values,
// rounded, `to` in global memory.
template <int kWidth, typename T>
__device__ __forceinline__ void Load(const T* from, SumOf<T> (&values)[kWidth]) {
  WidenPack(LoadPack<kWidth>(from), values);
}
template <int kWidth, typename T>
__device__ __forceinline__ void LoadConstant(const T* from, SumOf<T> (&values)[kWidth]) {
  WidenPack(LoadPack<kWidth, true>(from), values);
}
template <int kWidth, typename T>
__device__ __forceinline__ void Store(const SumOf<T> (&values)[kWidth], T* to) {
  StoreGlobal(NarrowPack<T>(values), to);
}

// values += x.
template <int kWidth, typename S>
__device__ __forceinline__ void Add(S (&values)[kWidth], const S (&x)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] += x[i];
}
// values += from[0, kWidth), loaded by LoadConstant.
template <int kWidth, typename T>
__device__ __forceinline__ void AddConstant(const T* from, SumOf<T> (&values)[kWidth]) {
  SumOf<T> x[kWidth];
  LoadConstant<kWidth>(from, x);
  Add(values, x);
}
// to += values; `values` become the sums, too.
template <int kWidth, typename S>
__device__ __forceinline__ void AddInto(S (&values)[kWidth], S* to) {
  S old[kWidth];
  Load<kWidth>(to, old);
  Add(values, old);
  Store<kWidth>(values, to);
}

// A matrix for kernels: T may be const; data is null if the matrix was Empty().
template <typename T>
struct View {
  T* data = nullptr;
  std::int64_t stride = 0;

  __device__ __forceinline__ T* At(std::int64_t row, std::int64_t column) const {
    return data + row * stride + column;
  }
};
template <typename T>
View<T> ViewOf(const Matrix& matrix) {
  return {static_cast<T*>(matrix.data), matrix.stride};
}

inline bool OnVectorBoundary(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0;
}
// Whether every row of the matrix begins at a multiple of 16 bytes; true if it is Empty().
inline bool RowsOnVectorBoundaries(const Matrix& matrix) {
  const std::size_t bytes = static_cast<std::size_t>(matrix.stride) * SizeOf(matrix.dtype);
  return OnVectorBoundary(matrix.data) && (matrix.rows <= 1 || bytes % kVectorBytes == 0);
}

// Whether all operands allow accesses of kVectorWidth<T> columns; T: the narrowest type.
template <typename T>
bool AllowVectors(std::int64_t columns, std::initializer_list<Matrix> operands) {
  return columns % kVectorWidth<T> == 0 && std::ranges::all_of(operands, RowsOnVectorBoundaries);
}

// Calls body(std::integral_constant<int, width>{}), the width of an access being kVectorWidth<T> if
// `vectors`, else 1.
template <typename T, typename Body>
void WithWidth(bool vectors, Body&& body) {
  if (vectors) {
    body(std::integral_constant<int, kVectorWidth<T>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

// Calls body(T{}, width): T is the C++ type of `type`, width the widest access that the operands
// allow.
template <typename Body>
void WithVectors(Dtype type, std::int64_t columns, std::initializer_list<Matrix> operands,
                 const Body& body) {
  Dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(columns, operands), [&](auto width) { body(zero, width); });
  });
}

// One pass over all elements of a matrix, one 16-byte access (or one element) per thread: the frame
// of all element-wise kernels.

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

// Number of threads of a block along the columns: the most that leave at most an eighth of the
// threads without work.
inline unsigned ThreadsAlong(std::int64_t chunks) {
  constexpr std::int64_t kWarp = 32, kWasteAllowed = 8;  // 1 / kWasteAllowed of the work
  if (chunks <= kWarp) return std::bit_ceil(static_cast<unsigned>(chunks));
  for (std::int64_t threads = kPassThreads; threads > kWarp; threads /= 2) {
    const std::int64_t used = (chunks + threads - 1) / threads * threads;
    if ((used - chunks) * kWasteAllowed <= chunks) return static_cast<unsigned>(threads);
  }
  return kWarp;
}

// Runs operation(row, column) over [rows, columns]; columns is a multiple of Operation::kWidth.
// Launches nothing if there are no elements.
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

// Calls operation.template Run<width>(0, index) for the elements [index, index + width) of flat
// storage: with width Operation::kWidth, and for the last few elements one by one.
template <typename Operation>
__global__ void __launch_bounds__(kPassThreads)
    FlatPassKernel(const Operation operation, std::int64_t count) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::int64_t index = thread * Operation::kWidth;
  if (index + Operation::kWidth <= count) {
    operation.template Run<Operation::kWidth>(0, index);
  } else {
    for (; index < count; ++index) operation.template Run<1>(0, index);
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

// Many ranges of flat storage in one launch. The table of ranges is passed as a kernel argument,
// since a recorded launch may neither allocate nor copy from the host.

inline constexpr int kRangeThreads = 256;

// Blocks [first_block[i], first_block[i + 1]) work on range i. The table fits into the 4 KiB that
// kernel arguments may take on every card.
template <typename Range>
struct RangeTable {
  static constexpr int kMost = static_cast<int>((4096 - 64) / (sizeof(Range) + sizeof(unsigned)));
  Range ranges[kMost];
  unsigned first_block[kMost + 1];
  int count;

  // Number of the range on which a block works.
  __device__ __forceinline__ int Find(unsigned block) const {
    int low = 0, high = count;  // first_block[low] <= block < first_block[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_block[middle] <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  unsigned Blocks() const { return first_block[count]; }
};

// Calls launch(table, first) for tables that together hold make(range) for all ranges, in order.
// blocks_of(range): thread blocks that a range needs; first: number of a table's first range.
template <typename Range, typename Source, typename Make, typename BlocksOf, typename LaunchTable>
void EachTable(std::span<const Source> ranges, Make make, BlocksOf blocks_of, LaunchTable launch) {
  using Table = RangeTable<Range>;
  for (std::size_t first = 0; first < ranges.size(); first += Table::kMost) {
    Table table{};
    table.count = static_cast<int>(std::min<std::size_t>(Table::kMost, ranges.size() - first));
    for (int i = 0; i < table.count; ++i) {
      const Source& range = ranges[first + static_cast<std::size_t>(i)];
      table.ranges[i] = make(range);
      table.first_block[i + 1] = table.first_block[i] + static_cast<unsigned>(blocks_of(range));
    }
    launch(table, first);
  }
}

}  // namespace trireme::kernels::cuda
