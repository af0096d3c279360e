// Names of devices, threads of a process, and instruction sets of its CPU.
#include "trireme/device/stream.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <fstream>

namespace trireme::device {

namespace {

// The matrix library allocates and frees packing buffers in every product. If they went back to the
// system each time, clearing and mapping their pages again would cost an eighth of a training step.
void KeepFreedMemory() {
  constexpr int kLargest = 32 << 20;  // the largest M_MMAP_THRESHOLD that glibc accepts
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace

const char* NameOf(Kind kind) {
  constexpr std::array kNames = {"cpu", "cuda", "planned"};
  return kNames.at(static_cast<std::size_t>(kind));
}

int RequestedThreads(int requested) {
  if (requested > 0) return requested;
  // OpenMP has parsed the variable already (it may be a list for nested regions).
  const char* variable = std::getenv("OMP_NUM_THREADS");
  return variable != nullptr && *variable != '\0' ? omp_get_max_threads() : 0;
}

int ConfigureThreads(int requested, int share) {
  const int decided = RequestedThreads(requested);
  const int threads = std::max(1, decided > 0 ? decided : share);
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  KeepFreedMemory();
  return threads;
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string InstructionSet() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return "AVX-512";
  }
  if (__builtin_cpu_supports("avx2")) return "AVX2";
  return "baseline";
#elif defined(__aarch64__)
  return "NEON";
#else
  return "baseline";
#endif
}

std::string Bf16Instructions() {
#if defined(__x86_64__)
  // Leaf 7: subleaf 0 EDX bit 22 means AMX-BF16, subleaf 1 EAX bit 5 means AVX512-BF16. The matrix
  // library itself asks the operating system for AMX's tile state.
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (InstructionSet() != "AVX-512" || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return "";
  const bool amx = (d >> 22 & 1) != 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a >> 5 & 1) == 0) return "";
  return amx ? "AMX" : "AVX512-BF16";
#else
  return "";
#endif
}

}  // namespace trireme::device
