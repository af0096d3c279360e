// Philox lanes on other CPUs than x86-64: the portable loop.
#include "philox_lanes.hpp"

namespace trireme::kernels {

PhiloxLanesKernels UsablePhiloxLanes() { return {{&kPhiloxPortable}, 1}; }

}  // namespace trireme::kernels
