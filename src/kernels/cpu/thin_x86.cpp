// Kernels of products with few rows that an x86-64 CPU can run.
#include <array>
#include <string>

#include "thin_product.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

std::span<const ThinKernels> UsableThinKernels() {
  static const std::array<ThinKernels, 3> all = {kThinAvx512, kThinAvx2, kThinPortable};
  static const std::size_t first = [] {
    const std::string set = device::InstructionSet();
    return set == "AVX-512" ? 0 : set == "AVX2" ? 1 : 2;
  }();
  return std::span(all).subspan(first);
}

}  // namespace trireme::kernels
