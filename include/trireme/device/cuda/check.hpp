// CUDA's error codes as exceptions. Included only by code that is built with CUDA.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "trireme/device/gpu.hpp"

namespace trireme::device::cuda {

// RunError "what: CUDA says no kernel image is available (209)", with advice for known codes.
void Check(cudaError_t code, const char* what);

// Lets a kernel be launched with up to `bytes` of dynamic shared memory on the thread's GPU, which
// more than 48 KiB, with the kernel's static shared memory, need. CUDA is asked once for each
// kernel and card, and again for more bytes. RunError if a block cannot have so many.
void AllowSharedMemory(const void* kernel, std::size_t bytes);

inline cudaStream_t Queue(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.gpu->queue);
}

}  // namespace trireme::device::cuda
