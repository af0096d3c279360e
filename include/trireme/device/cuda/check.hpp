// CUDA's error codes as exceptions. Included only by code that is built with CUDA.
#ifndef TRIREME_DEVICE_CUDA_CHECK_HPP_
#define TRIREME_DEVICE_CUDA_CHECK_HPP_

#include <cuda_runtime.h>

#include "trireme/device/gpu.hpp"

namespace trireme::device::cuda {

// RunError "what: CUDA says no kernel image is available (209)", with advice for known codes.
void Check(cudaError_t code, const char* what);

inline cudaStream_t Queue(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.gpu->queue);
}

}  // namespace trireme::device::cuda

#endif  // TRIREME_DEVICE_CUDA_CHECK_HPP_
