// The canonical product's kernels where the CPU is no x86-64: the portable ones.
#include "canonical_multiply.hpp"

namespace trireme::kernels {

std::span<const CanonicalKernels> UsableCanonicalKernels() { return {&kCanonicalPortable, 1}; }

}  // namespace trireme::kernels
