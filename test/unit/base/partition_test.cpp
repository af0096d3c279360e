// PartOf: parts meet, cover everything, and differ by one at most.
#include "trireme/base/partition.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace trireme {
namespace {

TEST(Partition, PartsCoverTheWholeInOrder) {
  for (const std::int64_t total : {0, 1, 2, 7, 8, 33278}) {
    for (int parts = 1; parts <= 9; ++parts) {
      std::int64_t next = 0;
      for (int which = 0; which < parts; ++which) {
        const Part part = PartOf(total, which, parts);
        EXPECT_EQ(part.begin, next);
        EXPECT_EQ(part.begin, which * total / parts);
        EXPECT_GE(part.Size(), total / parts);
        EXPECT_LE(part.Size(), (total + parts - 1) / parts);
        next = part.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(Partition, FewerThanPartsLeavesEmptyOnes) {
  std::int64_t empty = 0;
  for (int which = 0; which < 8; ++which) empty += PartOf(3, which, 8).Size() == 0 ? 1 : 0;
  EXPECT_EQ(empty, 5);
  EXPECT_EQ(PartOf(3, 7, 8).end, 3);
}

TEST(Partition, TotalTimesPartsMayPass64Bits) {
  const std::int64_t total = std::numeric_limits<std::int64_t>::max();
  const int parts = 1'000'003;
  EXPECT_EQ(PartOf(total, parts - 1, parts).end, total);
  const Part middle = PartOf(total, 500'000, parts);
  EXPECT_GE(middle.Size(), total / parts);
  EXPECT_LE(middle.Size(), total / parts + 1);
  // floor(500,000 (2^63 - 1) / 1,000,003), computed with arbitrary precision.
  EXPECT_EQ(middle.begin, 4'611'672'183'410'837'670);
}

}  // namespace
}  // namespace trireme
