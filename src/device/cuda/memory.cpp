// Memory of the GPU and page-locked memory of the host, and copies.
#include <algorithm>
#include <cstring>

#include "backend.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::device::cuda {

namespace {
std::size_t Size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }
}  // namespace

void* AllocateZeroed(std::int64_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, Size(bytes)), "memory of the GPU");
  Check(cudaMemset(data, 0, Size(bytes)), "clearing memory of the GPU");
  // Our queues do not wait for the one in which it is cleared.
  Check(cudaDeviceSynchronize(), "clearing memory of the GPU");
  return data;
}

void Free(void* data) { cudaFree(data); }

void* AllocatePinned(std::int64_t bytes) {
  void* data = nullptr;
  const std::size_t size = std::max<std::size_t>(Size(bytes), 1);
  Check(cudaMallocHost(&data, size), "page-locked host memory");
  std::memset(data, 0, size);
  return data;
}

void FreePinned(void* data) { cudaFreeHost(data); }

void StartCopy(void* queue, const void* from, void* to, std::int64_t bytes) {
  if (bytes == 0) return;
  Check(cudaMemcpyAsync(to, from, Size(bytes), cudaMemcpyDefault, static_cast<cudaStream_t>(queue)),
        "a copy");
}

void CopyIn(const GpuContext& gpu, const void* host, void* device, std::int64_t bytes) {
  for (std::int64_t begin = 0; begin < bytes; begin += gpu.bounce_bytes) {
    const std::int64_t piece = std::min(gpu.bounce_bytes, bytes - begin);
    std::memcpy(gpu.bounce, static_cast<const char*>(host) + begin, Size(piece));
    StartCopy(gpu.queue, gpu.bounce, static_cast<char*>(device) + begin, piece);
    Synchronise(gpu.queue);
  }
}

void CopyOut(const GpuContext& gpu, const void* device, void* host, std::int64_t bytes) {
  for (std::int64_t begin = 0; begin < bytes; begin += gpu.bounce_bytes) {
    const std::int64_t piece = std::min(gpu.bounce_bytes, bytes - begin);
    StartCopy(gpu.queue, static_cast<const char*>(device) + begin, gpu.bounce, piece);
    Synchronise(gpu.queue);
    std::memcpy(static_cast<char*>(host) + begin, gpu.bounce, Size(piece));
  }
}

void SetZero(void* queue, void* data, std::int64_t bytes) {
  if (bytes == 0) return;
  Check(cudaMemsetAsync(data, 0, Size(bytes), static_cast<cudaStream_t>(queue)),
        "clearing memory of the GPU");
}

}  // namespace trireme::device::cuda
