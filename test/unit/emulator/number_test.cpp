// bf16 and fp8 of the emulator against definitions that share nothing with them; cards.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

float FromBits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// The bf16 nearest to x by distance alone, ties to the one with an even last bit.
std::uint16_t NearestBfloat16(float x) {
  const auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  const auto high = static_cast<std::uint16_t>(low + 1);
  const double exact = static_cast<double>(x);
  const auto value = [](std::uint16_t bits) {
    // Infinity counts as the number that would come next.
    return (bits & 0x7fff) == 0x7f80
               ? std::copysign(std::ldexp(1.0, 128), (bits & 0x8000) != 0 ? -1.0 : 1.0)
               : static_cast<double>(FromBits(std::uint32_t{bits} << 16));
  };
  const double below = std::fabs(exact - value(low)), above = std::fabs(value(high) - exact);
  if (below == above) return low % 2 == 0 ? low : high;
  return below < above ? low : high;
}

TEST(Numbers, Bfloat16RoundsToNearestEven) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    for (const std::uint32_t rest : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = FromBits((pattern << 16) | rest);
      const __nv_bfloat16 rounded = __float2bfloat16(x);
      if (std::isnan(x)) {
        ASSERT_EQ(rounded.bits, 0x7fff);
      } else if (std::isinf(x)) {
        ASSERT_EQ(rounded.bits, pattern);
      } else {
        ASSERT_EQ(rounded.bits, NearestBfloat16(x)) << std::hex << pattern << " " << rest;
      }
    }
    const __nv_bfloat16 same = __ushort_as_bfloat16(static_cast<unsigned short>(pattern));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(__bfloat162float(same)), pattern << 16);
  }
}

TEST(Numbers, Bfloat16PairsKeepTheirOrder) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(1.5f, -2.0f);
  EXPECT_EQ(__low2float(pair), 1.5f);
  EXPECT_EQ(__high2float(pair), -2.0f);
  EXPECT_EQ(__bfloat1622float2(pair).y, -2.0f);
  EXPECT_EQ(sizeof(pair), 4u);
  EXPECT_EQ(static_cast<float>(pair.x * pair.y), -3.0f);
  EXPECT_EQ(static_cast<float>(-pair.y), 2.0f);
}

// By search over all finite codes: nearest, ties to even; beyond the largest, the largest.
int NearestFp8(float x, __nv_fp8_interpretation_t kind) {
  const double size = std::min(std::fabs(static_cast<double>(x)), 1e6);  // distances stay exact
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double value =
        static_cast<double>(emulator::FromFp8(static_cast<unsigned char>(code), kind));
    if (!std::isfinite(value)) continue;
    const double distance = std::fabs(size - value);
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(Numbers, Fp8RoundsToNearestEvenAndSaturates) {
  for (const auto kind : {__NV_E4M3, __NV_E5M2}) {
    for (std::uint32_t pattern = 0; pattern < 65536; pattern += 3) {
      const float x = FromBits(pattern << 16);
      const int code = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(emulator::FromFp8(static_cast<unsigned char>(code), kind)));
      } else {
        ASSERT_EQ(code, NearestFp8(x, kind)) << x;
      }
    }
    for (int code = 0; code < 256; ++code) {  // there and back
      const float value = emulator::FromFp8(static_cast<unsigned char>(code), kind);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, kind), code);
    }
  }
}

TEST(Numbers, Fp8KnownValues) {
  EXPECT_EQ(static_cast<float>(__nv_fp8_e4m3(1000.0f)), 448.0f);
  EXPECT_EQ(static_cast<float>(__nv_fp8_e5m2(-1e9f)), -57344.0f);
  EXPECT_EQ(__nv_fp8_e4m3(1.0f).__x, 0x38);
  EXPECT_EQ(__nv_fp8_e5m2(1.0f).__x, 0x3c);
  EXPECT_EQ(static_cast<float>(__nv_fp8_e4m3(std::ldexp(1.0f, -9))), std::ldexp(1.0f, -9));
  EXPECT_EQ(static_cast<float>(__nv_fp8_e5m2(std::ldexp(1.0f, -17))), 0.0f);
  EXPECT_EQ(__nv_cvt_float_to_fp8(INFINITY, __NV_NOSAT, __NV_E5M2), 0x7c);
  EXPECT_EQ(__nv_cvt_float_to_fp8(500.0f, __NV_NOSAT, __NV_E4M3), 0x7f);
}

TEST(Cards, AreThoseOfTheEnvironment) {
  int count = 0;
  Check(cudaGetDeviceCount(&count), "counting");
  EXPECT_EQ(count, 8);
  Check(cudaSetDevice(count - 1), "choosing");
  int device = -1;
  Check(cudaGetDevice(&device), "asking");
  EXPECT_EQ(device, count - 1);
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidDevice");
  Check(cudaSetDevice(0), "choosing");
  char bus[16];
  Check(cudaDeviceGetPCIBusId(bus, sizeof(bus), 3), "asking");
  EXPECT_STREQ(bus, "0000:04:00.0");
  int shared = 0;
  Check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "asking");
  EXPECT_EQ(shared, 227 * 1024);
}

using CardsDeathTest = EmulatorDeathTest;

TEST_F(CardsDeathTest, TheEnvironmentChoosesAmongThem) {
  const auto run = [](const char* visible) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    setenv("TRIREME_EMULATOR_DEVICES", "4", 1);
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    cudaDeviceProp first{};
    if (count > 0) cudaGetDeviceProperties(&first, 0);
    std::exit(code == cudaErrorNoDevice ? 99 : 10 * count + first.pciBusID);
  };
  EXPECT_EXIT(run("2,0"), testing::ExitedWithCode(23), "");
  EXPECT_EXIT(run("1,9,2"), testing::ExitedWithCode(12), "");
  EXPECT_EXIT(run(""), testing::ExitedWithCode(99), "");
}

}  // namespace
