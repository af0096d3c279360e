// Memory of AllocateZeroed outside of the host: of a GPU, and of a planned device.
#ifndef TRIREME_SRC_DEVICE_ALLOCATE_HPP_
#define TRIREME_SRC_DEVICE_ALLOCATE_HPP_

#include <cstdint>

namespace trireme::device {

// Zeroed memory of the GPU that this thread has opened.
void* AllocateOnGpu(std::int64_t bytes);
void FreeOnGpu(void* data);

// An address of planned memory, 128-byte aligned: distinct from all that live, and faulting.
void* PlannedAddress(std::int64_t bytes);

}  // namespace trireme::device

#endif  // TRIREME_SRC_DEVICE_ALLOCATE_HPP_
