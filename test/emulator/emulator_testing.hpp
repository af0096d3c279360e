// A stream and memory of an emulated card, for the emulator's own tests.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "emulator/stream.hpp"
#include "trireme/device/cuda/launch.cuh"

namespace emulator_test {

using trireme::device::cuda::Check;
using trireme::device::cuda::Launch;
using trireme::device::cuda::SharedMemory;

class Stream {
 public:
  Stream() {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void Synchronize() const { Check(cudaStreamSynchronize(stream_), "waiting for a stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault) {
    Check(cudaEventCreateWithFlags(&event_, flags), "creating an event");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Device memory with its size, not initialised.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t size) : size_(size) {
    Check(cudaMalloc(&data_, size * sizeof(T)), "allocating device memory");
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    Check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copying");
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* Data() const { return data_; }
  // Present contents; queued work is not waited for.
  std::vector<T> Values() const {
    std::vector<T> values(size_);
    Check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "copying");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

// y[i] += x[i], or y[i] = value.
__global__ inline void AddKernel(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] += x[i];
}
__global__ inline void FillKernel(float* y, float value, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = value;
}

// Death tests start the program again: the child touches what it names alone.
class EmulatorDeathTest : public testing::Test {
 protected:
  EmulatorDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

inline constexpr int kExitStatus = 134;  // of a process that the emulator ended

}  // namespace emulator_test
