// Which of the kernels of attention's tiles an x86-64 CPU can run.
#include <string>

#include "attention_kernels.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

const AttentionKernels& UsableAttentionKernels() {
  static const AttentionKernels& best = []() -> const AttentionKernels& {
    const std::string set = device::InstructionSet();
    return set == "AVX-512" ? kAttentionAvx512
           : set == "AVX2"  ? kAttentionAvx2
                            : kAttentionPortable;
  }();
  return best;
}

}  // namespace trireme::kernels
