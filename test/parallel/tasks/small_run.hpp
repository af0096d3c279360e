// Small runs of training for tests: the model, its tokens, and decks in any layout.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "plan_of.hpp"
#include "rule_four.hpp"
#include "training_run.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {

// Transfers that a rank counted against those that were planned for it.

// Calls, payload and bytes moved of each group and transfer.
inline void ExpectSame(const comm::Ledger& got, const comm::Ledger& planned,
                       const std::string& what) {
  for (int group = 0; group < comm::kGroups; ++group) {
    for (int transfer = 0; transfer < comm::kTransfers; ++transfer) {
      const auto name = static_cast<comm::Group>(group);
      const auto kind = static_cast<comm::Transfer>(transfer);
      const comm::Traffic &mine = got.At(name, kind), &wanted = planned.At(name, kind);
      const std::string which =
          fmt::format("{}, {} {}", what, comm::NameOf(name), comm::NameOf(kind));
      EXPECT_EQ(mine.calls, wanted.calls) << which;
      EXPECT_EQ(mine.payload, wanted.payload) << which;
      EXPECT_EQ(mine.moved, wanted.moved) << which;
    }
  }
}

// The small run of the layout tests: nothing divides, everything is on.

// 37 windows of 7 (the last one short), batches of 10 (the last one 7): nothing divides.
inline constexpr std::int64_t kLength = 7, kBatch = 10, kTokens = 37 * 7 - 2, kVocabulary = 101;
inline constexpr int kSteps = 20;
inline constexpr std::uint32_t kSeed = 11;

// Tokens with some structure, so that there is something to learn.
inline data::TokenData SyntheticTokens() {
  data::TokenData data;
  for (std::size_t split = 0; split < 3; ++split) {
    const std::int64_t count = split == 0 ? kTokens : 50;
    std::int64_t token = static_cast<std::int64_t>(split) + 3;
    for (std::int64_t i = 0; i < count; ++i) {
      data.tokens[split].push_back(static_cast<std::int32_t>(token));
      token = (token * 7 + i % 3) % kVocabulary;
    }
  }
  for (std::int64_t id = 0; id < kVocabulary; ++id) {
    data.vocabulary.words.push_back("w" + std::to_string(id));
  }
  data.vocabulary.eos = 0;
  data.vocabulary.unk = 1;
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, '0');
  return data;
}

inline model::Options SmallModel() {
  model::Options options;
  options.preset = "none";
  options.vocabulary = kVocabulary;
  options.dim = 12;
  options.heads = 3;
  options.kv_heads = 1;
  options.head_dim = 4;
  options.layers = 2;
  options.ffn = 17;
  options.max_positions = kLength;
  options.dropout = options.attention_dropout = options.ffn_dropout = 0.1;
  options.init_deviation = 0.2;
  return options;
}

inline RunSettings SmallSettings(Dtype dtype, std::int64_t micro_batch,
                                 std::int64_t batch = kBatch) {
  RunSettings settings;
  settings.model.options = SmallModel();
  settings.model.dtype = dtype;
  settings.model.seed = kSeed;
  settings.model.length = kLength;
  settings.model.micro_batch = micro_batch;
  settings.model.label_smoothing = 0.05;
  settings.samples.batch = batch;
  settings.optimizer.clip_norm = 0.5;
  settings.schedule.steps = kSteps;
  settings.schedule.warmup_steps = 3;
  settings.schedule.peak = 1e-2;
  settings.model.bucket_bytes = 1500;  // several buckets even here
  return settings;
}

class SmallRun : public TrainingRun {
 public:
  SmallRun(const comm::Communicator& data, const data::TokenFile& tokens, Dtype dtype,
           std::int64_t micro_batch, std::int64_t batch = kBatch)
      : TrainingRun(data, tokens, SmallSettings(dtype, micro_batch, batch)) {}
};

// A training run described by a deck's text, in the deck's layout and serially.

// A planned run's settings, with gradients kept to be compared.
inline RunSettings SettingsOf(const train::Plan& plan) {
  RunSettings settings;
  static_cast<train::TrainingOptions&>(settings) = plan.training.options;
  settings.stream = plan.machine.stream;
  settings.keep_gradients = true;
  settings.grid = plan.grid;
  settings.options = plan.sharing;
  return settings;
}

// The settings of `text` on `ranks` ranks; 1: the serial run, whose grid, schedule and
// recomputation keys are dropped. InputError where the layout does not fit.
inline RunSettings SettingsOf(const std::string& text, const data::TokenFile& tokens, int ranks,
                              Dtype dtype) {
  std::vector<std::string> keys;
  if (ranks == 1) {
    keys = {"grid.data=1",
            "grid.context=1",
            "grid.tensor=1",
            "grid.pipeline=1",
            "grid.sequence_parallel=no",
            "grid.sharding=none",
            "grid.shard_group=0",
            "pipeline.schedule=1f1b",
            "pipeline.chunks=1",
            "model.recompute=none"};
  }
  return SettingsOf(PlanOf(text, tokens, ranks, dtype, keys));
}

// Results of a run, to compare.
struct Outcome {
  std::vector<double> losses;
  double norm = 0;                       // of the last gradient
  Tensors gradients, weights, averages;  // averages: of the weights; empty: none
};

inline Outcome RunDeck(const comm::Communicator& group, const data::Corpus& tokens,
                       const RunSettings& settings, std::int64_t steps) {
  TrainingRun run(group, tokens, settings);
  Outcome outcome;
  outcome.losses = run.Train(steps);
  outcome.norm = run.Last().gradient_norm;
  outcome.gradients = run.Gradients();
  outcome.weights = run.Weights();
  if (!run.All().Averages()) return outcome;
  run.All().ExchangeAverage();
  outcome.averages = run.Weights();
  outcome.losses.push_back(train::Evaluate(run.Net(), tokens.First(), data::Split::kValid).loss);
  run.All().ExchangeAverage();
  EXPECT_EQ(run.Weights(), outcome.weights) << "exchanged and back";
  return outcome;
}

// Largest relative difference; NaN when one is.
inline double WorstRelative(const std::vector<double>& got, const std::vector<double>& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::abs(got.at(i) - wanted[i]) / std::abs(wanted[i]);
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
  }
  return worst;
}

// Shared by the tests of layouts: the ranks, tokens in memory, and a small model as a deck's text.

// More tokens than the small run has: long windows, and many of them.
inline data::TokenData ManyTokens() {
  constexpr std::int64_t kMany = 1500;
  data::TokenData data = SyntheticTokens();
  std::int64_t token = 5;
  for (std::int64_t i = kTokens; i < kMany; ++i) {
    data.tokens[0].push_back(static_cast<std::int32_t>(token));
    token = (token * 5 + i % 7) % kVocabulary;
  }
  return data;
}

class LayoutTest : public testing::Test {
 protected:
  explicit LayoutTest(const data::TokenData& tokens = ManyTokens())
      : world_(World()), self_(comm::Communicator::Adopt(MPI_COMM_SELF)), tokens_(world_, tokens) {}

  comm::Communicator world_, self_;
  data::TokenFile tokens_;
};

// Tokens of the small run with a mask of the loss and with documents.

// Very uneven: a window of the first third has at most one target that counts, one of the last
// third nearly all of them. Data ranks and context ranks then hold different counts.
inline void AddLossMask(data::TokenData& data) {
  for (std::size_t split = 0; split < data.tokens.size(); ++split) {
    const std::int64_t count = std::ssize(data.tokens[split]);
    for (std::int64_t t = 0; t < count; ++t) {
      const bool counts = 3 * t < count ? t % 11 == 5 : 3 * t < 2 * count ? t % 5 < 2 : t % 13 != 0;
      data.counted[split].push_back(counts ? 1 : 0);
    }
  }
}

// Documents of one to nine tokens, of which windows hold several, one, or a part.
inline void AddDocuments(data::TokenData& data) {
  for (std::size_t split = 0; split < data.tokens.size(); ++split) {
    std::int64_t length = 4;
    for (std::int64_t at = 0; at < std::ssize(data.tokens[split]); at += length) {
      data.documents[split].push_back(at);
      length = 1 + (length * 5 + at) % 9;
    }
  }
}

}  // namespace trireme::test
