// Which of our own product's kernels an x86-64 CPU can run.
#include <array>
#include <string>

#include "multiply.hpp"

namespace trireme::kernels {

std::span<const CanonicalKernels> UsableCanonicalKernels() {
  static const std::array<CanonicalKernels, 3> all = {kCanonicalAvx512, kCanonicalAvx2,
                                                      kCanonicalPortable};
  static const std::size_t first = [] {
    const std::string set = device::InstructionSet();
    return set == "AVX-512" ? 0 : set == "AVX2" ? 1 : 2;
  }();
  return std::span(all).subspan(first);
}

bool HasFastKernels() { return UsableCanonicalKernels().size() > 1; }

const Bf16Kernels* UsableBf16Kernels() {
  static const bool usable = !device::Bf16Instructions().empty();
  return usable ? &kBf16Avx512 : nullptr;
}

}  // namespace trireme::kernels
