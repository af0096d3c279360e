// Times of what is queued on a GPU, by its own clock, and operands that no cache holds.
#ifndef TRIREME_TEST_BENCHMARK_GPU_TIMING_HPP_
#define TRIREME_TEST_BENCHMARK_GPU_TIMING_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::benchmark {

using Call = std::function<void()>;  // queues something

// Device memory of one call, freed with this.
class Operands {
 public:
  explicit Operands(const device::Stream& stream) : stream_(&stream) {}

  // Numbers from -1 to 1.
  kernels::Matrix Matrix(Dtype dtype, std::int64_t rows, std::int64_t columns);
  void* Zeros(std::int64_t bytes);
  template <typename T>
  T* Copied(const std::vector<T>& host) {
    return static_cast<T*>(Copied(host.data(), static_cast<std::int64_t>(host.size() * sizeof(T))));
  }

 private:
  void* Copied(const void* host, std::int64_t bytes);
  const device::Stream* stream_;
  std::vector<device::Buffer> memory_;
};

// Seconds of one call, the median of several rounds: the calls in turn, as many as take some
// hundredths of a second. quick: each call once or twice (the emulator).
double SecondsOf(const device::Stream& stream, const std::vector<Call>& calls, bool quick);

// The same of a call that touches `bytes`: made as often, each time with operands of its own, as it
// takes for the caches to hold nothing of an operand when its turn comes again.
double SecondsCold(const device::Stream& stream, double bytes,
                   const std::function<Call(Operands&)>& make, bool quick);

// Bytes a second, read and written ones both counted, of a copy within the card's memory.
double CopySpeed(const device::Stream& stream, bool quick);

}  // namespace trireme::benchmark

#endif  // TRIREME_TEST_BENCHMARK_GPU_TIMING_HPP_
