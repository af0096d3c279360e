// Numbers: exact sums, random numbers, parts of a range, lists that threads share, and the measure
// of rule 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "rule_four.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/base/in_threads.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme {
namespace {

// Exact sums: any order, cancellation, the ends of the range, rounding, and sums of digits.

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ExactSum SumOf(const std::vector<double>& values) {
  ExactSum sum;
  for (double value : values) sum.Add(value);
  return sum;
}

bool SameBits(double x, double y) {
  return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
}

// Any finite double but for the sign's and exponent's distribution: every bit at random.
std::vector<double> AnyDoubles(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<double> values;
  while (values.size() < count) {
    const double value = std::bit_cast<double>(std::uint64_t{engine()});
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(ExactSum, OneValueIsItself) {
  for (double value : {0.0, 1.0, -1.0, DBL_MAX, -DBL_MAX, DBL_MIN, DBL_TRUE_MIN, -DBL_TRUE_MIN,
                       DBL_MIN - DBL_TRUE_MIN, 0.1, 1e300, 0x1p-1022, 0x1.fffffffffffffp-1000}) {
    EXPECT_TRUE(SameBits(SumOf({value}).Value(), value)) << value;
  }
  for (double value : AnyDoubles(10000, 1)) {
    EXPECT_TRUE(SameBits(SumOf({value}).Value(), value)) << value;
    EXPECT_TRUE(SameBits(SumOf({value, -value, value}).Value(), value)) << value;
  }
  EXPECT_TRUE(SameBits(ExactSum().Value(), 0.0));
  EXPECT_TRUE(SameBits(SumOf({-0.0}).Value(), 0.0));
}

// The sum of two doubles is correctly rounded by the machine itself.
TEST(ExactSum, TwoValuesRoundLikeTheMachine) {
  std::mt19937_64 engine(2);
  const std::vector<double> values = AnyDoubles(20000, 3);
  for (double x : values) {
    // Near enough that both count, across all distances of the exponents.
    const double y = std::ldexp(std::copysign(1.0 + 0x1p-52 * static_cast<double>(engine() >> 12),
                                              engine() % 2 == 0 ? 1.0 : -1.0),
                                std::ilogb(x) + static_cast<int>(engine() % 120) - 60);
    if (!std::isfinite(y)) continue;
    const double sum = x + y;
    EXPECT_TRUE(SameBits(SumOf({x, y}).Value(), sum == 0 ? 0.0 : sum)) << x << " " << y;
  }
}

TEST(ExactSum, TiesGoToEven) {
  EXPECT_EQ(SumOf({1, 0x1p-53}).Value(), 1);
  EXPECT_EQ(SumOf({1, 0x1p-53, DBL_TRUE_MIN}).Value(), 1 + 0x1p-52);
  EXPECT_EQ(SumOf({1, 0x1p-53, -DBL_TRUE_MIN}).Value(), 1);
  EXPECT_EQ(SumOf({1 + 0x1p-52, 0x1p-53}).Value(), 1 + 0x1p-51);
  EXPECT_EQ(SumOf({-1, -0x1p-53, -DBL_TRUE_MIN}).Value(), -1 - 0x1p-52);
  EXPECT_EQ(SumOf({2 - 0x1p-52, 0x1p-53}).Value(), 2);
}

TEST(ExactSum, CancellationLeavesTheRest) {
  EXPECT_EQ(SumOf({1e300, 3.5, -1e300}).Value(), 3.5);
  EXPECT_EQ(SumOf({DBL_MAX, DBL_TRUE_MIN, -DBL_MAX}).Value(), DBL_TRUE_MIN);
  EXPECT_EQ(SumOf({DBL_MAX, -DBL_TRUE_MIN, -DBL_MAX}).Value(), -DBL_TRUE_MIN);
  EXPECT_EQ(SumOf({DBL_MAX, DBL_MAX, -DBL_MAX}).Value(), DBL_MAX);  // beyond the range on the way
}

TEST(ExactSum, BeyondTheRangeIsInfinite) {
  EXPECT_EQ(SumOf({DBL_MAX, DBL_MAX}).Value(), kInfinity);
  EXPECT_EQ(SumOf({-DBL_MAX, -DBL_MAX}).Value(), -kInfinity);
  EXPECT_EQ(SumOf({DBL_MAX, 0x1p970}).Value(), kInfinity);  // half a last place: ties to even
  EXPECT_EQ(SumOf({DBL_MAX, 0x1p969}).Value(), DBL_MAX);
}

TEST(ExactSum, WhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOf({1, nan, 2}).Value()));
  EXPECT_TRUE(std::isnan(SumOf({kInfinity, 1, -kInfinity}).Value()));
  EXPECT_EQ(SumOf({1, kInfinity, -DBL_MAX}).Value(), kInfinity);
  EXPECT_EQ(SumOf({-kInfinity, 1}).Value(), -kInfinity);
  ExactSum sum = SumOf({1});
  sum.Add(SumOf({kInfinity}));
  EXPECT_EQ(sum.Value(), kInfinity);
  EXPECT_TRUE(std::isnan(ExactSum::FromDigits(SumOf({nan}).Digits()).Value()));
}

// Against integers: multiples of 2^-40 below 2^20 in magnitude.
TEST(ExactSum, EqualsAnIntegerSum) {
  std::mt19937_64 engine(4);
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::int64_t want = 0;
    ExactSum sum;
    for (int i = 0; i < 5000; ++i) {
      const std::int64_t term = static_cast<std::int64_t>(engine()) >> 14;  // 50 bits
      want += term;
      sum.Add(std::ldexp(static_cast<double>(term), -40));
    }
    EXPECT_EQ(sum.Value(), std::ldexp(static_cast<double>(want), -40));
  }
}

// Binary expansion by exact halving: any sum of powers of two with a known result.
TEST(ExactSum, TelescopesOverTheWholeRange) {
  ExactSum sum;
  for (int exponent = -1074; exponent < 1023; ++exponent) sum.Add(std::ldexp(1.0, exponent));
  sum.Add(DBL_TRUE_MIN);  // 2^1023 together
  EXPECT_EQ(sum.Value(), 0x1p1023);
  sum.Add(-0x1p1023);
  EXPECT_TRUE(SameBits(sum.Value(), 0.0));
}

TEST(ExactSum, AnyOrderAnyGroupsTheSameBits) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<double> values = AnyDoubles(3000, 10 + seed);
    for (double& value : values) value *= 0x1p-20;  // some sums stay in the range
    const double want = SumOf(values).Value();
    const auto digits = SumOf(values).Digits();
    std::mt19937_64 engine(seed);
    std::shuffle(values.begin(), values.end(), engine);
    EXPECT_TRUE(SameBits(SumOf(values).Value(), want));
    EXPECT_EQ(SumOf(values).Digits(), digits);
    std::vector<ExactSum> groups(7);
    std::array<double, ExactSum::kNumbers> total{};
    for (double value : values) groups[engine() % groups.size()].Add(value);
    ExactSum merged;
    for (const ExactSum& group : groups) {
      merged.Add(group);
      const auto numbers = group.Digits();
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_LT(std::abs(numbers[i]), 0x1p32);
        total[i] += numbers[i];
      }
    }
    EXPECT_TRUE(SameBits(merged.Value(), want));
    EXPECT_TRUE(SameBits(ExactSum::FromDigits(total).Value(), want));
  }
}

// As of 2^20 ranks, each with the largest digits: the doubles do not round.
TEST(ExactSum, DigitsOfAMillionRanks) {
  const ExactSum one = SumOf({-DBL_TRUE_MIN});
  auto numbers = one.Digits();
  for (double& number : numbers) number *= 0x1p20;
  EXPECT_EQ(ExactSum::FromDigits(numbers).Value(), -0x1p20 * DBL_TRUE_MIN);
}

TEST(ExactSum, DoublesItselfBeyondThePostponedCarries) {
  ExactSum sum = SumOf({0.1, -DBL_TRUE_MIN});
  for (int i = 0; i < 60; ++i) sum.Add(ExactSum(sum));
  sum.Add(-std::ldexp(0.1, 60));
  EXPECT_EQ(sum.Value(), -std::ldexp(1.0, 60 - 1074));
}

// PartOf: parts meet, cover everything, and differ by one at most.

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

// Positions: every position of a sequence at one context rank, in order, and causal attention
// shared out evenly.

constexpr int kMostRanks = 9;

TEST(Positions, EveryPositionOnce) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    // Lengths that divide, that do not, and fewer than there are blocks.
    for (std::int64_t length = 0; length <= 5 * kMostRanks; ++length) {
      std::vector<int> times(static_cast<std::size_t>(length), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const Positions positions = PositionsOf(length, rank, ranks);
        std::int64_t last = -1;
        for (std::int64_t local = 0; local < positions.Count(); ++local) {
          const std::int64_t position = positions.At(local);
          ASSERT_GT(position, last) << rank << " of " << ranks << ", length " << length;
          ASSERT_LT(position, length);
          ++times[static_cast<std::size_t>(position)];
          last = position;
        }
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), length) << ranks << " ranks";
    }
  }
}

TEST(Positions, BlocksAreOneOfEachEnd) {
  const Positions first = PositionsOf(16, 0, 2), second = PositionsOf(16, 1, 2);
  EXPECT_EQ(first.early.begin, 0);
  EXPECT_EQ(first.early.end, 4);
  EXPECT_EQ(first.late.begin, 12);
  EXPECT_EQ(first.late.end, 16);
  EXPECT_EQ(second.early.begin, 4);
  EXPECT_EQ(second.late.end, 12);
  EXPECT_EQ(first.At(3), 3);
  EXPECT_EQ(first.At(4), 12);
  // A sequence shorter than the blocks: the counts still differ by two at most, one a block.
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (std::int64_t length = 0; length <= 5 * kMostRanks; ++length) {
      std::int64_t least = length, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        least = std::min(least, PositionsOf(length, rank, ranks).Count());
        most = std::max(most, PositionsOf(length, rank, ranks).Count());
      }
      EXPECT_LE(most - least, 2) << length << " on " << ranks;
    }
  }
}

TEST(Positions, OneRankHoldsEverything) {
  const Positions all = PositionsOf(7, 0, 1);
  EXPECT_EQ(all.Count(), 7);
  const Positions uncut;
  for (std::int64_t position = 0; position < 7; ++position) {
    EXPECT_EQ(all.At(position), position);
    EXPECT_EQ(uncut.At(position), position);
  }
  EXPECT_EQ(uncut.At(std::int64_t{1} << 40), std::int64_t{1} << 40);
}

// Pairs of a query and a key not behind it, the cost of causal attention: the same for all ranks
// where the blocks are equal, else within one query block's against all keys.
TEST(Positions, CausalAttentionIsBalanced) {
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (std::int64_t length = 2 * ranks; length <= 6 * ranks; ++length) {
      std::int64_t least = length * length, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Positions positions = PositionsOf(length, rank, ranks);
        std::int64_t pairs = 0;
        for (std::int64_t local = 0; local < positions.Count(); ++local) {
          pairs += positions.At(local) + 1;
        }
        least = std::min(least, pairs);
        most = std::max(most, pairs);
      }
      const std::int64_t block = CeilDivide(length, 2 * ranks);
      EXPECT_LE(most - least, length % (2 * ranks) == 0 ? 0 : block * length)
          << length << " on " << ranks;
    }
  }
}

// Lists that several threads draw from.

TEST(Threads, DrawEachPieceOnce) {
  for (const int threads : {1, 2, 5}) {
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      std::atomic<int> largest = 0;
      InThreads(threads, count, [&](std::int64_t i, int thread) {
        ++seen[static_cast<std::size_t>(i)];
        for (int now = largest; thread > now && !largest.compare_exchange_weak(now, thread);) {
        }
      });
      for (const std::atomic<int>& each : seen) EXPECT_EQ(each.load(), 1);
      EXPECT_LT(largest, threads);
    }
  }
}

// The first failure in the order of the list is told, although a later one comes before it in time;
// nothing begins after it.
TEST(Threads, TellTheFirstFailure) {
  std::atomic<std::int64_t> begun = 0;
  const auto body = [&](std::int64_t i, int) {
    ++begun;
    if (i == 4) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (i == 4 || i == 5) throw RunError(std::to_string(i));
  };
  try {
    InThreads(2, 1000, body);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "4");
  }
  EXPECT_LE(begun, 8);
}

}  // namespace
}  // namespace trireme

namespace trireme::test {
namespace {

// Golden numbers: the generator against its published vectors, and what the layouts of
// doc/reference/numerics.md make of it. A change here changes every run.

// Known-answer vectors of Random123 for philox4x32-10.
TEST(Philox, EqualsThePublishedVectors) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KeyHasItsPlaces) {
  EXPECT_EQ(MakeKey(7, Purpose::kAttentionDropout, 3, 5), (PhiloxKey{7, 4 | 3 << 8 | 5 << 20}));
}

TEST(Philox, UniformIsNeverZero) {
  EXPECT_EQ(UniformFrom(0), 0x1.0p-24);
  EXPECT_EQ(UniformFrom(0xffffffff), 1.0);
}

TEST(InitialWeights, AreWhatTheyWere) {
  kernels::ParameterList list;
  list.Add({.name = "embedding.token.weight",
            .shape = {2, 3},
            .initialiser = {kernels::InitialiserKind::kNormal, 1.0}});
  list.Add({.name = "head.weight",
            .shape = {2, 3},
            .initialiser = {kernels::InitialiserKind::kUniform, 1.0}});
  kernels::Registry registry(list, Dtype::kFloat32);
  registry.Initialise(1);
  const float normal[] = {-0.229227066F, 1.04389095F,   1.05394983F,
                          0.997808218F,  -0.145413443F, -0.496243685F};
  const float uniform[] = {0.192840219F, 0.0852226019F, 0.903516173F,
                           0.900551558F, 0.211510301F,  -0.625775337F};
  // A last bit may differ between mathematics libraries.
  for (int i = 0; i < 6; ++i) {
    EXPECT_FLOAT_EQ(registry.Value(0).As<float>()[i], normal[i]) << i;
    EXPECT_FLOAT_EQ(registry.Value(1).As<float>()[i], uniform[i]) << i;
  }
}

// Lane by lane, as the layout is written down.
TEST(DropoutMask, IsTheLayoutOfTheDocument) {
  constexpr std::uint32_t kSeed = 9, kLayer = 2, kSite = 1;
  constexpr std::int64_t kLength = 3, kFeatures = 21;
  const std::vector<std::uint64_t> ordinals = {5, (std::uint64_t{1} << 32) + 6};
  const kernels::Dropout dropout{
      0.3, kSeed, Purpose::kResidualDropout, kLayer, kSite, ordinals.data(), kLength};
  std::vector<float> x(2 * kLength * kFeatures, 1.0F), y(x.size());
  const kernels::Matrix in{x.data(), Dtype::kFloat32, 2 * kLength, kFeatures, kFeatures};
  const kernels::Matrix out{y.data(), Dtype::kFloat32, 2 * kLength, kFeatures, kFeatures};
  kernels::DropoutForward({}, in, dropout, out);
  const std::uint32_t threshold = 19661;  // round(0.3 * 65536)
  ASSERT_EQ(dropout.Threshold(), threshold);
  for (std::int64_t row = 0; row < in.rows; ++row) {
    const std::uint64_t ordinal = ordinals[static_cast<std::size_t>(row / kLength)];
    for (std::int64_t f = 0; f < kFeatures; ++f) {
      const PhiloxCounter words =
          Philox({static_cast<std::uint32_t>(f / 8), static_cast<std::uint32_t>(row % kLength),
                  static_cast<std::uint32_t>(ordinal), static_cast<std::uint32_t>(ordinal >> 32)},
                 {kSeed, 5 | kLayer << 8 | kSite << 20});
      const std::uint32_t word = words[static_cast<std::size_t>(f % 8 / 2)];
      const std::uint32_t lane = f % 2 == 0 ? word & 0xffff : word >> 16;
      const float wanted = lane >= threshold ? 65536.0F / (65536.0F - 19661.0F) : 0.0F;
      EXPECT_FLOAT_EQ(y[static_cast<std::size_t>(row * kFeatures + f)], wanted) << row << ", " << f;
    }
  }
}

// The measure that judges layouts must not be fooled.

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
