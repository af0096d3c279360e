// Stand-in for CUDA's bf16: round to nearest even, arithmetic in fp32 rounded once.
#ifndef TRIREME_TEST_EMULATOR_CUDA_BF16_H_
#define TRIREME_TEST_EMULATOR_CUDA_BF16_H_

#include <bit>
#include <cstdint>

#include "cuda_runtime.h"

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct __nv_bfloat16 {
  unsigned short bits;

  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(__nv_bfloat16_raw raw) : bits(raw.x) {}
  constexpr __nv_bfloat16(float value) : bits(Round(value)) {}
  constexpr __nv_bfloat16(double value) : bits(Round(static_cast<float>(value))) {}
  constexpr __nv_bfloat16(int value) : bits(Round(static_cast<float>(value))) {}
  constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

  // Every NaN becomes 0x7fff, as on the device.
  static constexpr unsigned short Round(float value) {
    const auto whole = std::bit_cast<std::uint32_t>(value);
    if ((whole & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((whole + 0x7fffu + ((whole >> 16) & 1u)) >> 16);
  }
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

constexpr __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
constexpr __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
constexpr __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
constexpr float __bfloat162float(__nv_bfloat16 x) { return static_cast<float>(x); }
constexpr unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
constexpr __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) {
  return __nv_bfloat16(__nv_bfloat16_raw{x});
}

constexpr __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
constexpr __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
constexpr __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
constexpr __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
constexpr __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
constexpr float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y)};
}
constexpr __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
constexpr __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
constexpr float __low2float(__nv_bfloat162 v) { return static_cast<float>(v.x); }
constexpr float __high2float(__nv_bfloat162 v) { return static_cast<float>(v.y); }

constexpr __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(static_cast<float>(a) + static_cast<float>(b));
}
constexpr __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(static_cast<float>(a) - static_cast<float>(b));
}
constexpr __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(static_cast<float>(a) * static_cast<float>(b));
}
constexpr __nv_bfloat16 operator/(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(static_cast<float>(a) / static_cast<float>(b));
}
constexpr __nv_bfloat16 operator-(__nv_bfloat16 a) {
  return __nv_bfloat16(__nv_bfloat16_raw{static_cast<unsigned short>(a.bits ^ 0x8000u)});
}
constexpr bool operator==(__nv_bfloat16 a, __nv_bfloat16 b) {
  return static_cast<float>(a) == static_cast<float>(b);
}
constexpr bool operator<(__nv_bfloat16 a, __nv_bfloat16 b) {
  return static_cast<float>(a) < static_cast<float>(b);
}
constexpr bool operator>(__nv_bfloat16 a, __nv_bfloat16 b) { return b < a; }
constexpr __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) { return a + b; }
constexpr __nv_bfloat16 __hsub(__nv_bfloat16 a, __nv_bfloat16 b) { return a - b; }
constexpr __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b) { return a * b; }

constexpr __nv_bfloat162 __habs2(__nv_bfloat162 v) {
  const auto whole = [](__nv_bfloat16 x) {
    return __nv_bfloat16(__nv_bfloat16_raw{static_cast<unsigned short>(x.bits & 0x7fffu)});
  };
  return {whole(v.x), whole(v.y)};
}
// NaN wins, as 0x7fff.
constexpr __nv_bfloat16 __hmax_nan(__nv_bfloat16 a, __nv_bfloat16 b) {
  if (a != a || b != b) return __nv_bfloat16(__nv_bfloat16_raw{0x7fff});
  return a < b ? b : a;
}
constexpr __nv_bfloat162 __hmax2_nan(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)};
}

inline __nv_bfloat16 __ldg(const __nv_bfloat16* address) { return *address; }

#endif  // TRIREME_TEST_EMULATOR_CUDA_BF16_H_
