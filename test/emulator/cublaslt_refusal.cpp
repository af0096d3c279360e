// IsRefused: a hash mixed with the seed, as a part of a hundred.
#include "cublaslt_refusal.hpp"

#include <string>

#include "settings.hpp"
#include "stream.hpp"

namespace emulator::cublaslt {
namespace {

std::uint64_t Checked(std::uint64_t percent) {
  if (percent <= 100) return percent;
  Die("TRIREME_EMULATOR_CUBLASLT_REFUSE=" + std::to_string(percent) + " is no part of a hundred");
}

std::uint64_t& Percent() {
  static std::uint64_t percent = Checked(Number("TRIREME_EMULATOR_CUBLASLT_REFUSE", 0));
  return percent;
}

// Finalizer of splitmix64 (S. Vigna).
std::uint64_t Mixed(std::uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebULL;
  return bits ^ bits >> 31;
}

}  // namespace

void RefuseEpilogues(std::uint64_t percent) { Percent() = Checked(percent); }

bool VariesSums() {
  static const bool vary = Number("TRIREME_EMULATOR_CUBLASLT_VARY", 0) != 0;
  return vary;
}

bool IsRefused(std::uint64_t hash) {
  static const std::uint64_t seed = Mixed(Number("TRIREME_EMULATOR_SEED", 1));
  return Mixed(hash ^ seed) % 100 < Percent();
}

}  // namespace emulator::cublaslt
