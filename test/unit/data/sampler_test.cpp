// The sampler: permutations, where a sample comes from, and the batches that are made of samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "scratch.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The sampler: permutations, and where a sample comes from.

// The order of samples: a bijection, the same on any number of ranks, each window once an epoch.

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

// Steps counted from a position in the data: an unchanged run stays as it is, another batch uses
// every window once per epoch, other windows keep the epoch.

constexpr double kEpochs[] = {0.001, 0.3, 0.5, 1, 1.3, 1.7, 2, 2.25, 2.999, 3, 4.5};

// Shapes with whole and short last windows, whole and short last batches, one window, one step.
void EachShape(const std::function<void(const Sampler::Options&)>& body) {
  for (const std::int64_t tokens : {2, 17, 34, 65, 100}) {
    for (const std::int64_t length : {1, 5, 16, 300}) {
      for (const std::int64_t stride : {std::int64_t{3}, length, length + 2}) {
        for (const std::int64_t batch : {1, 4, 7, 1000}) {
          for (const bool shuffle : {true, false}) {
            SCOPED_TRACE(testing::Message() << tokens << " tokens, length " << length << ", stride "
                                            << stride << ", batch " << batch);
            body({tokens, length, stride, batch, 3, shuffle, {}});
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

Origin PositionOf(const Sampler& sampler, std::int64_t step) {
  return {step, sampler.NextSample(step), sampler.TargetsBefore(step)};
}

Sampler Continued(Sampler::Options options, const Origin& origin) {
  options.origin = origin;
  return Sampler(options);
}

// Numbers that follow from the step alone must be those of the formulas of a run from step 0.
void CheckPlain(const Sampler& plain, const Sampler::Options& options, std::int64_t step) {
  const std::int64_t steps = plain.StepsPerEpoch();
  ASSERT_EQ(plain.NextSample(step), step / steps * plain.Windows() + step % steps * options.batch);
  ASSERT_EQ(plain.Epochs(step), static_cast<double>(step) / static_cast<double>(steps));
  ASSERT_EQ(plain.BatchSize(step),
            std::min(options.batch, plain.Windows() - step % steps * options.batch));
}

void CheckSame(const Sampler& got, const Sampler& wanted, std::int64_t step) {
  ASSERT_EQ(got.BatchSize(step), wanted.BatchSize(step)) << "step " << step;
  ASSERT_EQ(got.BatchTargets(step), wanted.BatchTargets(step)) << "step " << step;
  ASSERT_EQ(got.TargetsBefore(step), wanted.TargetsBefore(step)) << "step " << step;
  ASSERT_EQ(got.NextSample(step), wanted.NextSample(step)) << "step " << step;
  ASSERT_EQ(got.Epochs(step), wanted.Epochs(step)) << "step " << step;
  for (std::int64_t i = 0; i < got.BatchSize(step); ++i) {
    const Sample a = got.At(step, i), b = wanted.At(step, i);
    ASSERT_EQ(a.ordinal, b.ordinal) << "step " << step;
    ASSERT_EQ(a.start, b.start) << "step " << step;
    ASSERT_EQ(a.targets, b.targets) << "step " << step;
  }
}

// The ends of `whole`, seen from a later position of the same run: those ahead are the same.
void CheckEnds(const Sampler& later, const Sampler& whole, std::int64_t step) {
  for (const double epochs : kEpochs) {
    const std::int64_t end = whole.StepsOf(epochs);
    ASSERT_EQ(later.StepsOf(epochs), std::max(end, step)) << epochs << " epochs";
  }
}

TEST(SamplerOrigin, AnUnchangedRunStaysAsItIs) {
  EachShape([](const Sampler::Options& options) {
    const Sampler plain(options);
    const std::int64_t steps = plain.StepsPerEpoch();
    for (const double epochs : kEpochs) {
      const auto wanted = std::llround(epochs * static_cast<double>(steps));
      ASSERT_EQ(plain.StepsOf(epochs), std::max<std::int64_t>(1, wanted)) << epochs;
    }
    for (std::int64_t s = 0; s <= 2 * steps + 1; s += std::max<std::int64_t>(1, steps / 7)) {
      ASSERT_NO_FATAL_FAILURE(CheckPlain(plain, options, s));
      const Sampler later = Continued(options, PositionOf(plain, s));
      ASSERT_NO_FATAL_FAILURE(CheckEnds(later, plain, s));
      for (std::int64_t step = s; step < s + steps + 2; ++step) {
        ASSERT_NO_FATAL_FAILURE(CheckSame(later, plain, step)) << "from step " << s;
      }
    }
  });
}

// A run in parts of different batches.
class Journey {
 public:
  explicit Journey(const Sampler::Options& options) : options_(options) { options_.origin = {}; }
  const Sampler::Options& Options() const { return options_; }
  std::int64_t Step() const { return step_; }

  void Change(std::int64_t batch) {
    Sampler::Options next = options_;
    next.batch = batch;
    next.origin = MoveOrigin(PositionOf(Sampler(options_), step_), options_, next);
    options_ = next;
  }
  void Run(std::int64_t steps) {
    const Sampler sampler(options_);
    for (const std::int64_t end = step_ + steps; step_ < end; ++step_) {
      ASSERT_EQ(sampler.TargetsBefore(step_), targets_) << "step " << step_;
      ASSERT_EQ(sampler.NextSample(step_), std::ssize(samples_)) << "step " << step_;
      std::int64_t targets = 0;
      ASSERT_GT(sampler.BatchSize(step_), 0);
      for (std::int64_t i = 0; i < sampler.BatchSize(step_); ++i) {
        const Sample sample = sampler.At(step_, i);
        ASSERT_EQ(sample.ordinal, std::ssize(samples_)) << "step " << step_;
        samples_.push_back(sample);
        targets += sample.targets;
      }
      ASSERT_EQ(sampler.BatchTargets(step_), targets) << "step " << step_;
      targets_ += targets;
    }
  }
  // Each window once per epoch, in the epoch's own order.
  void CheckEpochs(std::int64_t epochs) const {
    const std::int64_t windows = Sampler(options_).Windows();
    ASSERT_EQ(std::ssize(samples_), epochs * windows);
    std::vector<int> uses(static_cast<std::size_t>(epochs * windows));
    for (const Sample& sample : samples_) {
      const std::int64_t epoch = sample.ordinal / windows, k = sample.ordinal % windows;
      const std::int64_t window = sample.start / options_.stride;
      ASSERT_EQ(window, options_.shuffle ? Permute(options_.seed, epoch, k, windows) : k);
      ++uses[static_cast<std::size_t>(epoch * windows + window)];
    }
    ASSERT_TRUE(std::all_of(uses.begin(), uses.end(), [](int n) { return n == 1; }));
  }

 private:
  Sampler::Options options_;
  std::int64_t step_ = 0, targets_ = 0;
  std::vector<Sample> samples_;
};

// The rest of the journey, from each later step: resumed there with the same batch, it is the same.
void CheckLaterOrigins(const Sampler::Options& options, std::int64_t step, std::int64_t end) {
  const Sampler sampler(options);
  for (std::int64_t s = step; s <= end; ++s) {
    const Sampler later = Continued(options, PositionOf(sampler, s));
    ASSERT_NO_FATAL_FAILURE(CheckEnds(later, sampler, s)) << "from step " << s;
    for (std::int64_t next = s; next <= end; ++next) {
      ASSERT_NO_FATAL_FAILURE(CheckSame(later, sampler, next)) << "from step " << s;
    }
  }
}

TEST(SamplerOrigin, EveryWindowOnceAnEpochWhateverTheBatch) {
  for (const std::int64_t batch : {1, 3, 5, 40, 1000}) {
    for (const std::int64_t steps : {0, 1, 2, 5}) {
      EachShape([&](const Sampler::Options& options) {
        SCOPED_TRACE(testing::Message() << "then batch " << batch << " after " << steps);
        Journey journey(options);
        const std::int64_t third = 3 * Sampler(options).StepsPerEpoch();
        ASSERT_NO_FATAL_FAILURE(journey.Run(std::min(steps, third)));
        journey.Change(batch);
        const std::int64_t more =
            std::min<std::int64_t>(2, Sampler(journey.Options()).StepsOf(3) - journey.Step());
        ASSERT_NO_FATAL_FAILURE(journey.Run(more));
        journey.Change(batch + 1);
        const std::int64_t end = Sampler(journey.Options()).StepsOf(3);
        ASSERT_NO_FATAL_FAILURE(journey.Run(end - journey.Step()));
        ASSERT_NO_FATAL_FAILURE(journey.CheckEpochs(3));
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SamplerOrigin, AChangedRunIsTheSameFromEveryLaterStep) {
  for (const bool shuffle : {true, false}) {
    for (const std::int64_t batch : {2, 5, 11}) {
      for (const std::int64_t steps : {1, 3, 4, 9}) {
        Journey journey({122, 5, 5, 4, 3, shuffle, {}});  // 25 windows, the last one short
        ASSERT_NO_FATAL_FAILURE(journey.Run(steps));
        journey.Change(batch);
        ASSERT_NO_FATAL_FAILURE(CheckLaterOrigins(journey.Options(), steps, steps + 20));
      }
    }
  }
}

// 25 windows: 7 steps of 4 per epoch. After 3 steps, 13 windows are left.
TEST(SamplerOrigin, EpochsAndEndsAfterAChange) {
  const Sampler::Options before{126, 5, 5, 4, 3, true, {}};
  Sampler::Options now = before;
  now.batch = 10;
  now.origin = PositionOf(Sampler(before), 3);
  const Sampler sampler(now);
  EXPECT_EQ(sampler.Windows(), 25);
  EXPECT_EQ(sampler.Epochs(3), 12.0 / 25);
  EXPECT_EQ(sampler.BatchSize(3), 10);
  EXPECT_EQ(sampler.Epochs(4), 22.0 / 25);
  EXPECT_EQ(sampler.BatchSize(4), 3);
  EXPECT_EQ(sampler.Epochs(5), 1);
  EXPECT_EQ(sampler.Epochs(6), 1 + 10.0 / 25);
  EXPECT_EQ(sampler.StepsOf(1), 5);
  EXPECT_EQ(sampler.StepsOf(3), 11);
  EXPECT_EQ(sampler.StepsOf(1.7), 7);  // 0.7 of an epoch is 2 of its 3 steps
  EXPECT_EQ(sampler.StepsOf(0.7), 4);  // two steps of 10 windows: 8 windows away
  EXPECT_EQ(sampler.StepsOf(0.3), 3);  // 10 windows: passed already
  EXPECT_THROW(sampler.BatchSize(2), std::logic_error);
}

TEST(SamplerOrigin, OtherWindowsKeepTheEpochAndItsFraction) {
  const Sampler::Options from{1001, 10, 10, 8, 3, true, {}};  // 100 windows
  const Origin at{40, 2 * 100 + 56, 2560};
  for (const std::int64_t length : {5, 7, 20, 300}) {
    for (const std::int64_t stride : {std::int64_t{3}, length}) {
      Sampler::Options to = from;
      to.length = length;
      to.stride = stride;
      to.origin = MoveOrigin(at, from, to);
      const Sampler sampler(to);
      const std::int64_t windows = sampler.Windows();
      EXPECT_EQ(to.origin.step, 40);
      EXPECT_EQ(to.origin.targets, 2560);
      EXPECT_EQ(to.origin.sample, 2 * windows + windows * 56 / 100) << length << ", " << stride;
      EXPECT_EQ(sampler.TargetsBefore(40), 2560);
      EXPECT_EQ(sampler.At(40, 0).ordinal, to.origin.sample);
      EXPECT_EQ(sampler.NextSample(sampler.StepsOf(3)), 3 * windows);
    }
  }
  // At an epoch's boundary nothing is repeated or skipped.
  Sampler::Options to = from;
  to.length = to.stride = 7;
  EXPECT_EQ(MoveOrigin({26, 200, 2000}, from, to).sample, 2 * Sampler(to).Windows());
  // More tokens of the same windows.
  to = from;
  to.tokens = 2001;
  EXPECT_EQ(MoveOrigin(at, from, to).sample, 2 * 200 + 112);
  // Another batch or seed: the sample itself.
  to = from;
  to.batch = 3;
  to.seed = 4;
  EXPECT_EQ(MoveOrigin(at, from, to).sample, at.sample);
}

// Products of windows beyond 64 bits.
TEST(SamplerOrigin, MovesFarAheadExactly) {
  const Sampler::Options from{
      (std::int64_t{1} << 42) + 1, 4, 4, 1024, 3, true, {}};  // 2^40 windows
  Sampler::Options to = from;
  to.length = to.stride = 2;
  const std::int64_t k = (std::int64_t{1} << 39) + 12345;
  EXPECT_EQ(MoveOrigin({7, (std::int64_t{3} << 40) + k, 9}, from, to).sample,
            (std::int64_t{3} << 41) + 2 * k);
}

// A batch that grows, against a plain loop over the windows in the order of a run that takes one at
// a time; epochs end with short batches.
class SamplerRamp : public testing::Test {
 protected:
  static void Check(const Sampler::Options& options) {
    const Sampler sampler(options);
    Sampler::Options by_one = options;
    by_one.ramp = {};
    by_one.batch = 1;
    const Sampler one(by_one);
    const BatchRamp& ramp = options.ramp;
    const std::int64_t start = std::min(ramp.start, options.batch);
    std::int64_t ordinal = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      std::int64_t size = options.batch;
      if (step < ramp.steps) size = start + (options.batch - start) * step / ramp.steps;
      size = std::min(size, one.Windows() - ordinal % one.Windows());
      ASSERT_EQ(sampler.BatchSize(step), size) << "step " << step;
      ASSERT_EQ(sampler.NextSample(step), ordinal) << "step " << step;
      ASSERT_EQ(sampler.TargetsBefore(step), one.TargetsBefore(ordinal)) << "step " << step;
      ASSERT_EQ(sampler.Places(step), one.Places(ordinal)) << "step " << step;
      std::vector<Sample> samples;
      sampler.Fill(step, {0, size + 5}, samples);
      ASSERT_EQ(std::ssize(samples), size) << "step " << step;
      for (const Sample& sample : samples) {
        const Sample wanted = one.At(ordinal, 0);
        ASSERT_EQ(sample.ordinal, ordinal++);
        ASSERT_EQ(sample.start, wanted.start);
        ASSERT_EQ(sample.targets, wanted.targets);
        ASSERT_EQ(sample.source, wanted.source);
      }
    }
    CheckEndsByLoop(sampler, options);
    for (const std::int64_t stop : {1, 2, 9, 39, 40, 41}) {
      Origin origin = PositionOf(sampler, stop);
      origin.sources = sampler.Places(stop);
      const Sampler later = Continued(options, origin);
      for (std::int64_t step = stop; step < kSteps; ++step) {
        ASSERT_NO_FATAL_FAILURE(CheckSame(later, sampler, step));
      }
      CheckEnds(later, sampler, stop);
    }
  }

  // A run ends at the first step that reaches the place at which one of whole batches ends.
  static void CheckEndsByLoop(const Sampler& sampler, const Sampler::Options& options) {
    const std::int64_t each = sampler.StepsPerEpoch();
    for (const double epochs : kEpochs) {
      const auto all = std::max<std::int64_t>(1, std::llround(epochs * static_cast<double>(each)));
      const std::int64_t end = all / each * sampler.Windows() + all % each * options.batch;
      std::int64_t step = 0;
      while (sampler.NextSample(step) < end) ++step;
      ASSERT_EQ(sampler.StepsOf(epochs), step) << epochs << " epochs";
    }
  }

  static constexpr std::int64_t kSteps = 70;
};

TEST_F(SamplerRamp, IsThePlainLoopOverWindows) {
  for (const std::int64_t tokens : {17, 65, 300}) {
    for (const std::int64_t batch : {1, 4, 13, 1000}) {
      for (const std::int64_t start : {1, 3, 13}) {
        for (const std::int64_t steps : {1, 3, 11, 40, 1000}) {
          SCOPED_TRACE(testing::Message() << tokens << " tokens, batches from " << start << " to "
                                          << batch << " over " << steps << " steps");
          Sampler::Options options{tokens, 5, 3, batch, 3, true};
          options.ramp = {steps, start};
          ASSERT_NO_FATAL_FAILURE(Check(options));
        }
      }
    }
  }
}

TEST_F(SamplerRamp, GoesThroughAMixture) {
  Sampler::Options options{.length = 5,
                           .stride = 5,
                           .batch = 9,
                           .seed = 3,
                           .sources = {{83, {.weight = 2}}, {41, {.weight = 1}}},
                           .ramp = {20, 2}};
  Check(options);
}

TEST_F(SamplerRamp, EndsWithWholeBatches) {
  const Sampler sampler({.tokens = std::int64_t{1} << 40,
                         .length = 128,
                         .stride = 128,
                         .batch = 1536,
                         .ramp = {kMostRampSteps, 16}});
  EXPECT_EQ(sampler.BatchSize(0), 16);
  EXPECT_EQ(sampler.BatchSize(kMostRampSteps / 2), 776);
  EXPECT_EQ(sampler.BatchSize(kMostRampSteps - 1), 1535);
  EXPECT_EQ(sampler.BatchSize(kMostRampSteps), 1536);
  std::int64_t windows = 0;
  for (std::int64_t t = 0; t < kMostRampSteps; ++t) windows += 16 + 1520 * t / kMostRampSteps;
  EXPECT_EQ(sampler.NextSample(kMostRampSteps), windows);
  EXPECT_EQ(sampler.NextSample(kMostRampSteps + 1'000'000), windows + 1'536'000'000);
  EXPECT_THAT(MessageOf([] {
                Sampler({.tokens = 9, .length = 8, .stride = 8, .batch = 2, .ramp = {5, 0}});
              }),
              HasSubstr("schedule.batch_start is 0"));
}

TEST(SamplerOrigin, RefusesPositionsOfNoRun) {
  const Sampler::Options good{1001, 10, 10, 8, 3, true, {}};
  const auto message = [&](const Origin& origin) {
    return MessageOf([&] { Continued(good, origin); });
  };
  EXPECT_THAT(message({-1, 0, 0}), HasSubstr("the step to continue from is -1"));
  EXPECT_THAT(message({0, -1, 0}), HasSubstr("next_sample is -1"));
  EXPECT_THAT(message({0, 0, -1}), HasSubstr("tokens seen is -1"));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const Origin& far : {Origin{kMost, 0, 0}, Origin{0, kMost, 0}, Origin{0, 0, kMost}}) {
    EXPECT_THAT(message(far), HasSubstr("not a position of a run of 100 windows"));
  }
  Sampler::Options finer = good;
  finer.length = finer.stride = 1;
  EXPECT_THAT(MessageOf([&] {
                MoveOrigin({0, kMost, 0}, good, finer);
              }),
              HasSubstr("not a position"));
}

// Batches, and the masks and documents in them.

// Masks of documents and of the loss in entries, against their definitions position by position.

// Tokens with documents and a mask of the loss, both at random, and the rules read off them.
struct Text {
  explicit Text(std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&](int count) { return static_cast<int>(random() % count); };
    constexpr int kTokens = 90, kWords = 4;
    const int rarity = 1 + below(12);
    for (std::int64_t i = 0; i < kTokens; ++i) {
      ids.push_back(below(kWords));
      begins.push_back(i == 0 || below(rarity) == 0);
      counted.push_back(below(3) > 0 ? 1 : 0);
    }
    data = SmallData();
    data.tokens[0] = ids;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      if (begins[static_cast<std::size_t>(i)]) data.documents[0].push_back(i);
    }
    data.counted[0] = counted;
  }

  // Position in a window from `start` on of the beginning of the document of position `at`.
  std::int64_t BeginOf(std::int64_t start, std::int64_t at) const {
    while (at > 0 && !begins.at(static_cast<std::size_t>(start + at))) --at;
    return at;
  }

  std::vector<std::int32_t> ids;
  std::vector<bool> begins;
  std::vector<std::uint8_t> counted;
  TokenData data;
};

TokenFile InMemory(const TokenData& data) {
  return TokenFile(comm::Communicator::Adopt(MPI_COMM_SELF), data);
}

struct Masks {
  bool documents = false, loss = false;
};
constexpr std::array<Masks, 4> kMasks = {Masks{}, Masks{true, false}, Masks{false, true},
                                         Masks{true, true}};

// The entry of `samples` by the definitions.
void Expect(const Text& text, const Masks& masks, const std::vector<Sample>& samples,
            const Entry& entry, const std::string& what) {
  std::int64_t valid = 0, keys = 0;
  ASSERT_EQ(entry.begins.size(), masks.documents ? entry.inputs.size() : 0) << what;
  std::size_t row = 0;
  for (const Sample& sample : samples) {
    for (std::int64_t p = 0; p < entry.length; ++p, ++row) {
      const std::int64_t at = entry.positions.At(p);
      const bool there = at < sample.targets;
      const auto target = static_cast<std::size_t>(sample.start + at + 1);
      const bool counts = there && !(masks.documents && text.begins[target]) &&
                          !(masks.loss && text.counted[target] == 0);
      valid += counts ? 1 : 0;
      EXPECT_EQ(entry.inputs[row], there ? text.ids[target - 1] : 0) << what;
      EXPECT_EQ(entry.targets[row], counts ? text.ids[target] : kMasked) << what;
      if (!masks.documents) continue;
      if (there) {
        const std::int64_t begin = text.BeginOf(sample.start, at);
        EXPECT_EQ(entry.begins[row], begin) << what << ", position " << at;
        keys += at - begin + 1;
      } else {
        EXPECT_LE(entry.begins[row], at) << what;
      }
      if (p == 0) continue;
      EXPECT_GE(entry.begins[row], entry.begins[row - 1]) << what;
    }
  }
  EXPECT_EQ(entry.valid, valid) << what;
  EXPECT_EQ(entry.visible_keys, keys) << what;
}

TEST(BatchMasks, FollowTheirDefinitionsAtEveryPosition) {
  constexpr std::int64_t kLength = 11;
  Entry entry;  // reused: nothing of the last fill is left
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const Text text(seed);
    // At the split's beginning and end, overlapping, and short.
    const std::vector<Sample> samples = {{0, 0, kLength}, {1, 3 + seed % 40, kLength},
                                         {2, 78, 11},     {3, 80, 9},
                                         {4, 88, 1},      {5, 20 + seed % 7, 5}};
    for (const Masks& masks : kMasks) {
      TokenData data = text.data;
      if (!masks.loss) data.counted[0].clear();
      const TokenFile file = InMemory(data);
      const Turn windows(samples, file, Split::kTrain);
      for (const int ranks : {1, 2, 3, 6, 13}) {
        for (int rank = 0; rank < ranks; ++rank) {
          FillEntry(windows, kLength, entry, PositionsOf(kLength, rank, ranks), masks.documents);
          Expect(text, masks, samples, entry,
                 "seed " + std::to_string(seed) + ", rank " + std::to_string(rank) + " of " +
                     std::to_string(ranks));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The same entry from the file's own tokens, whose mask of the loss always counts.
TEST(BatchMasks, TheLossMaskCountsWithoutBeingAskedFor) {
  const Text text(7);
  const TokenFile file = InMemory(text.data);
  const std::vector<Sample> samples = {{0, 5, 8}, {1, 40, 8}};
  Entry entry;
  FillEntry({samples, file, Split::kTrain}, 8, entry);
  Expect(text, {.documents = false, .loss = true}, samples, entry, "from the file");
}

TEST(BatchMasks, DocumentsThatBeginAtTheEdgesOfAWindow) {
  TokenData data = SmallData();  // 0 1 2 3 0 1 2 3 1 0
  data.documents[0] = {0, 2, 6, 7};
  const TokenFile file = InMemory(data);
  const std::vector<Sample> samples = {{0, 2, 4}, {1, 3, 4}, {2, 8, 1}};
  const Turn windows(samples, file, Split::kTrain);
  EXPECT_THAT(Copy(windows[0]).documents, ElementsAre(0, 4));  // the last is a target alone
  EXPECT_THAT(Copy(windows[1]).documents, ElementsAre(3, 4));
  EXPECT_THAT(Copy(windows[2]).documents, ElementsAre());
  Entry entry;
  FillEntry(windows, 4, entry, {}, true);
  EXPECT_THAT(entry.begins, ElementsAre(0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0));
  EXPECT_THAT(entry.targets,
              ElementsAre(3, 0, 1, kMasked, 0, 1, kMasked, kMasked, 0, kMasked, kMasked, kMasked));
  EXPECT_EQ(entry.valid, 3 + 2 + 1);
  EXPECT_EQ(entry.visible_keys, 10 + (6 + 1) + 1);
}

TEST(BatchMasks, AWindowOfFewerTokensThanItsSampleIsRefused) {
  const std::vector<Window> windows = {{{1, 2, 3}, {}, {}}};
  Entry entry;
  EXPECT_THROW(FillEntry({std::vector<Sample>{{0, 0, 3}}, windows}, 4, entry), std::logic_error);
  EXPECT_NO_THROW(FillEntry({std::vector<Sample>{{0, 0, 2}}, windows}, 4, entry));
}

// Micro-batches: windows side by side, shifted targets, masked tails.

class Batch : public Scratch {};

TEST_F(Batch, HoldsInputsShiftedTargetsAndMasks) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));  // train: 0 1 2 3 0 1 2 3 1 0
  const std::vector<Sample> samples = {{5, 1, 4}, {std::int64_t{1} << 40, 8, 1}};
  Entry batch;
  FillEntry({samples, file, Split::kTrain}, 4, batch);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.length, 4);
  EXPECT_EQ(batch.valid, 5);
  EXPECT_THAT(batch.inputs, ElementsAre(1, 2, 3, 0, 1, 0, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(2, 3, 0, 1, 0, kMasked, kMasked, kMasked));
  EXPECT_THAT(batch.ordinals, ElementsAre(5u, std::uint64_t{1} << 40));
}

TEST_F(Batch, ForgetsTheLastFillAndTakesOtherSplits) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));
  Entry batch;
  FillEntry({std::vector<Sample>(3, Sample{0, 0, 4}), file, Split::kTrain}, 4, batch);
  FillEntry({std::vector<Sample>{{1, 0, 2}}, file, Split::kValid}, 2, batch);
  EXPECT_THAT(batch.inputs, ElementsAre(3, 2));
  EXPECT_THAT(batch.targets, ElementsAre(2, 1));
  EXPECT_THAT(batch.ordinals, ElementsAre(1u));
  EXPECT_EQ(batch.valid, 2);
  FillEntry({{}, file, Split::kTest}, 2, batch);  // a rank without a share
  EXPECT_EQ(batch.sequences, 0);
  EXPECT_TRUE(batch.inputs.empty());
}

// Parts of the ranks of a context group make up the whole window, in the order of their blocks.
TEST_F(Batch, HoldsSomePositionsOfEachWindow) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));  // train: 0 1 2 3 0 1 2 3 1 0
  const std::vector<Sample> samples = {{5, 1, 5}, {6, 6, 3}};
  Entry batch;
  FillEntry({samples, file, Split::kTrain}, 5, batch, PositionsOf(5, 0, 2));
  EXPECT_EQ(batch.length, 3);  // positions 0; 3, 4
  EXPECT_THAT(batch.inputs, ElementsAre(1, 0, 1, 2, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(2, 1, 2, 3, kMasked, kMasked));
  EXPECT_EQ(batch.valid, 4);
  EXPECT_EQ(batch.positions.At(1), 3);
  EXPECT_THAT(batch.ordinals, ElementsAre(5u, 6u));
  FillEntry({samples, file, Split::kTrain}, 5, batch, PositionsOf(5, 1, 2));
  EXPECT_EQ(batch.length, 2);  // positions 1; 2
  EXPECT_THAT(batch.inputs, ElementsAre(2, 3, 3, 1));
  EXPECT_THAT(batch.targets, ElementsAre(3, 0, 1, 0));
  EXPECT_EQ(batch.valid, 4);
}

TEST_F(Batch, CutWindowsLoseAndRepeatNothing) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));
  const std::vector<Sample> samples = {{0, 0, 7}, {1, 5, 4}, {2, 2, 1}};
  Entry whole, part;
  FillEntry({samples, file, Split::kTrain}, 7, whole);
  EXPECT_EQ(whole.positions.Count(), 7);
  for (const int ranks : {1, 2, 3, 7, 8}) {
    std::vector<int> seen(21, 0);
    std::int64_t valid = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      FillEntry({samples, file, Split::kTrain}, 7, part, PositionsOf(7, rank, ranks));
      valid += part.valid;
      ASSERT_EQ(part.inputs.size(), static_cast<std::size_t>(3 * part.length));
      for (std::int64_t row = 0; row < 3 * part.length; ++row) {
        const auto at =
            static_cast<std::size_t>(row / part.length * 7 + part.positions.At(row % part.length));
        ++seen[at];
        EXPECT_EQ(part.inputs[static_cast<std::size_t>(row)], whole.inputs[at]);
        EXPECT_EQ(part.targets[static_cast<std::size_t>(row)], whole.targets[at]);
      }
    }
    EXPECT_EQ(valid, whole.valid);
    EXPECT_THAT(seen, testing::Each(1)) << ranks << " ranks";
  }
}

TEST_F(Batch, MayHoldNoPositions) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));
  Entry batch;
  const Positions none = PositionsOf(1, 1, 4);
  ASSERT_EQ(none.Count(), 0);
  FillEntry({std::vector<Sample>{{3, 0, 1}}, file, Split::kTrain}, 1, batch, none);
  EXPECT_EQ(batch.sequences, 1);
  EXPECT_EQ(batch.length, 0);
  EXPECT_EQ(batch.valid, 0);
  EXPECT_TRUE(batch.inputs.empty());
  EXPECT_TRUE(batch.targets.empty());
  EXPECT_THAT(batch.ordinals, ElementsAre(3u));
}

}  // namespace
}  // namespace trireme::data
