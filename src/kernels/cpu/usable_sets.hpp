// Kernels that are compiled for several instruction sets: those that this x86-64 CPU can run.
#ifndef TRIREME_SRC_KERNELS_CPU_USABLE_SETS_HPP_
#define TRIREME_SRC_KERNELS_CPU_USABLE_SETS_HPP_

#include <array>
#include <span>
#include <string>

#include "trireme/device/stream.hpp"

namespace trireme::kernels {

// all: for AVX-512, for AVX2, and portable ones. Returns the fastest usable ones first.
template <typename Kernels>
std::span<const Kernels> UsableOf(const std::array<Kernels, 3>& all) {
  const std::string set = device::InstructionSet();
  return std::span(all).subspan(set == "AVX-512" ? 0 : set == "AVX2" ? 1 : 2);
}

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_USABLE_SETS_HPP_
