// The kernels of our own product where the CPU is no x86-64: the portable ones.
#include "multiply.hpp"

namespace trireme::kernels {

std::span<const CanonicalKernels> UsableCanonicalKernels() { return {&kCanonicalPortable, 1}; }

bool HasFastKernels() { return false; }

const Bf16Kernels* UsableBf16Kernels() { return nullptr; }

}  // namespace trireme::kernels
