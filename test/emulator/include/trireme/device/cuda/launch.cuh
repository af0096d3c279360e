// Launches and dynamic shared memory of the emulator; shadows the header of the same name.
#ifndef TRIREME_DEVICE_CUDA_LAUNCH_CUH_
#define TRIREME_DEVICE_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "trireme/device/cuda/check.hpp"

namespace emulator {

// Queues a kernel; `thread` runs one thread of it. `pointers`: its arguments that are pointers.
cudaError_t QueueKernel(cudaStream_t stream, const void* kernel, dim3 blocks, dim3 threads,
                        std::size_t shared_bytes, const void* const* pointers, int pointer_count,
                        std::function<void()> thread);

}  // namespace emulator

namespace trireme::device::cuda {

template <typename... P>
void Launch(cudaStream_t queue, void (*kernel)(P...), dim3 blocks, dim3 threads,
            std::size_t shared_bytes, std::type_identity_t<P>... args) {
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), shared_bytes);
  const void* pointers[sizeof...(P) + 1] = {};
  int count = 0;
  [[maybe_unused]] const auto note = [&](const auto& argument) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(argument)>>) {
      pointers[count++] = argument;
    }
  };
  (note(args), ...);
  auto thread = [kernel, values = std::tuple<P...>(args...)] { std::apply(kernel, values); };
  Check(emulator::QueueKernel(queue, reinterpret_cast<const void*>(kernel), blocks, threads,
                              shared_bytes, pointers, count, std::move(thread)),
        "launch of a kernel");
}

// The block's dynamic shared memory, on a boundary of 128 bytes.
template <typename T>
__device__ T* SharedMemory() {
  return static_cast<T*>(emulator::DynamicSharedMemory());
}

// Flushes subnormal numbers to 0.
inline float WithoutSmallest(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
inline float FastExp2(float x) { return WithoutSmallest(std::exp2(x)); }
inline float FastReciprocal(float x) { return WithoutSmallest(1.0f / x); }

}  // namespace trireme::device::cuda

#endif  // TRIREME_DEVICE_CUDA_LAUNCH_CUH_
