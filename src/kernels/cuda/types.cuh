// Element types of the GPU's kernels: the type of their sums, and the bridge from a run-time type
// to a compile-time one.
#ifndef TRIREME_SRC_KERNELS_CUDA_TYPES_CUH_
#define TRIREME_SRC_KERNELS_CUDA_TYPES_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "trireme/base/dtype.hpp"

namespace trireme::kernels::cuda {

using Bf16 = __nv_bfloat16;

// Type in which values of type T are computed and added up: SumTypeOf in C++.
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

// Calls body(T{}) with T the C++ type of `type`, on the host, to choose a kernel's type.
template <typename Body>
decltype(auto) Dispatch(Dtype type, Body&& body) {
  if (type == Dtype::kBfloat16) return std::forward<Body>(body)(Bf16{});
  if (type == Dtype::kFloat64) return std::forward<Body>(body)(double{});
  return std::forward<Body>(body)(float{});
}

// The same for what is of the sums' type: fp32 or fp64.
template <typename Body>
decltype(auto) DispatchSum(Dtype type, Body&& body) {
  if (type == Dtype::kFloat64) return std::forward<Body>(body)(double{});
  return std::forward<Body>(body)(float{});
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_TYPES_CUH_
