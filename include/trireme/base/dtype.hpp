// Element types of tensors, and the bridge from a run-time type to a compile-time one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme {

// Converts to bfloat16, the upper half of a float: rounds to nearest, ties to even; NaN stays NaN.
inline std::uint16_t RoundToBfloat16(float value) {
  constexpr std::uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff, kQuiet = 0x40;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & kMagnitude) > kInfinity) return static_cast<std::uint16_t>(bits >> 16 | kQuiet);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromBfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Types of stored elements. Only GPUs store kBfloat16; kernels on the CPU round to it within a
// product.
enum class Dtype { kFloat32, kFloat64, kBfloat16 };

constexpr std::size_t SizeOf(Dtype type) {
  return type == Dtype::kFloat32 ? 4 : type == Dtype::kFloat64 ? 8 : 2;
}
constexpr std::int64_t BytesOf(Dtype type, std::int64_t count) {
  return count * static_cast<std::int64_t>(SizeOf(type));
}
constexpr const char* NameOf(Dtype type) {
  return type == Dtype::kFloat32 ? "fp32" : type == Dtype::kFloat64 ? "fp64" : "bf16";
}

// The type of sums over values of this type, such as gradients, moments and statistics.
constexpr Dtype SumTypeOf(Dtype type) { return type == Dtype::kBfloat16 ? Dtype::kFloat32 : type; }

// Address of element `index` of an array.
inline void* ElementAt(void* array, Dtype type, std::int64_t index) {
  return static_cast<char*>(array) + BytesOf(type, index);
}

// Calls body(T{}) with T the C++ type of `type`: the only place where a kernel's type is chosen on
// the CPU. Throws RunError for bf16, which the CPU does not store.
template <typename Body>
decltype(auto) DispatchDtype(Dtype type, Body&& body) {
  if (type == Dtype::kBfloat16)
    throw RunError("the CPU stores no bf16", "This is a bug in Trireme.");
  if (type == Dtype::kFloat64) return std::forward<Body>(body)(double{});
  return std::forward<Body>(body)(float{});
}

}  // namespace trireme
