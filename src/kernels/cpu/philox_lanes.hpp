// Philox lanes of one row, for each instruction set. Files compiled for different instruction sets
// include this header, so it must not define inline functions that those files could share.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::kernels {

// The key, and the counter of the row's first eight lanes; c0 grows by 1 for every further eight.
struct PhiloxRow {
  std::uint32_t k0, k1;
  std::uint32_t c0, c1, c2, c3;
};

// Fills lanes[0, n rounded up to 8) with the row's 16-bit lanes: the four words of each counter,
// lower half first.
using PhiloxLanesFunction = void (*)(const PhiloxRow& row, std::int64_t n, std::uint16_t* lanes);

struct PhiloxLanesKernel {
  const char* name;
  PhiloxLanesFunction fill;
};
extern const PhiloxLanesKernel kPhiloxPortable;
extern const PhiloxLanesKernel kPhiloxAvx2;    // x86-64 with AVX2 only
extern const PhiloxLanesKernel kPhiloxAvx512;  // x86-64-v4 only

// Kernels that this CPU can run, fastest first.
std::span<const PhiloxLanesKernel> UsablePhiloxLanes();

}  // namespace trireme::kernels
