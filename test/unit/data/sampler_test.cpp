// The order of samples: a bijection, the same on any number of ranks, each window once an epoch.
#include "trireme/data/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "scratch.hpp"

namespace trireme::data {
namespace {

// Chi-square quantile 0.9999 for 96 degrees of freedom: 155.5 (Wilson and Hilferty's formula).
constexpr int kUniformCount = 97;
constexpr double kChiSquareLimit = 155.5;

TEST(Permute, IsABijectionOfEveryCountUpTo200) {
  for (std::int64_t count = 1; count <= 200; ++count) {
    std::set<std::int64_t> images;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t image = Permute(7, 3, i, count);
      ASSERT_GE(image, 0);
      ASSERT_LT(image, count);
      images.insert(image);
      ASSERT_EQ(PermuteBack(7, 3, image, count), i) << "count " << count;
    }
    ASSERT_EQ(static_cast<std::int64_t>(images.size()), count);
  }
}

TEST(Permute, InvertsAtLargeCounts) {
  for (const std::int64_t count : {std::int64_t{65'537}, std::int64_t{1} << 32,
                                   (std::int64_t{1} << 40) + 3, std::int64_t{1} << 62}) {
    for (const std::int64_t index : {std::int64_t{0}, std::int64_t{1}, count / 3, count - 1}) {
      const std::int64_t image = Permute(1, std::int64_t{1} << 33, index, count);
      ASSERT_GE(image, 0);
      ASSERT_LT(image, count);
      EXPECT_EQ(PermuteBack(1, std::int64_t{1} << 33, image, count), index);
    }
  }
}

TEST(Permute, ALargeCountIsPermutedWhole) {
  constexpr std::int64_t kCount = 100'003;
  std::vector<bool> seen(kCount, false);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto image = static_cast<std::size_t>(Permute(5, 0, i, kCount));
    ASSERT_FALSE(seen[image]);
    seen[image] = true;
  }
}

// Over epochs, each index must come first equally often, and likewise at other positions and seeds.
TEST(Permute, IsUniform) {
  constexpr int kEpochs = 9'700;
  for (const std::int64_t index : {0, 50, 96}) {
    std::vector<double> hits(kUniformCount, 0);
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      hits[static_cast<std::size_t>(Permute(11, epoch, index, kUniformCount))] += 1;
    }
    constexpr double kExpected = static_cast<double>(kEpochs) / kUniformCount;
    double chi_square = 0;
    for (const double hit : hits) chi_square += (hit - kExpected) * (hit - kExpected) / kExpected;
    EXPECT_LT(chi_square, kChiSquareLimit) << "index " << index;
    EXPECT_GT(chi_square, 40) << "index " << index << ": more even than chance";
  }
}

// All 24 orders of four things must occur about equally often: small domains are the weak spot of
// Feistel networks.
TEST(Permute, ReachesAllOrdersOfFour) {
  constexpr int kEpochs = 4'800;
  std::map<std::vector<std::int64_t>, int> orders;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < 4; ++i) order.push_back(Permute(2, epoch, i, 4));
    ++orders[order];
  }
  EXPECT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, kEpochs / 24, 75);
}

TEST(Permute, EpochsAndSeedsDiffer) {
  const auto order = [](std::uint32_t seed, std::int64_t epoch) {
    std::vector<std::int64_t> images;
    for (std::int64_t i = 0; i < 50; ++i) images.push_back(Permute(seed, epoch, i, 50));
    return images;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, std::int64_t{1} << 32));  // the epoch's high word counts
}

TEST(Permute, OrderStaysAsItWas) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < 8; ++i) order.push_back(Permute(1, 0, i, 8));
  EXPECT_EQ(order, (std::vector<std::int64_t>{6, 1, 0, 7, 2, 5, 4, 3}));
}

// Reference by definition: windows begin at multiples of the stride until one reaches the end.
std::vector<std::pair<std::int64_t, std::int64_t>> PlainWindows(std::int64_t tokens,
                                                                std::int64_t length,
                                                                std::int64_t stride) {
  std::vector<std::pair<std::int64_t, std::int64_t>> windows;  // start, targets
  const std::int64_t all = tokens - 1;
  for (std::int64_t start = 0; start < all; start += stride) {
    windows.emplace_back(start, std::min(length, all - start));
    if (start + length >= all) break;
  }
  return windows;
}

// One epoch of a sampler against the plain windows, its counts against sums.
void CheckEpochs(const Sampler::Options& options) {
  const Sampler sampler(options);
  const auto expected = PlainWindows(options.tokens, options.length, options.stride);
  ASSERT_EQ(sampler.Windows(), static_cast<std::int64_t>(expected.size()));
  std::int64_t before = 0, ordinal = 0;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::pair<std::int64_t, std::int64_t>> seen;
    for (std::int64_t s = 0; s < sampler.StepsPerEpoch(); ++s) {
      const std::int64_t step = epoch * sampler.StepsPerEpoch() + s;
      std::int64_t targets = 0;
      for (std::int64_t i = 0; i < sampler.BatchSize(step); ++i) {
        const Sample sample = sampler.At(step, i);
        seen.emplace_back(sample.start, sample.targets);
        ASSERT_EQ(sample.ordinal, ordinal++);
        targets += sample.targets;
      }
      ASSERT_EQ(sampler.TargetsBefore(step), before) << "step " << step;
      ASSERT_EQ(sampler.BatchTargets(step), targets) << "step " << step;
      before += targets;
    }
    if (!options.shuffle) {
      ASSERT_EQ(seen, expected);
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen, expected) << "each window once an epoch";
  }
}

TEST(Sampler, EveryWindowOnceAnEpochWithExactCounts) {
  for (const std::int64_t tokens : {2, 3, 17, 32, 33, 34, 65, 100, 257}) {
    for (const std::int64_t length : {1, 5, 16, 32, 300}) {
      for (const std::int64_t stride :
           {std::int64_t{1}, std::int64_t{3}, length, length + 2, 3 * length + 1}) {
        for (const std::int64_t batch : {1, 4, 7, 1000}) {
          for (const bool shuffle : {true, false}) {
            SCOPED_TRACE(testing::Message() << tokens << " tokens, length " << length << ", stride "
                                            << stride << ", batch " << batch);
            ASSERT_NO_FATAL_FAILURE(CheckEpochs({tokens, length, stride, batch, 3, shuffle}));
          }
        }
      }
    }
  }
}

TEST(Sampler, FollowsTheFormulaOfWindows) {
  EXPECT_EQ(Sampler({33, 32, 32, 1, 1, true}).Windows(), 1);
  EXPECT_EQ(Sampler({34, 32, 32, 1, 1, true}).Windows(), 2);
  EXPECT_EQ(Sampler({34, 32, 1, 1, 1, true}).Windows(), 2);
  EXPECT_EQ(Sampler({2'088'628, 32, 32, 512, 1, true}).Windows(), 65'270);
  EXPECT_EQ(Sampler({2'088'628, 32, 32, 512, 1, true}).StepsPerEpoch(), 128);
}

TEST(Sampler, EveryTargetOnceWhenStrideIsLength) {
  const Sampler sampler({1001, 16, 16, 6, 9, true});
  std::vector<int> uses(1001, 0);
  for (std::int64_t step = 0; step < sampler.StepsPerEpoch(); ++step) {
    for (const Sample& sample : sampler.Share(step, 0, 1)) {
      for (std::int64_t t = 1; t <= sample.targets; ++t) {
        ++uses[static_cast<std::size_t>(sample.start + t)];
      }
    }
  }
  EXPECT_EQ(uses.front(), 0);  // no token predicts the first
  EXPECT_TRUE(std::all_of(uses.begin() + 1, uses.end(), [](int n) { return n == 1; }));
}

TEST(Sampler, AnyNumberOfRanksTakesTheSameGlobalBatch) {
  const Sampler sampler({500, 8, 8, 13, 4, true});
  for (std::int64_t step = 0; step < 2 * sampler.StepsPerEpoch(); ++step) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::int64_t position = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto share = sampler.Share(step, rank, ranks);
        // Shares differ by one window at most.
        EXPECT_LE(static_cast<std::int64_t>(share.size()), sampler.BatchSize(step) / ranks + 1);
        for (const Sample& sample : share) {
          const Sample expected = sampler.At(step, position++);
          ASSERT_EQ(sample.ordinal, expected.ordinal);
          ASSERT_EQ(sample.start, expected.start);
          ASSERT_EQ(sample.targets, expected.targets);
        }
      }
      ASSERT_EQ(position, sampler.BatchSize(step));
    }
  }
}

TEST(Sampler, FillsWhatTheBatchHas) {
  const Sampler sampler({500, 8, 8, 13, 4, true});
  std::vector<Sample> samples(40);
  const std::int64_t last = sampler.StepsPerEpoch() - 1, size = sampler.BatchSize(last);
  ASSERT_LT(size, 13);
  sampler.Fill(last, {size - 2, 13}, samples);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].ordinal, sampler.At(last, size - 2).ordinal);
  EXPECT_EQ(samples[1].ordinal, sampler.At(last, size - 1).ordinal);
  sampler.Fill(last, {13, 26}, samples);
  EXPECT_TRUE(samples.empty());
}

// A wrong loop over steps would take years here.
TEST(Sampler, CountsFarAheadAtOnce) {
  const Sampler sampler({std::int64_t{1} << 40, 128, 128, 1024, 1, true});
  const std::int64_t epoch_targets = (std::int64_t{1} << 40) - 1;
  EXPECT_EQ(sampler.TargetsBefore(1000 * sampler.StepsPerEpoch()), 1000 * epoch_targets);
  EXPECT_GT(sampler.BatchTargets(123'456'789), 1023 * 128);
}

// Beyond 2^31 tokens, windows and samples: no index is cut to 32 bits.
TEST(Sampler, ReachesTokensBeyond2To31) {
  constexpr std::int64_t kTokens = (std::int64_t{1} << 40) + 77, kLength = 8;
  constexpr std::int64_t kWindows = (std::int64_t{1} << 37) + 10;  // the last one has 4 targets
  for (const bool shuffle : {false, true}) {
    const Sampler sampler({kTokens, kLength, kLength, 1024, 3, shuffle});
    ASSERT_EQ(sampler.Windows(), kWindows);
    for (const std::int64_t k :
         {std::int64_t{1} << 31, (std::int64_t{1} << 36) + 5, kWindows - 1}) {
      const Sample sample = sampler.At(k / 1024, k % 1024);
      const std::int64_t window = shuffle ? Permute(3, 0, k, kWindows) : k;
      EXPECT_EQ(sample.ordinal, k);
      EXPECT_EQ(sample.start, window * kLength);
      EXPECT_EQ(sample.targets, window == kWindows - 1 ? 4 : kLength);
    }
    // The whole of an epoch, and the next one's first sample.
    const std::int64_t steps = sampler.StepsPerEpoch();
    EXPECT_EQ(sampler.TargetsBefore(steps), kTokens - 1);
    EXPECT_EQ(sampler.At(steps, 0).ordinal, kWindows);
  }
}

// The two shares of a batch beyond 2^31 windows meet where they should.
TEST(Sampler, SharesOfAHugeBatch) {
  constexpr std::int64_t kWindows = (std::int64_t{1} << 36) + 1, kBatch = kWindows;
  const Sampler sampler({kWindows + 1, 1, 1, kBatch, 3, false});
  std::vector<Sample> samples;
  const Part first = PartOf(kBatch, 1, 3), second = PartOf(kBatch, 2, 3);
  EXPECT_EQ(first.end, second.begin);
  sampler.Fill(0, {first.end - 1, second.begin + 1}, samples);
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0].start, 2 * kBatch / 3 - 1);
  EXPECT_EQ(samples[1].start, 2 * kBatch / 3);
}

TEST(Sampler, RefusesImpossibleOptions) {
  using testing::HasSubstr;
  EXPECT_THAT(MessageOf([] { Sampler({1, 8, 8, 1, 1, true}); }), HasSubstr("tokens is 1"));
  EXPECT_THAT(MessageOf([] { Sampler({9, 0, 8, 1, 1, true}); }), HasSubstr("sequence_length is 0"));
  EXPECT_THAT(MessageOf([] { Sampler({9, 8, 0, 1, 1, true}); }), HasSubstr("data.stride is 0"));
  EXPECT_THAT(MessageOf([] { Sampler({9, 8, 8, 0, 1, true}); }), HasSubstr("data.batch is 0"));
  EXPECT_THROW(Permute(1, 0, 5, 5), std::logic_error);
}

}  // namespace
}  // namespace trireme::data
