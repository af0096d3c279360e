// Sums and maxima over the lanes of a warp and the threads of a block, in a fixed order: every
// thread gets the same bits, run after run.
#ifndef TRIREME_SRC_KERNELS_CUDA_REDUCE_CUH_
#define TRIREME_SRC_KERNELS_CUDA_REDUCE_CUH_

#include <cuda_runtime.h>

namespace trireme::kernels::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFF;

// Threads of a block are counted along x first.
__device__ __forceinline__ int ThreadNumber() {
  return static_cast<int>((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}
__device__ __forceinline__ int ThreadCount() {
  return static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
}

struct SumOfTwo {
  template <typename S>
  __device__ __forceinline__ S operator()(S a, S b) const {
    return a + b;
  }
};
struct MaxOfTwo {
  template <typename S>
  __device__ __forceinline__ S operator()(S a, S b) const {
    return a < b ? b : a;
  }
};

// Over each group of `lanes` neighbouring lanes (a power of two, at most 32); all 32 lanes of the
// warp take part.
template <typename Combine, typename S>
__device__ __forceinline__ S LaneReduce(S value, int lanes) {
  const Combine combine;
  for (int step = lanes / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}
template <typename S>
__device__ __forceinline__ S LaneSum(S value, int lanes) {
  return LaneReduce<SumOfTwo>(value, lanes);
}
template <typename S>
__device__ __forceinline__ S WarpSum(S value) {
  return LaneReduce<SumOfTwo>(value, kWarpLanes);
}
template <typename S>
__device__ __forceinline__ S WarpMax(S value) {
  return LaneReduce<MaxOfTwo>(value, kWarpLanes);
}

// The sum over the block, whose threads are whole warps; all of them take part. shared: room for as
// many values as there are warps, free again when the threads have met at another barrier.
template <typename S>
__device__ __forceinline__ S BlockSum(S value, S* shared) {
  value = WarpSum(value);
  const int warps = ThreadCount() / kWarpLanes;
  if (warps == 1) return value;
  const int thread = ThreadNumber();
  if (thread % kWarpLanes == 0) shared[thread / kWarpLanes] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < warps; ++warp) value += shared[warp];
  return value;
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_REDUCE_CUH_
