// Dropout's lanes from every implementation for this CPU, against the plain function.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cpu/philox_lanes.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::test {
namespace {

std::vector<std::uint16_t> Plain(const kernels::PhiloxRow& row, std::int64_t n) {
  std::vector<std::uint16_t> lanes;
  for (std::int64_t i = 0; i < n; ++i) {
    const PhiloxCounter words = Philox(
        {row.c0 + static_cast<std::uint32_t>(i / 8), row.c1, row.c2, row.c3}, {row.k0, row.k1});
    const std::uint32_t word = words[static_cast<std::size_t>(i % 8 / 2)];
    lanes.push_back(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16));
  }
  return lanes;
}

TEST(PhiloxLanes, AreThoseOfThePlainFunction) {
  const kernels::PhiloxRow rows[] = {
      {1, 2, 3, 4, 5, 6},
      {0xFFFFFFFF, 0x80000000, 0xFFFFFFFB, 0, 0xDEADBEEF, 0x12345678},
      {0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}};
  const kernels::PhiloxLanesKernels usable = kernels::UsablePhiloxLanes();
  ASSERT_GE(usable.count, 1);
  for (int kernel = 0; kernel < usable.count; ++kernel) {
    for (const auto& row : rows) {
      for (const std::int64_t n : {1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 768, 1000}) {
        constexpr std::uint16_t kMark = 0xA5A5;
        const auto room = static_cast<std::size_t>((n + 7) / 8 * 8);
        std::vector<std::uint16_t> lanes(room + 300, kMark);
        usable.all[kernel]->fill(row, n, lanes.data());
        for (std::size_t i = room; i < lanes.size(); ++i) {
          ASSERT_EQ(lanes[i], kMark)
              << usable.all[kernel]->name << " wrote beyond the last counter";
        }
        lanes.resize(static_cast<std::size_t>(n));
        EXPECT_EQ(lanes, Plain(row, n)) << usable.all[kernel]->name << ", " << n << " lanes";
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
