// Kernels that exist for several instruction sets: those that this x86-64 CPU can run.
#include <array>
#include <span>
#include <string>

#include "attention_call.hpp"
#include "cpu/product/multiply.hpp"
#include "philox_lanes.hpp"
#include "thin_product.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

// all: kernels for AVX-512, AVX2, and portable ones. Returns those that the CPU runs, best first.
template <typename Kernels>
std::span<const Kernels> UsableOf(const std::array<Kernels, 3>& all) {
  const std::string set = device::InstructionSet();
  return std::span(all).subspan(set == "AVX-512" ? 0 : set == "AVX2" ? 1 : 2);
}

std::span<const AttentionKernels> UsableAttentionKernels() {
  static const std::array<AttentionKernels, 3> all = {kAttentionAvx512, kAttentionAvx2,
                                                      kAttentionPortable};
  static const std::span<const AttentionKernels> usable = UsableOf(all);
  return usable;
}

std::span<const ThinKernels> UsableThinKernels() {
  static const std::array<ThinKernels, 3> all = {kThinAvx512, kThinAvx2, kThinPortable};
  static const std::span<const ThinKernels> usable = UsableOf(all);
  return usable;
}

std::span<const PhiloxLanesKernel> UsablePhiloxLanes() {
  static const std::array<PhiloxLanesKernel, 3> all = {kPhiloxAvx512, kPhiloxAvx2, kPhiloxPortable};
  static const std::span<const PhiloxLanesKernel> usable = UsableOf(all);
  return usable;
}

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
