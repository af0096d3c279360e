// Memory of AllocateZeroed that is not the host's: of other devices, and of a planned one.
#pragma once

#include <cstdint>

#include "trireme/device/stream.hpp"

namespace trireme::device {

// Zeroed memory of a device on a 128-byte boundary; never null. `kind`: neither kCpu nor kPlanned.
// `bytes`: a multiple of 128, the same in both calls. RunError if there is too little, or no such
// device in this program.
//   kCuda     on the GPU that this thread has opened
void* AllocateOn(Kind kind, std::int64_t bytes);
void FreeOn(Kind kind, void* data, std::int64_t bytes);

// An address of planned memory, 128-byte aligned: distinct from all that live, and faulting.
void* PlannedAddress(std::int64_t bytes);

}  // namespace trireme::device
