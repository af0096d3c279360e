// exp and the logistic function in a form that compilers vectorise; in fp64 those of the standard
// library.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

// Attribute for row primitives, which are compiled twice on x86-64, for AVX2 and for AVX-512, and
// chosen when the program starts.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TRIREME_CLONES __attribute__((target_clones("arch=x86-64-v4", "default")))
#else
#define TRIREME_CLONES
#endif

namespace trireme::kernels {

// exp(x) for -87 <= x <= 88 with relative error below 1.2e-7: Cephes' polynomial (Moshier 1989)
// after the reduction x = n ln 2 + r.
[[gnu::always_inline]] inline float ExpWithin(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145751953125f) - n * 1.428606765330187e-06f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<std::int32_t>(shifted) << 23) + 0x3F800000);
}

// exp(x), with x clamped to [-87, 88].
[[gnu::always_inline]] inline float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  return ExpWithin(x);
}
[[gnu::always_inline]] inline double Exp(double x) { return std::exp(x); }

// 1 / (1 + exp(-x)); unspecified for NaN, but callers multiply the result by x.
[[gnu::always_inline]] inline float Sigmoid(float x) {
  // Limits |x| to 87 by its bits: after a comparison of floats the compiler would blend in a
  // constant after every later operation.
  constexpr std::uint32_t kSign = 0x80000000;
  const auto bits = std::bit_cast<std::uint32_t>(-x);
  const auto magnitude =
      std::min(static_cast<std::int32_t>(bits & ~kSign), std::bit_cast<std::int32_t>(87.0f));
  const auto within = static_cast<std::uint32_t>(magnitude) | (bits & kSign);
  return 1.0f / (1.0f + ExpWithin(std::bit_cast<float>(within)));
}
[[gnu::always_inline]] inline double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace trireme::kernels
