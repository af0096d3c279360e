// The measure that judges layouts must not be fooled.
#include "rule_four.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace trireme::test {
namespace {

using Tensors = std::vector<std::vector<double>>;

TEST(RuleFour, IsZeroForEqualTensors) {
  const Tensors tensors = {{1, 2}, {0, 0, 0}};
  EXPECT_EQ(RuleFourDifference(tensors, tensors).relative, 0);
}

// A small tensor is measured against the typical size of all: rms = sqrt(25 / 3) here.
TEST(RuleFour, MeasuresAgainstTheLargerOfItsNormAndTheRms) {
  const Tensors wanted = {{3, 4}, {0}};
  const LargestDifference large = RuleFourDifference({{3, 4.5}, {0}}, wanted);
  EXPECT_NEAR(large.relative, 0.5 / 5, 1e-15);
  EXPECT_EQ(large.tensor, 0U);
  const LargestDifference small = RuleFourDifference({{3, 4}, {1}}, wanted);
  EXPECT_NEAR(small.relative, 1 / std::sqrt(25.0 / 3), 1e-15);
  EXPECT_EQ(small.tensor, 1U);
}

// A NaN is below no tolerance, wherever it stands.
TEST(RuleFour, ANanIsNeverBelowATolerance) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Tensors wanted = {{1, 2}, {1, 1}, {3}};
  for (std::size_t place = 0; place < wanted.size(); ++place) {
    Tensors got = wanted;
    got[place][0] = kNan;
    EXPECT_FALSE(RuleFourDifference(got, wanted).relative < 1) << place;
    EXPECT_EQ(RuleFourDifference(got, wanted).tensor, place);
    EXPECT_FALSE(RuleFourDifference(wanted, got).relative < 1) << place;
  }
}

}  // namespace
}  // namespace trireme::test
