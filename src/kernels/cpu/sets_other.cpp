// Kernels of attention's tiles on other CPUs than x86-64: the portable ones.
#include "attention_call.hpp"
#include "cpu/product/multiply.hpp"
#include "philox_lanes.hpp"
#include "thin_product.hpp"

namespace trireme::kernels {

std::span<const AttentionKernels> UsableAttentionKernels() { return {&kAttentionPortable, 1}; }

// Kernels of products with few rows on other CPUs than x86-64: the portable ones.

std::span<const ThinKernels> UsableThinKernels() { return {&kThinPortable, 1}; }

// Philox lanes on other CPUs than x86-64: the portable loop.

PhiloxLanesKernels UsablePhiloxLanes() { return {{&kPhiloxPortable}, 1}; }

// Kernels of our own matrix product on other CPUs than x86-64: the portable ones.

std::span<const ProductSet> UsableProductSets() { return {&kProductPortable, 1}; }

bool HasFastKernels() { return false; }

const Bf16Kernels* UsableBf16Kernels() { return nullptr; }

}  // namespace trireme::kernels
