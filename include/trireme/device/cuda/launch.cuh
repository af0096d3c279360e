// Kernel launches, dynamic shared memory, and instructions for which CUDA has no function: the only
// place in the program for each of these.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "trireme/device/cuda/check.hpp"

namespace trireme::device::cuda {

// Queues kernel(args...) on `blocks` x `threads` with `shared_bytes` of dynamic shared memory.
// RunError if it cannot be launched.
template <typename... P>
void Launch(cudaStream_t queue, void (*kernel)(P...), dim3 blocks, dim3 threads,
            std::size_t shared_bytes, std::type_identity_t<P>... args) {
  const auto function = reinterpret_cast<const void*>(kernel);
  AllowSharedMemory(function, shared_bytes);
  void* pointers[sizeof...(P) + 1] = {const_cast<void*>(static_cast<const void*>(&args))...};
  Check(cudaLaunchKernel(function, blocks, threads, pointers, shared_bytes, queue),
        "launch of a kernel");
}

// The block's dynamic shared memory, aligned to 128 bytes.
template <typename T>
__device__ T* SharedMemory() {
  extern __shared__ __align__(128) unsigned char trireme_shared_memory[];
  return reinterpret_cast<T*>(trireme_shared_memory);
}

// 2^x in one instruction, with relative error 2^-22; 0 below 2^-126. (exp2f and __expf take three,
// to get such small numbers right too.)
__device__ __forceinline__ float FastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x in one instruction, within one unit in the last place; 0 for |x| > 2^126.
__device__ __forceinline__ float FastReciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace trireme::device::cuda
