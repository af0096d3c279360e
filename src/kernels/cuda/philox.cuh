// The 16-bit random numbers of dropout in a kernel: the same as on the CPU, bit for bit.
#ifndef TRIREME_SRC_KERNELS_CUDA_PHILOX_CUH_
#define TRIREME_SRC_KERNELS_CUDA_PHILOX_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "trireme/base/philox.hpp"

namespace trireme::kernels::cuda {

inline constexpr int kPhiloxLanes = 8;  // 16-bit lanes of a counter

// Numbers of one counter: its four words, the lower half of each first.
struct PhiloxBits {
  std::uint32_t words[4];

  // Selections instead of an index that is known at run time only: that would put the words into
  // memory.
  __device__ __forceinline__ std::uint32_t Lane(int lane) const {
    const std::uint32_t low = (lane & 2) != 0 ? words[1] : words[0];
    const std::uint32_t high = (lane & 2) != 0 ? words[3] : words[2];
    const std::uint32_t word = (lane & 4) != 0 ? high : low;
    return (lane & 1) != 0 ? word >> 16 : word & 0xFFFF;
  }
};

__device__ __forceinline__ PhiloxBits PhiloxAt(std::uint32_t key0, std::uint32_t key1,
                                               std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                               std::uint32_t c3) {
  const PhiloxCounter words = Philox({c0, c1, c2, c3}, {key0, key1});
  return {{words[0], words[1], words[2], words[3]}};
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_PHILOX_CUH_
