// Kernels of attention's tiles on other CPUs than x86-64: the portable ones.
#include "attention_call.hpp"

namespace trireme::kernels {

std::span<const AttentionKernels> UsableAttentionKernels() { return {&kAttentionPortable, 1}; }

}  // namespace trireme::kernels
