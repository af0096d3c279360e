// bfloat16 on the host: the upper half of a float.
#ifndef TRIREME_BASE_BFLOAT16_HPP_
#define TRIREME_BASE_BFLOAT16_HPP_

#include <bit>
#include <cstdint>

namespace trireme {

// Rounds to nearest, ties to even; NaN stays NaN.
inline std::uint16_t RoundToBfloat16(float value) {
  constexpr std::uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff, kQuiet = 0x40;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & kMagnitude) > kInfinity) return static_cast<std::uint16_t>(bits >> 16 | kQuiet);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromBfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace trireme

#endif  // TRIREME_BASE_BFLOAT16_HPP_
