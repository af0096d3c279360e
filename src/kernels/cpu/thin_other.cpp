// Kernels of products with few rows on other CPUs than x86-64: the portable ones.
#include "thin_product.hpp"

namespace trireme::kernels {

std::span<const ThinKernels> UsableThinKernels() { return {&kThinPortable, 1}; }

}  // namespace trireme::kernels
