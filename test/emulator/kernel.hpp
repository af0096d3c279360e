// Limits of a launch, and the memory that the threads of a block share.
#ifndef TRIREME_TEST_EMULATOR_KERNEL_HPP_
#define TRIREME_TEST_EMULATOR_KERNEL_HPP_

#include <cstddef>
#include <functional>

#include "cuda_runtime.h"

namespace emulator {

// Most dynamic shared memory that the kernel may be launched with on the current card, in bytes.
std::size_t SharedAllowance(const void* kernel);
void SetSharedAllowance(const void* kernel, std::size_t bytes);

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_KERNEL_HPP_
