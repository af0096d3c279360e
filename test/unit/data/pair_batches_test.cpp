// Batches of pairs: each pair once, pure, within limits, little padding.
#include "trireme/data/pairs.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "scratch.hpp"
#include "trireme/data/batch.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;

constexpr double kMostPadding = 0.05;  // of all tokens
constexpr double kMostBytes = 8;       // per pair

struct Lengths {
  std::vector<std::int32_t> source, target;

  std::int64_t Pairs() const { return std::ssize(source); }
  ReadPairLengths Reader() const {
    return [this](std::int64_t first, std::span<std::int32_t> s, std::span<std::int32_t> t) {
      std::copy_n(source.begin() + first, s.size(), s.begin());
      std::copy_n(target.begin() + first, t.size(), t.begin());
    };
  }
};

// As of sentences cut into subwords: lognormal, mean 28, at most 250; a target has 1.1 times the
// source's length, give or take a fifth.
Lengths Sentences(int pairs) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Lengths lengths;
  for (int i = 0; i < pairs; ++i) {
    const double length = std::exp(3.15 + 0.6 * normal(random));
    const double ratio = 1.1 + 0.2 * normal(random);
    const auto cut = [](double value) {
      return std::clamp(static_cast<std::int32_t>(std::lround(value)), 2, 250);
    };
    lengths.source.push_back(cut(length));
    lengths.target.push_back(cut(length * ratio));
  }
  return lengths;
}

std::vector<std::int64_t> BatchOf(const PairBatches& batches, std::int64_t step) {
  std::vector<std::int64_t> pairs;
  batches.Fill(step, {0, batches.Shape(step).pairs}, pairs);
  return pairs;
}

TEST(PairBatches, HoldEachPairOnceWithinTheirLimits) {
  const Lengths lengths = Sentences(5000);
  for (const PairBatches::Options& options :
       {PairBatches::Options{.seed = 3, .target_tokens = 2000},
        PairBatches::Options{.seed = 3, .source_tokens = 900, .target_tokens = 700, .pairs = 40},
        PairBatches::Options{.seed = 3, .target_tokens = 0, .pairs = 17},
        PairBatches::Options{.seed = 3, .target_tokens = 2000, .shuffle = false}}) {
    const PairBatches batches(lengths.Pairs(), lengths.Reader(), options);
    std::vector<std::vector<std::int64_t>> epochs;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> all;
      std::int64_t targets = 0;
      for (std::int64_t turn = 0; turn < batches.StepsPerEpoch(); ++turn) {
        const std::int64_t step = epoch * batches.StepsPerEpoch() + turn;
        const PairBatchShape shape = batches.Shape(step);
        const std::vector<std::int64_t> pairs = BatchOf(batches, step);
        ASSERT_EQ(std::ssize(pairs), shape.pairs);
        PairBatchShape found;
        for (const std::int64_t pair : pairs) {
          const std::int64_t source = lengths.source.at(static_cast<std::size_t>(pair));
          const std::int64_t target = lengths.target.at(static_cast<std::size_t>(pair));
          found.source_length = std::max(found.source_length, source);
          found.target_length = std::max(found.target_length, target);
          found.source_tokens += source;
          found.target_tokens += target;
        }
        EXPECT_EQ(shape.source_length, found.source_length);
        EXPECT_EQ(shape.target_length, found.target_length);
        EXPECT_EQ(shape.source_tokens, found.source_tokens);
        EXPECT_EQ(shape.target_tokens, found.target_tokens);
        const auto within = [&](std::int64_t value, std::int64_t limit) {
          return limit == 0 || value <= limit;
        };
        EXPECT_TRUE(within(shape.pairs, options.pairs));
        EXPECT_TRUE(within(shape.pairs * shape.source_length, options.source_tokens));
        EXPECT_TRUE(within(shape.pairs * shape.target_length, options.target_tokens));
        EXPECT_EQ(
            batches.TargetsBefore(step) - batches.TargetsBefore(epoch * batches.StepsPerEpoch()),
            targets);
        targets += shape.target_tokens;
        all.insert(all.end(), pairs.begin(), pairs.end());
      }
      epochs.push_back(all);
      std::ranges::sort(all);
      ASSERT_EQ(std::ssize(all), lengths.Pairs());
      for (std::int64_t i = 0; i < lengths.Pairs(); ++i) {
        ASSERT_EQ(all[static_cast<std::size_t>(i)], i);
      }
    }
    EXPECT_EQ(epochs[0] == epochs[1], !options.shuffle);
  }
}

// No other batch is nearer to the means.
TEST(PairBatches, HaveATypicalOne) {
  const Lengths lengths = Sentences(5000);
  const PairBatches batches(lengths.Pairs(), lengths.Reader(),
                            {.seed = 3, .source_tokens = 2000, .target_tokens = 2000});
  const auto sizes = [](const PairBatchShape& shape) {
    return std::array{shape.pairs, shape.pairs * shape.source_length,
                      shape.pairs * shape.target_length};
  };
  const std::int64_t steps = batches.StepsPerEpoch();
  std::array<double, 3> sums{};
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto these = sizes(batches.Shape(step));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(these[i]);
  }
  const auto apart = [&](const PairBatchShape& shape) {
    double sum = 0;
    const auto these = sizes(shape);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sum += std::abs(static_cast<double>(these[i] * steps) / sums[i] - 1);
    }
    return sum;
  };
  const double least = apart(batches.Typical());
  for (std::int64_t step = 0; step < steps; ++step) {
    EXPECT_GE(apart(batches.Shape(step)), least - 1e-12);
  }
}

// A later step needs no earlier one; shares of any number of replicas are contiguous.
TEST(PairBatches, ArePureFunctionsOfSeedAndStep) {
  const Lengths lengths = Sentences(3000);
  const PairBatches one(lengths.Pairs(), lengths.Reader(), {.seed = 5});
  const PairBatches again(lengths.Pairs(), lengths.Reader(), {.seed = 5});
  const PairBatches other(lengths.Pairs(), lengths.Reader(), {.seed = 6});
  bool differ = false;
  for (std::int64_t step = 2 * one.StepsPerEpoch() - 1; step > 0; step -= 3) {
    const std::vector<std::int64_t> batch = BatchOf(one, step);
    EXPECT_EQ(BatchOf(again, step), batch);
    differ = differ || BatchOf(other, step) != batch;
    for (const int replicas : {2, 3, 7}) {
      std::vector<std::int64_t> joined, share;
      for (int d = 0; d < replicas; ++d) {
        one.Fill(step, PartOf(one.Shape(step).pairs, d, replicas), share);
        joined.insert(joined.end(), share.begin(), share.end());
      }
      EXPECT_EQ(joined, batch) << replicas;
    }
  }
  EXPECT_TRUE(differ);
}

// Pairs of one length do not stay together: a batch of the second epoch is none of the first's.
TEST(PairBatches, MixPairsOfALength) {
  const Lengths lengths{.source = std::vector<std::int32_t>(400, 9),
                        .target = std::vector<std::int32_t>(400, 8)};
  const PairBatches batches(400, lengths.Reader(), {.seed = 1, .target_tokens = 0, .pairs = 50});
  ASSERT_EQ(batches.StepsPerEpoch(), 8);
  EXPECT_EQ(batches.PaddedShare(), 0);
  std::vector<std::int64_t> second = BatchOf(batches, 8);
  std::ranges::sort(second);
  for (std::int64_t step = 0; step < 8; ++step) {
    std::vector<std::int64_t> first = BatchOf(batches, step);
    std::ranges::sort(first);
    std::vector<std::int64_t> both;
    std::ranges::set_intersection(first, second, std::back_inserter(both));
    EXPECT_LT(both.size(), 25u) << step;
  }
}

TEST(PairBatches, PadLittleAndTakeLittleMemory) {
  for (const auto& [pairs, tokens] :
       {std::pair(200000, 4096), std::pair(100000, 4096), std::pair(200000, 16384)}) {
    const Lengths lengths = Sentences(pairs);
    const PairBatches batches(lengths.Pairs(), lengths.Reader(),
                              {.source_tokens = tokens, .target_tokens = tokens});
    const double bytes = static_cast<double>(batches.MemoryBytes()) / pairs;
    std::printf(
        "sentences: %d pairs, %d tokens: %ld batches, %.2f%% padding, %.1f bytes per pair\n", pairs,
        tokens, batches.StepsPerEpoch(), 100 * batches.PaddedShare(), bytes);
    EXPECT_LT(batches.PaddedShare(), kMostPadding);
    EXPECT_LT(bytes, kMostBytes);
  }
}

TEST(PairBatches, RefuseOrLeaveOutLongPairs) {
  const Lengths lengths{.source = {3, 9, 3, 4}, .target = {5, 5, 60, 6}};
  PairBatches::Options options{.target_tokens = 50, .longest_source = 8};
  const std::string message =
      MessageOf([&] { PairBatches(lengths.Pairs(), lengths.Reader(), options); });
  EXPECT_THAT(message, HasSubstr("2 of 4 pairs are too long for 8 source or 50 target tokens: "
                                 "pair 1 has 9 source and 5 target tokens"));
  options.long_pairs = LongPairs::kLeaveOut;
  const PairBatches batches(lengths.Pairs(), lengths.Reader(), options);
  EXPECT_EQ(batches.Pairs(), 2);
  EXPECT_EQ(batches.LeftOut(), 2);
  EXPECT_EQ(batches.StepsPerEpoch(), 1);
  EXPECT_THAT(BatchOf(batches, 0), testing::UnorderedElementsAre(0, 3));
  options.longest_source = 2;
  EXPECT_THAT(MessageOf([&] { PairBatches(lengths.Pairs(), lengths.Reader(), options); }),
              HasSubstr("none of 4 pairs"));
  EXPECT_THAT(
      MessageOf([&] { PairBatches(lengths.Pairs(), lengths.Reader(), {.target_tokens = 0}); }),
      HasSubstr("neither tokens nor pairs"));
}

class FilledPairs : public Scratch {};

TEST_F(FilledPairs, ArePaddedSideBySide) {
  TestDeck deck({"tokenize.kind=numerals", "tokenize.numerals_pairs=20000"});
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  TokenizeInParallel(self, ReadTokenize(deck.deck), deck.deck, In("a.h5"), {}, false);
  const PairFile file(self, self, In("a.h5"), Staging::kNone);
  const PairBatches batches(file.Pairs(Split::kTrain), LengthsOf(file, Split::kTrain),
                            {.source_tokens = 4096, .target_tokens = 4096});
  const double bytes = static_cast<double>(batches.MemoryBytes()) / 20000;
  std::printf("numerals: %ld batches, %.2f%% padding, %.1f bytes per pair\n",
              batches.StepsPerEpoch(), 100 * batches.PaddedShare(), bytes);
  EXPECT_LT(batches.PaddedShare(), kMostPadding);
  EXPECT_LT(bytes, kMostBytes);

  const std::vector<std::int64_t> pairs = BatchOf(batches, 11);
  PairEntry entry;
  FillPairs(file, Split::kTrain, pairs, batches.Shape(11), entry);
  EXPECT_EQ(entry.valid, batches.Shape(11).target_tokens);
  EXPECT_EQ(entry.places, pairs);
  std::vector<std::int32_t> source, target;
  for (std::int64_t i = 0; i < entry.pairs; ++i) {
    const std::int64_t pair = pairs.at(static_cast<std::size_t>(i));
    file.ReadText(Side::kSource, Split::kTrain, pair, source);
    file.ReadText(Side::kTarget, Split::kTrain, pair, target);
    EXPECT_EQ(entry.source_lengths.at(static_cast<std::size_t>(i)), std::ssize(source));
    source.resize(static_cast<std::size_t>(entry.source_length), 0);
    std::vector<std::int32_t> inputs = target;
    inputs.insert(inputs.begin(), 0);  // eos
    inputs.pop_back();
    inputs.resize(static_cast<std::size_t>(entry.target_length), 0);
    target.resize(static_cast<std::size_t>(entry.target_length), kMasked);
    const auto row = [&](const std::vector<std::int32_t>& all, std::int64_t length) {
      return std::vector(all.begin() + i * length, all.begin() + (i + 1) * length);
    };
    EXPECT_EQ(row(entry.source, entry.source_length), source);
    EXPECT_EQ(row(entry.inputs, entry.target_length), inputs);
    EXPECT_EQ(row(entry.targets, entry.target_length), target);
  }
}

}  // namespace
}  // namespace trireme::data
