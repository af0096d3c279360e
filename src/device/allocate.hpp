// Memory for AllocateZeroed that is not the host's: on other devices, and planned.
#pragma once

#include <cstdint>

#include "trireme/device/stream.hpp"

namespace trireme::device {

// Zeroed memory on a device, 128-byte aligned; never null. kind: kCuda, on the GPU that this thread
// has opened. bytes: a multiple of 128, the same in both calls. RunError if there is too little, or
// if the program has no such device.
void* AllocateOn(Kind kind, std::int64_t bytes);
void FreeOn(Kind kind, void* data, std::int64_t bytes);

// An address of planned memory: 128-byte aligned, different from all live ones; any access faults.
void* PlannedAddress(std::int64_t bytes);

}  // namespace trireme::device
