// Surroundings of a kernel: qualifiers, its place in the grid, barriers, shuffles, votes,
// integer atomics. Between two of these a thread runs without interruption, in any order among the
// threads of its block.
#ifndef TRIREME_TEST_EMULATOR_DEVICE_H_
#define TRIREME_TEST_EMULATOR_DEVICE_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vector_types.h"

// One piece of code a kernel, not cut up or copied into its launch: each barrier has one address
// (mutation.hpp).
#define __global__ __attribute__((noipa))
#define __device__
#define __host__
#define __constant__
// One block runs at a time. The tag tells the emulator which variables to fill with NaN before
// each.
#define __shared__ static __attribute__((abi_tag("emulated_shared")))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

// Of the thread that runs now; constants to kernels.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;

namespace emulator {

enum class WarpOperation { kSync, kShuffle, kVote, kMatrix };

void BlockBarrier();
// The lanes in `mask` meet. kShuffle: `value` of lane `source`; kVote: one bit for each lane that
// brought a value other than 0; kMatrix: `value` is the address of a MatrixRequest.
std::uint64_t MeetInWarp(WarpOperation operation, unsigned mask, std::uint64_t value, int source);
extern int current_thread;  // of the block, x fastest
inline int CurrentLane() { return current_thread % 32; }
void* DynamicSharedMemory();

template <typename T>
T Shuffle(unsigned mask, T value, int source) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "shuffles take values of 4 or 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = MeetInWarp(WarpOperation::kShuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace emulator

inline void __syncthreads() { emulator::BlockBarrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulator::MeetInWarp(emulator::WarpOperation::kSync, mask, 0, 0);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  const int first = emulator::CurrentLane() & ~(width - 1);
  return emulator::Shuffle(mask, value, first + (source & (width - 1)));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const int lane = emulator::CurrentLane();
  const bool inside = (lane & (width - 1)) >= static_cast<int>(delta);
  return emulator::Shuffle(mask, value, inside ? lane - static_cast<int>(delta) : lane);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const int lane = emulator::CurrentLane();
  const bool inside = (lane & (width - 1)) + static_cast<int>(delta) < width;
  return emulator::Shuffle(mask, value, inside ? lane + static_cast<int>(delta) : lane);
}
// Later groups of `width` lanes are out of reach, earlier ones are not (as on the device).
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
  const int lane = emulator::CurrentLane();
  const int source = lane ^ lane_mask;
  return emulator::Shuffle(mask, value, source < (lane & ~(width - 1)) + width ? source : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(
      emulator::MeetInWarp(emulator::WarpOperation::kVote, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// Integers alone: sums of floating-point numbers in any order are not the same bits twice.
template <typename T, typename Change>
T AtomicallyChange(T* address, Change change) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
                    std::is_same_v<T, unsigned long long>,
                "atomics on int, unsigned and unsigned long long alone");
  const T old = *address;
  *address = change(old);
  return old;
}
template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return AtomicallyChange(address, [&](T old) { return old + value; });
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return AtomicallyChange(address, [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return AtomicallyChange(address, [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return AtomicallyChange(address, [&](T old) { return old | value; });
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return AtomicallyChange(address, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return AtomicallyChange(address, [&](T old) { return old == expected ? value : old; });
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}

#endif  // TRIREME_TEST_EMULATOR_DEVICE_H_
