// Accesses of 16 bytes: several neighbouring elements at once, and the condition under which
// operands allow it.
#ifndef TRIREME_SRC_KERNELS_CUDA_VECTOR_CUH_
#define TRIREME_SRC_KERNELS_CUDA_VECTOR_CUH_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "trireme/device/cuda/launch.cuh"
#include "trireme/kernels/matrix.hpp"
#include "types.cuh"

namespace trireme::kernels::cuda {

// e^x in two instructions, for what is rounded to bf16 in the end.
__device__ __forceinline__ float FastExp(float x) {
  constexpr float kLog2OfE = 1.44269504f;
  return device::cuda::FastExp2(x * kLog2OfE);
}

inline constexpr int kVectorBytes = 16;

// Elements of a 16-byte access.
template <typename T>
inline constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

// kWidth neighbouring elements, moved in as few accesses as there are 16 bytes in them.
template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T) < kVectorBytes ? kWidth * sizeof(T) : kVectorBytes) Pack {
  T values[kWidth];
};

// Type of kBytes that are loaded or stored at once.
template <int kBytes>
using WordsOf = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<kBytes == 8, uint2,
                       std::conditional_t<kBytes == 4, unsigned, unsigned short>>>;

// `from` and `to` lie on boundaries of 16 bytes, or of the pack if that is smaller.
template <int kWidth, typename T>
__device__ __forceinline__ Pack<T, kWidth> LoadPack(const T* from) {
  using Words = WordsOf<alignof(Pack<T, kWidth>)>;
  constexpr int kCount = static_cast<int>(sizeof(Pack<T, kWidth>) / sizeof(Words));
  Words words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = reinterpret_cast<const Words*>(from)[i];
  Pack<T, kWidth> pack;
  memcpy(&pack, words, sizeof(pack));
  return pack;
}
// The same of memory that nobody writes while the kernel runs: such loads may pass stores.
template <int kWidth, typename T>
__device__ __forceinline__ Pack<T, kWidth> LoadConstantPack(const T* from) {
  using Words = WordsOf<alignof(Pack<T, kWidth>)>;
  constexpr int kCount = static_cast<int>(sizeof(Pack<T, kWidth>) / sizeof(Words));
  Words words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = __ldg(reinterpret_cast<const Words*>(from) + i);
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

// The same with `to` in global memory: certainly in accesses of 16 bytes, into which compilers
// do not always put StorePack's together.
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
    // Two to a word; one instruction each, where halves taken out singly need up to two.
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

// A pack that is widened later. It stays in whole words: elements that a branch assigns would be
// taken apart one by one.
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

// values = from[0, kWidth) in the type of sums, and to[0, kWidth) = values, rounded: `to` in global
// memory.
template <int kWidth, typename T>
__device__ __forceinline__ void Load(const T* from, SumOf<T> (&values)[kWidth]) {
  WidenPack(LoadPack<kWidth>(from), values);
}
template <int kWidth, typename T>
__device__ __forceinline__ void LoadConstant(const T* from, SumOf<T> (&values)[kWidth]) {
  WidenPack(LoadConstantPack<kWidth>(from), values);
}
template <int kWidth, typename T>
__device__ __forceinline__ void Store(const SumOf<T> (&values)[kWidth], T* to) {
  StoreGlobal(NarrowPack<T>(values), to);
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
// Whether every row of the matrix begins on a boundary of 16 bytes; so does one that is Empty().
inline bool RowsOnVectorBoundaries(const Matrix& matrix) {
  const std::size_t bytes = static_cast<std::size_t>(matrix.stride) * SizeOf(matrix.dtype);
  return OnVectorBoundary(matrix.data) && (matrix.rows <= 1 || bytes % kVectorBytes == 0);
}

// Whether all operands may be read and written kVectorWidth<T> columns at a time; T is the type of
// the narrowest of them.
template <typename T, typename... Matrices>
bool AllowVectors(std::int64_t columns, const Matrices&... matrices) {
  return columns % kVectorWidth<T> == 0 && (RowsOnVectorBoundaries(matrices) && ...);
}

// Calls body(std::integral_constant<int, width>{}) with the width of an access: kVectorWidth<T> or
// 1.
template <typename T, typename Body>
void WithWidth(bool vectors, Body&& body) {
  if (vectors) {
    body(std::integral_constant<int, kVectorWidth<T>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_VECTOR_CUH_
