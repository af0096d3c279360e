// Steps counted from a position in the data: an unchanged run stays as it is, another batch uses
// every window once per epoch, other windows keep the epoch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "scratch.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;

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
    EXPECT_THAT(message(far), HasSubstr("no position of a run of 100 windows"));
  }
  Sampler::Options finer = good;
  finer.length = finer.stride = 1;
  EXPECT_THAT(MessageOf([&] { MoveOrigin({0, kMost, 0}, good, finer); }), HasSubstr("no position"));
}

}  // namespace
}  // namespace trireme::data
