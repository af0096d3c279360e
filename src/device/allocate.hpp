// Zeroed memory of the GPU that this thread has opened: what AllocateZeroed does there.
#ifndef TRIREME_SRC_DEVICE_ALLOCATE_HPP_
#define TRIREME_SRC_DEVICE_ALLOCATE_HPP_

#include <cstdint>

namespace trireme::device {

void* AllocateOnGpu(std::int64_t bytes);
void FreeOnGpu(void* data);

}  // namespace trireme::device

#endif  // TRIREME_SRC_DEVICE_ALLOCATE_HPP_
