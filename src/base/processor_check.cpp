// Gives a message instead of an illegal instruction: before any constructor of the program runs,
// compares the processor with the instruction sets that the compiler used. Compiled for the most
// basic processor of the architecture, without the C++ library.
#include <unistd.h>

#include <cstddef>

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

// A message in a fixed buffer that keeps room for a final zero; what does not fit is cut.
class Text {
 public:
  void Add(const char* more) {
    for (; *more != '\0' && length_ + 1 < sizeof text_; ++more) text_[length_++] = *more;
  }
  void Write() const {
    if (::write(STDERR_FILENO, text_, length_) < 0) return;  // nobody is left to tell
  }

 private:
  char text_[1024] = {};
  std::size_t length_ = 0;
};

void AddNames(unsigned bits, Text& text) {
  const char* before = "";
  for (int i = 0; i < kExtensions; ++i) {
    if ((bits >> i & 1U) == 0) continue;
    text.Add(before);
    text.Add(kNames[i]);
    before = ", ";
  }
}

// Runs before all other constructors of the program, but after the C library's.
[[gnu::constructor(101)]] void RequireProcessor() {
  constexpr int kBadInput = 2;
  const unsigned lacking = kBuiltFor & ~Present();
  if (lacking == 0) return;
  char host[128] = "this host";
  ::gethostname(host, sizeof host - 1);
  Text text;
  text.Add("trireme: error: the processor of ");
  text.Add(host);
  text.Add(" lacks ");
  AddNames(lacking, text);
  text.Add(
      ", for which this program was built\n  Run it on other nodes, or build it with "
      "-DTRIREME_MARCH=x86-64-v2 (any processor since 2009) or the level of the oldest node.\n");
  text.Write();
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
