// Kernels that exist for several instruction sets: on CPUs other than x86-64 the portable ones.
#include "attention_call.hpp"
#include "cpu/product/multiply.hpp"
#include "philox_lanes.hpp"
#include "thin_product.hpp"

namespace trireme::kernels {

std::span<const AttentionKernels> UsableAttentionKernels() { return {&kAttentionPortable, 1}; }
std::span<const ThinKernels> UsableThinKernels() { return {&kThinPortable, 1}; }
std::span<const PhiloxLanesKernel> UsablePhiloxLanes() { return {&kPhiloxPortable, 1}; }
std::span<const ProductSet> UsableProductSets() { return {&kProductPortable, 1}; }
bool HasFastKernels() { return false; }
const Bf16Kernels* UsableBf16Kernels() { return nullptr; }

}  // namespace trireme::kernels
