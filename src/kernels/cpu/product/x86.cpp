// Kernels of our own matrix product that an x86-64 CPU can run.
#include <array>

#include "../usable_sets.hpp"
#include "multiply.hpp"

namespace trireme::kernels {

std::span<const ProductSet> UsableProductSets() {
  static const std::array<ProductSet, 3> all = {kProductAvx512, kProductAvx2, kProductPortable};
  static const std::span<const ProductSet> usable = UsableOf(all);
  return usable;
}

bool HasFastKernels() { return UsableProductSets().size() > 1; }

const Bf16Kernels* UsableBf16Kernels() {
  static const bool usable = !device::Bf16Instructions().empty();
  return usable ? &kBf16Avx512 : nullptr;
}

}  // namespace trireme::kernels
