// CPUs other than x86-64 make Philox lanes as the compiler vectorises them.
#include "philox_lanes.hpp"

namespace trireme::kernels {

PhiloxLanesKernels UsablePhiloxLanes() { return {{&kPhiloxPortable}, 1}; }

}  // namespace trireme::kernels
