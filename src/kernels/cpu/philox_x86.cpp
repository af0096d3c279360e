// Philox kernels that an x86-64 CPU can run.
#include <string>

#include "philox_lanes.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

PhiloxLanesKernels UsablePhiloxLanes() {
  const std::string set = device::InstructionSet();
  if (set == "AVX-512") return {{&kPhiloxAvx512, &kPhiloxAvx2, &kPhiloxPortable}, 3};
  if (set == "AVX2") return {{&kPhiloxAvx2, &kPhiloxPortable}, 2};
  return {{&kPhiloxPortable}, 1};
}

}  // namespace trireme::kernels
