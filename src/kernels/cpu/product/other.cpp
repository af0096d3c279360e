// Kernels of our own matrix product on other CPUs than x86-64: the portable ones.
#include "multiply.hpp"

namespace trireme::kernels {

std::span<const ProductSet> UsableProductSets() { return {&kProductPortable, 1}; }

bool HasFastKernels() { return false; }

const Bf16Kernels* UsableBf16Kernels() { return nullptr; }

}  // namespace trireme::kernels
