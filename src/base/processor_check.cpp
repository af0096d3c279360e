// Gives a message instead of an illegal instruction: before any constructor of the program runs,
// compares the processor with the instruction sets that the compiler used. Compiled for the most
// basic processor of the architecture, without the C++ library.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "trireme/base/program.hpp"

namespace trireme {

namespace {

#if defined(__x86_64__)

constexpr int kExtensions = 12;
constexpr const char* kNames[kExtensions] = {
    "SSE4.2",   "POPCNT",    "AVX",       "AVX2",      "FMA",          "BMI2",
    "AVX-512F", "AVX-512BW", "AVX-512DQ", "AVX-512VL", "AVX-512-VNNI", "AVX-512-BF16"};

unsigned Present() {
  __builtin_cpu_init();
  unsigned bits = 0;
  const auto add = [&bits](int place, int there) { bits |= there != 0 ? 1U << place : 0U; };
  add(0, __builtin_cpu_supports("sse4.2"));
  add(1, __builtin_cpu_supports("popcnt"));
  add(2, __builtin_cpu_supports("avx"));
  add(3, __builtin_cpu_supports("avx2"));
  add(4, __builtin_cpu_supports("fma"));
  add(5, __builtin_cpu_supports("bmi2"));
  add(6, __builtin_cpu_supports("avx512f"));
  add(7, __builtin_cpu_supports("avx512bw"));
  add(8, __builtin_cpu_supports("avx512dq"));
  add(9, __builtin_cpu_supports("avx512vl"));
  add(10, __builtin_cpu_supports("avx512vnni"));
  add(11, __builtin_cpu_supports("avx512bf16"));
  return bits;
}

// Runs before all other constructors of the program, but after the C library's.
[[gnu::constructor(101)]] void RequireProcessor() {
  constexpr int kBadInput = 2;
  const unsigned lacking = kBuiltFor & ~Present();
  if (lacking == 0) return;
  char host[128] = "this host";
  ::gethostname(host, sizeof host - 1);
  char names[256] = {};
  for (int i = 0; i < kExtensions; ++i) {
    if ((lacking >> i & 1U) == 0) continue;
    if (names[0] != '\0') std::strcat(names, ", ");
    std::strcat(names, kNames[i]);
  }
  std::fprintf(stderr,
               "trireme: error: the processor of %s lacks %s, for which this program was built\n"
               "  Run it on other nodes, or build it with -DTRIREME_MARCH=x86-64-v2 (any processor "
               "since 2009) or the level of the oldest node.\n",
               host, names);
  ::_exit(kBadInput);
}

#endif

}  // namespace

const char* BuiltFor() {
#if defined(__x86_64__)
  constexpr unsigned kV2 = 0b11, kV3 = 0b111111, kV4 = 0b1111111111;
  if ((kBuiltFor & ~kV4) != 0) return "x86-64-v4 and more";
  if ((kBuiltFor & kV4) == kV4) return "x86-64-v4";
  if ((kBuiltFor & kV3) == kV3) return "x86-64-v3";
  return (kBuiltFor & kV2) == kV2 ? "x86-64-v2" : "x86-64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "this architecture";
#endif
}

}  // namespace trireme
