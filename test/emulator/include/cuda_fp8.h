// Stand-in for CUDA's fp8: e4m3 (largest 448, no infinity) and e5m2 (largest 57344), round to
// nearest even, saturating or not.
#ifndef TRIREME_TEST_EMULATOR_CUDA_FP8_H_
#define TRIREME_TEST_EMULATOR_CUDA_FP8_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda_bf16.h"

using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned;

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace emulator {

struct Fp8Shape {
  int mantissa_bits, least_exponent, bias;
  double largest;
};
constexpr Fp8Shape ShapeOf(__nv_fp8_interpretation_t kind) {
  return kind == __NV_E4M3 ? Fp8Shape{3, -6, 7, 448.0} : Fp8Shape{2, -14, 15, 57344.0};
}

inline __nv_fp8_storage_t ToFp8(double value, __nv_saturation_t saturation,
                                __nv_fp8_interpretation_t kind) {
  constexpr unsigned kNan = 0x7f;
  if (std::isnan(value)) return kNan;
  const Fp8Shape shape = ShapeOf(kind);
  const unsigned sign = std::signbit(value) ? 0x80u : 0u;
  double size = std::fabs(value);
  const unsigned beyond = kind == __NV_E4M3 ? kNan : 0x7cu;  // stands in for infinity
  const auto code = [&](double magnitude) {
    if (magnitude == 0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), shape.least_exponent);
    // In units of the last place; a subnormal has fewer than 2^mantissa_bits of them.
    const auto units = static_cast<unsigned>(
        std::nearbyint(std::ldexp(magnitude, shape.mantissa_bits - exponent)));
    // A carry out of the mantissa moves into the exponent by itself.
    const auto biased = static_cast<unsigned>(exponent + shape.bias - 1) << shape.mantissa_bits;
    return sign | (biased + units);
  };
  if (std::isinf(size)) size = std::numeric_limits<double>::max();
  // Halfway to what would come after the largest, or more: out of range.
  const double half_unit = std::ldexp(0.5, std::ilogb(shape.largest) - shape.mantissa_bits);
  const bool outside =
      kind == __NV_E4M3 ? size > shape.largest + half_unit : size >= shape.largest + half_unit;
  if (outside || size > shape.largest) {
    if (saturation == __NV_SATFINITE || !outside) {
      return static_cast<__nv_fp8_storage_t>(code(shape.largest));
    }
    return static_cast<__nv_fp8_storage_t>(sign | beyond);
  }
  return static_cast<__nv_fp8_storage_t>(code(size));
}

inline float FromFp8(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
  const Fp8Shape shape = ShapeOf(kind);
  const float sign = (bits & 0x80u) != 0 ? -1.0f : 1.0f;
  const int mantissa = bits & ((1 << shape.mantissa_bits) - 1);
  const int biased = (bits & 0x7f) >> shape.mantissa_bits;
  if (kind == __NV_E4M3 ? (bits & 0x7f) == 0x7f : biased == 31) {
    return kind == __NV_E5M2 && mantissa == 0 ? sign * std::numeric_limits<float>::infinity()
                                              : std::numeric_limits<float>::quiet_NaN();
  }
  const int whole = biased == 0 ? mantissa : mantissa + (1 << shape.mantissa_bits);
  return sign * std::ldexp(static_cast<float>(whole),
                           std::max(biased, 1) - shape.bias - shape.mantissa_bits);
}

}  // namespace emulator

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t kind) {
  return emulator::ToFp8(x, saturation, kind);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x,
                                                      __nv_saturation_t saturation,
                                                      __nv_fp8_interpretation_t kind) {
  return emulator::ToFp8(static_cast<float>(__nv_bfloat16(x)), saturation, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturation,
                                                     __nv_fp8_interpretation_t kind) {
  const unsigned low = emulator::ToFp8(v.x, saturation, kind);
  const unsigned high = emulator::ToFp8(v.y, saturation, kind);
  return static_cast<__nv_fp8x2_storage_t>(low | (high << 8));
}

struct __nv_fp8_e4m3 {
  __nv_fp8_storage_t __x;
  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float x) : __x(emulator::ToFp8(x, __NV_SATFINITE, __NV_E4M3)) {}
  explicit __nv_fp8_e4m3(__nv_bfloat16 x) : __nv_fp8_e4m3(static_cast<float>(x)) {}
  explicit operator float() const { return emulator::FromFp8(__x, __NV_E4M3); }
};

struct __nv_fp8_e5m2 {
  __nv_fp8_storage_t __x;
  __nv_fp8_e5m2() = default;
  explicit __nv_fp8_e5m2(float x) : __x(emulator::ToFp8(x, __NV_SATFINITE, __NV_E5M2)) {}
  explicit __nv_fp8_e5m2(__nv_bfloat16 x) : __nv_fp8_e5m2(static_cast<float>(x)) {}
  explicit operator float() const { return emulator::FromFp8(__x, __NV_E5M2); }
};

#endif  // TRIREME_TEST_EMULATOR_CUDA_FP8_H_
