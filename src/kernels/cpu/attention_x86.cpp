// Kernels of attention's tiles that an x86-64 CPU can run.
#include <array>

#include "attention_call.hpp"
#include "usable_sets.hpp"

namespace trireme::kernels {

std::span<const AttentionKernels> UsableAttentionKernels() {
  static const std::array<AttentionKernels, 3> all = {kAttentionAvx512, kAttentionAvx2,
                                                      kAttentionPortable};
  static const std::span<const AttentionKernels> usable = UsableOf(all);
  return usable;
}

}  // namespace trireme::kernels
