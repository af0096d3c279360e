// Half precision, all values of it, and what is not finite.
#include "tensor_map.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace trireme::hf {
namespace {

// The value by its definition.
double Half(int bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(HfElements, EveryHalfThereAndBack) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7c00) == 0x7c00) {
      EXPECT_TRUE(std::isinf(FromHalf(half)));
      continue;
    }
    ASSERT_EQ(FromHalf(half), Half(bits)) << bits;
    ASSERT_EQ(ToHalf(FromHalf(half)), half);
  }
}

TEST(HfElements, RoundsToTheNearestHalfTiesToEven) {
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const double low = Half(bits), high = Half(bits + 1), middle = (low + high) / 2;
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(ToHalf(static_cast<float>(middle)), even) << bits;
    const auto nearer = [&](float to) { return std::nextafter(static_cast<float>(middle), to); };
    ASSERT_EQ(ToHalf(nearer(-1)), bits);
    ASSERT_EQ(ToHalf(nearer(1e6F)), bits + 1);
    ASSERT_EQ(ToHalf(-nearer(1e6F)), (bits + 1) | 0x8000);
  }
  EXPECT_EQ(ToHalf(65519.9F), 0x7bff);
  EXPECT_EQ(ToHalf(65520), 0x7c00);
  EXPECT_EQ(ToHalf(1e30F), 0x7c00);
}

TEST(HfElements, FindsTheFirstThatIsNotFinite) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  std::vector<float> values(10000, 1.5F), out(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  EXPECT_EQ(Widen(Stored::kF32, values.data(), count, out.data()), kAllFinite);
  EXPECT_EQ(out, values);
  values[7000] = -kInfinite;
  values[6000] = std::nanf("");
  EXPECT_EQ(Widen(Stored::kF32, values.data(), count, out.data()), 6000);
  values.assign(values.size(), 1e5F);
  std::vector<std::uint16_t> halves(values.size());
  EXPECT_EQ(Narrow(Dtype::kFloat32, values.data(), count, Stored::kF16, halves.data()), 0);
  EXPECT_EQ(Narrow(Dtype::kFloat32, values.data(), count, Stored::kBf16, halves.data()),
            kAllFinite);
  std::vector<double> wide(values.size(), 0.1);
  wide[9999] = 1e300;
  EXPECT_EQ(Narrow(Dtype::kFloat64, wide.data(), count, Stored::kF32, out.data()), 9999);
  EXPECT_EQ(out[0], 0.1F);
  const std::vector<std::uint16_t> stored = {0x3f80, 0x7f80, 0x7fc0};  // bf16: 1, infinite, NaN
  EXPECT_EQ(Widen(Stored::kBf16, stored.data(), 3, out.data()), 1);
  EXPECT_EQ(out[0], 1);
}

TEST(HfElements, TransposesWindows) {
  constexpr std::int64_t kRows = 70, kColumns = 45, kWide = 100;
  std::vector<std::uint32_t> in(kColumns * kWide), out(kRows * kWide, 0);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint32_t>(i);
  Transpose(4, {reinterpret_cast<char*>(in.data() + 3), kWide},
            {reinterpret_cast<char*>(out.data() + 5), kWide}, kRows, kColumns);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kWide; ++c) {
      const bool inside = c >= 5 && c < kColumns + 5;
      const auto wanted = inside ? static_cast<std::uint32_t>((c - 5) * kWide + r + 3) : 0;
      ASSERT_EQ(out[static_cast<std::size_t>(r * kWide + c)], wanted);
    }
  }
}

}  // namespace
}  // namespace trireme::hf
