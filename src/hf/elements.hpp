// Elements as files store them: fp32, fp64, bf16 and fp16, to and from the types of checkpoints.
#ifndef TRIREME_SRC_HF_ELEMENTS_HPP_
#define TRIREME_SRC_HF_ELEMENTS_HPP_

#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/dtype.hpp"

namespace trireme::hf {

enum class Stored { kF32, kF64, kBf16, kF16 };

std::optional<Stored> StoredOf(const std::string& dtype);  // nothing: another type
const char* SafetensorsName(Stored type);                  // "BF16"
constexpr std::int64_t BytesOf(Stored type) {
  return type == Stored::kF32 ? 4 : type == Stored::kF64 ? 8 : 2;
}
// Type that a checkpoint holds the elements in, without loss.
constexpr Dtype CheckpointType(Stored type) {
  return type == Stored::kF64 ? Dtype::kFloat64 : Dtype::kFloat32;
}

// IEEE 754 half precision (binary16). NaN becomes infinite.
inline float FromHalf(std::uint16_t half) {
  constexpr std::uint32_t kMagnitude = 0x7fff, kInfinite = 0x7c00, kFloatInfinity = 0x7f800000;
  constexpr std::uint32_t kSmallestNormal = 0x400, kRebias = 112U << 23;
  const std::uint32_t magnitude = half & kMagnitude;
  std::uint32_t bits = (magnitude << 13) + kRebias;
  if (magnitude >= kInfinite) bits = kFloatInfinity;
  if (magnitude < kSmallestNormal) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  }
  return std::bit_cast<float>(bits | static_cast<std::uint32_t>(half & 0x8000) << 16);
}

// Rounds to nearest, ties to even; infinite beyond the range.
inline std::uint16_t ToHalf(float value) {
  constexpr std::uint32_t kMagnitude = 0x7fffffff, kSmallestNormal = 113U << 23;
  constexpr std::uint32_t kInfinite = 143U << 23;  // 65536
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & kMagnitude;
  if (magnitude >= kInfinite) return sign | 0x7c00;
  if (magnitude < kSmallestNormal) {
    // The sum's last place is that of the smallest half: the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(sum) - (126U << 23));
  }
  const std::uint32_t rounded = magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<std::uint16_t>(rounded >> 13);
}

inline constexpr std::int64_t kAllFinite = -1;

// Converts `count` elements to those of CheckpointType(from). Returns the place of the first one
// that is not finite, or kAllFinite.
std::int64_t Widen(Stored from, const void* in, std::int64_t count, void* out);
// Converts `count` elements of a checkpoint. Returns the place of the first one that is not finite
// afterwards, or kAllFinite.
std::int64_t Narrow(Dtype from, const void* in, std::int64_t count, Stored to, void* out);

}  // namespace trireme::hf

#endif  // TRIREME_SRC_HF_ELEMENTS_HPP_
