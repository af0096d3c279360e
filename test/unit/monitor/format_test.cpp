// Numbers as they look on the screen.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "trireme/report/monitor.hpp"

namespace trireme::report {
namespace {

TEST(Format, Thousands) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(2088628), "2,088,628");
  EXPECT_EQ(WithThousands(-999), "-999");
  EXPECT_EQ(WithThousands(-123456), "-123,456");
  EXPECT_EQ(WithThousands(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Format, Suffix) {
  EXPECT_EQ(WithSuffix(0), "0");
  EXPECT_EQ(WithSuffix(512), "512");
  EXPECT_EQ(WithSuffix(0.5), "0.50");
  EXPECT_EQ(WithSuffix(9710000), "9.71 M");
  EXPECT_EQ(WithSuffix(124.4e6), "124 M");
  EXPECT_EQ(WithSuffix(99.96e6), "100 M");
  EXPECT_EQ(WithSuffix(999499), "999 k");
  EXPECT_EQ(WithSuffix(999501), "1.00 M");
  EXPECT_EQ(WithSuffix(1.558e9), "1.56 G");
  EXPECT_EQ(WithSuffix(-2000), "-2.00 k");
  EXPECT_EQ(WithUnit(350, "W"), "350 W");
  EXPECT_EQ(WithUnit(5000, "J"), "5.00 kJ");
}

TEST(Format, Clock) {
  EXPECT_EQ(AsClock(0), "0:00");
  EXPECT_EQ(AsClock(4.6), "0:05");
  EXPECT_EQ(AsClock(155), "2:35");
  EXPECT_EQ(AsClock(3599.6), "1:00:00");
  EXPECT_EQ(AsClock(3723), "1:02:03");
  EXPECT_EQ(AsClock(99 * 3600.0 + 3599), "99:59:59");
  EXPECT_EQ(AsClock(100 * 3600.0 + 120), "4d 04:02");
  EXPECT_EQ(AsClock(115 * 86400.0 + 17 * 3600), "115d 17h");
  EXPECT_EQ(AsClock(-1), "-");
  EXPECT_EQ(AsClock(NAN), "-");
  EXPECT_EQ(AsClock(INFINITY), "-");
  EXPECT_EQ(AsClock(1e15), "-");
}

TEST(Format, Bytes) {
  EXPECT_EQ(AsBytes(0), "0 B");
  EXPECT_EQ(AsBytes(1023), "1023 B");
  EXPECT_EQ(AsBytes(1024), "1.0 KiB");
  EXPECT_EQ(AsBytes(309LL << 20), "309 MiB");
  EXPECT_EQ(AsBytes((1LL << 30) - 1), "1.0 GiB");
  EXPECT_EQ(AsBytes(3LL << 39), "1.5 TiB");
}

TEST(Format, PeakResidentBytesFollowsAnAllocation) {
  const std::int64_t before = PeakResidentBytes();
  EXPECT_GT(before, 1 << 20);
  constexpr std::size_t kBytes = 64 << 20;
  const std::vector<char> block(kBytes, 1);
  ASSERT_EQ(block[kBytes / 2], 1);
  EXPECT_GE(PeakResidentBytes(), before + static_cast<std::int64_t>(kBytes / 2));
}

}  // namespace
}  // namespace trireme::report
