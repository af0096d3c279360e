// Kernels of products with few rows that an x86-64 CPU can run.
#include <array>

#include "thin_product.hpp"
#include "usable_sets.hpp"

namespace trireme::kernels {

std::span<const ThinKernels> UsableThinKernels() {
  static const std::array<ThinKernels, 3> all = {kThinAvx512, kThinAvx2, kThinPortable};
  static const std::span<const ThinKernels> usable = UsableOf(all);
  return usable;
}

}  // namespace trireme::kernels
