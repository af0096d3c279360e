// CUDA's error codes as exceptions. Included only by code that is built with CUDA.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "trireme/device/gpu.hpp"

namespace trireme::device::cuda {

// Throws a RunError unless code is success: "what: CUDA says no kernel image is available (209)",
// with advice for known codes.
void Check(cudaError_t code, const char* what);

// Allows a kernel to use `bytes` of dynamic shared memory on this thread's GPU, which is needed
// above 48 KiB (with its static shared memory). Asks CUDA once per kernel and card, and again for
// more bytes. RunError if a thread block cannot have so much.
void AllowSharedMemory(const void* kernel, std::size_t bytes);

inline cudaStream_t Queue(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.gpu->queue);
}

}  // namespace trireme::device::cuda
