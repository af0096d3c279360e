// The problem with an exact answer: training on the harbour corpus approaches the grammar's entropy
// from above and never goes below it, paired token by token with the exact predictor for the same
// windows. A model that sees its targets goes below, and is caught.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>

#include "harbour_predictor.hpp"
#include "training_run.hpp"
#include "trireme/data/tokenize.hpp"

namespace trireme::test {
namespace {

constexpr double kNearEnough = 0.02;   // of the exact predictor's loss
constexpr double kStandardErrors = 3;  // below the floor by more is a proof of cheating
constexpr std::int64_t kHarbourFloorTokens = 2000000, kValidTokens = 100000;
constexpr std::int64_t kHarbourFloorLength = 64, kHarbourFloorBatch = 32, kMicroBatch = 16;
constexpr std::uint32_t kHarbourFloorSeed = 3;

struct Comparison {
  double model = 0, exact = 0;  // nats a token, over the valid split
  double excess = 0;            // mean of model - exact
  double standard_error = 0;    // of the excess, windows being independent
};

class HarbourFloor : public testing::Test {
 protected:
  HarbourFloor() : world_(World()), node_(world_.SplitNode()), folder_(world_) {
    const std::string path = folder_ / "harbour.h5";
    world_.Together([&] {
      if (!world_.IsRoot()) return;
      data::TokenData data;
      for (const data::Split split : data::kSplits) {
        data.tokens[static_cast<std::size_t>(split)] =
            grammar_.Generate(kHarbourFloorSeed, split,
                              split == data::Split::kTrain ? kHarbourFloorTokens : kValidTokens);
      }
      data.vocabulary = grammar_.Words();
      data.tokenizer = "harbour";
      data.source_sha256 = std::string(64, '0');
      data.entropy_rate = grammar_.EntropyRate();
      data::WriteTokenFile(path, data, false);
    });
    tokens_ = std::make_unique<data::TokenFile>(world_, node_, path, data::Staging::kSharedMemory);
  }

  RunSettings Settings(std::int64_t steps, bool causal) const {
    RunSettings settings;
    model::Options& options = settings.model.options;
    options.vocabulary = tokens_->VocabularySize();
    options.dim = 96;
    options.heads = options.kv_heads = 4;
    options.head_dim = 24;
    options.layers = 2;
    options.ffn = 288;
    options.max_positions = kHarbourFloorLength;
    options.norm = model::Norm::kRmsNorm;
    options.position = model::Position::kRope;
    options.bias = options.qkv_bias = false;
    settings.model.causal = causal;
    settings.model.seed = kHarbourFloorSeed;
    settings.model.length = kHarbourFloorLength;
    settings.model.micro_batch = kMicroBatch;
    settings.batch = kHarbourFloorBatch;
    settings.optimizer.weight_decay = 0.05;
    settings.schedule.steps = steps;
    settings.schedule.warmup_steps = steps / 20;
    settings.schedule.peak = 4e-3;
    settings.schedule.final_fraction = 0.02;
    return settings;
  }

  // Collective: the windows of the valid split, spread over the ranks.
  Comparison Compare(TrainingRun& run) const {
    const data::Sampler sampler({tokens_->Size(data::Split::kValid), kHarbourFloorLength,
                                 kHarbourFloorLength, kValidTokens, kHarbourFloorSeed, false});
    data::Entry batch;
    std::vector<double> losses(static_cast<std::size_t>(kHarbourFloorLength));
    // Of every window: targets, model, exact, difference, difference squared, one.
    std::vector<double> sums(6);
    for (const data::Sample& sample : sampler.Share(0, world_.Rank(), world_.Size())) {
      data::FillEntry(*tokens_, data::Split::kValid, std::span(&sample, 1), kHarbourFloorLength,
                      batch);
      const auto valid = static_cast<std::size_t>(sample.targets);
      const double model = run.Net().Loss({&batch, 1}, losses.data()).Value();
      const std::vector<double> exact = data::PredictiveLoss(std::span(batch.inputs).first(valid),
                                                             std::span(batch.targets).first(valid));
      double right = 0;
      for (double loss : exact) right += loss;
      const double parts[] = {static_cast<double>(valid),        model, right, model - right,
                              (model - right) * (model - right), 1};
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += parts[i];
    }
    world_.Sum(sums);
    const double windows = sums[5], mean = sums[3] / windows;
    const double variance = sums[4] / windows - mean * mean;
    return {sums[1] / sums[0], sums[2] / sums[0], sums[3] / sums[0],
            std::sqrt(variance / windows) * windows / sums[0]};
  }

  comm::Communicator world_, node_;
  SharedFolder folder_;
  data::HarbourGrammar grammar_;
  std::unique_ptr<data::TokenFile> tokens_;
};

TEST_F(HarbourFloor, IsApproachedFromAboveAndNeverCrossed) {
  constexpr std::int64_t kSteps = 1400, kParts = 4;
  TrainingRun run(world_, *tokens_, Settings(kSteps, true));
  Comparison now;
  for (std::int64_t part = 1; part <= kParts; ++part) {
    run.Train(kSteps * part / kParts);
    now = Compare(run);
    EXPECT_GT(now.excess, -kStandardErrors * now.standard_error) << "after part " << part;
    if (world_.IsRoot()) {
      std::printf("step %lld: model %.4f, exact %.4f nats/token, excess %.2f%% (+- %.2f%%)\n",
                  static_cast<long long>(kSteps * part / kParts), now.model, now.exact,
                  100 * now.excess / now.exact, 100 * now.standard_error / now.exact);
    }
  }
  EXPECT_LT(now.model, (1 + kNearEnough) * now.exact);
}

TEST_F(HarbourFloor, AModelThatSeesItsTargetsIsCaught) {
  constexpr std::int64_t kSteps = 200;
  TrainingRun run(world_, *tokens_, Settings(kSteps, false));
  run.Train(kSteps);
  const Comparison now = Compare(run);
  EXPECT_LT(now.excess, -kStandardErrors * now.standard_error)
      << "model " << now.model << ", exact " << now.exact;
}

}  // namespace
}  // namespace trireme::test
