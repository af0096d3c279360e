// Conversion of stored elements.
#include "elements.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/bfloat16.hpp"

namespace trireme::hf {

namespace {

// out[i] = convert(in[i]), tested afterwards. In blocks, so that the test costs no branch per
// element.
template <typename In, typename Out, typename Convert, typename IsFinite>
std::int64_t ConvertAll(const In* in, std::int64_t count, Out* out, const Convert& convert,
                        const IsFinite& is_finite) {
  constexpr std::int64_t kBlock = 4096;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    bool good = true;
    for (std::int64_t i = begin; i < end; ++i) {
      out[i] = convert(in[i]);
      good &= is_finite(out[i]);
    }
    for (std::int64_t i = begin; !good && i < end; ++i) {
      if (!is_finite(out[i])) return i;
    }
  }
  return kAllFinite;
}

// An exponent of ones alone is infinite or NaN.
bool FiniteBfloat16(std::uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }
bool FiniteHalf(std::uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }
bool FiniteFloat(float value) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  return (std::bit_cast<std::uint32_t>(value) & kExponent) != kExponent;
}
bool FiniteDouble(double value) { return std::isfinite(value); }

template <typename In>
std::int64_t NarrowFrom(const In* in, std::int64_t count, Stored to, void* out) {
  const auto same = [](In value) { return value; };
  switch (to) {
    case Stored::kF32:
      return ConvertAll(
          in, count, static_cast<float*>(out), [](In value) { return static_cast<float>(value); },
          FiniteFloat);
    case Stored::kF64:
      return ConvertAll(in, count, static_cast<double*>(out), same, FiniteDouble);
    case Stored::kBf16:
      return ConvertAll(
          in, count, static_cast<std::uint16_t*>(out),
          [](In value) { return RoundToBfloat16(static_cast<float>(value)); }, FiniteBfloat16);
    case Stored::kF16:
      return ConvertAll(
          in, count, static_cast<std::uint16_t*>(out),
          [](In value) { return ToHalf(static_cast<float>(value)); }, FiniteHalf);
  }
  return kAllFinite;
}

}  // namespace

std::optional<Stored> StoredOf(const std::string& dtype) {
  for (const Stored type : {Stored::kF32, Stored::kF64, Stored::kBf16, Stored::kF16}) {
    if (dtype == SafetensorsName(type)) return type;
  }
  return std::nullopt;
}

const char* SafetensorsName(Stored type) {
  switch (type) {
    case Stored::kF32:
      return "F32";
    case Stored::kF64:
      return "F64";
    case Stored::kBf16:
      return "BF16";
    case Stored::kF16:
      return "F16";
  }
  return "";
}

std::int64_t Widen(Stored from, const void* in, std::int64_t count, void* out) {
  const auto same = [](auto value) { return value; };
  switch (from) {
    case Stored::kF32:
      return ConvertAll(static_cast<const float*>(in), count, static_cast<float*>(out), same,
                        FiniteFloat);
    case Stored::kF64:
      return ConvertAll(static_cast<const double*>(in), count, static_cast<double*>(out), same,
                        FiniteDouble);
    case Stored::kBf16:
      return ConvertAll(static_cast<const std::uint16_t*>(in), count, static_cast<float*>(out),
                        FromBfloat16, FiniteFloat);
    case Stored::kF16:
      return ConvertAll(static_cast<const std::uint16_t*>(in), count, static_cast<float*>(out),
                        FromHalf, FiniteFloat);
  }
  return kAllFinite;
}

std::int64_t Narrow(Dtype from, const void* in, std::int64_t count, Stored to, void* out) {
  if (from == Dtype::kFloat64) return NarrowFrom(static_cast<const double*>(in), count, to, out);
  return NarrowFrom(static_cast<const float*>(in), count, to, out);
}

}  // namespace trireme::hf
