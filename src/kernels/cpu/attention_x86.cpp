// Kernels of attention's tiles that an x86-64 CPU can run.
#include <array>
#include <string>

#include "attention_call.hpp"

namespace trireme::kernels {

std::span<const AttentionKernels> UsableAttentionKernels() {
  static const std::array<AttentionKernels, 3> all = {kAttentionAvx512, kAttentionAvx2,
                                                      kAttentionPortable};
  static const std::size_t first = [] {
    const std::string set = device::InstructionSet();
    return set == "AVX-512" ? 0 : set == "AVX2" ? 1 : 2;
  }();
  return std::span(all).subspan(first);
}

}  // namespace trireme::kernels
