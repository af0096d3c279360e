// Training in fp8: how often operands are rounded, that what is kept of them changes no bit, and
// the memory that it takes.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "one_rank.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/train/batch_loader.hpp"

namespace trireme::test {
namespace {

// All dimensions are multiples of 16, so that all products of blocks are fp8's.
constexpr std::int64_t kFp8Layers = 2, kFp8Batch = 8;
constexpr std::int64_t kFp8Sites = kFp8Layers * model::kSitesABlock;
constexpr const char* kFp8Llama =
    "preset=llama_5m\nlayers=2\nheads=2\nkv_heads=1\nhead_dim=16\ndim=32\nffn=48\n"
    "max_positions=16\ninit_deviation=0.2\n";

// Without clipping: the order of a norm's sum depends on the sharding.
std::string Fp8Deck(std::int64_t micro_batch, const std::string& recompute,
                    const std::string& sharding = "none") {
  return "[run]\nseed=11\n[grid]\nsharding=" + sharding +
         "\n[data]\nsequence_length=16\nbatch=" + std::to_string(kFp8Batch) +
         "\nmicro_batch=" + std::to_string(micro_batch) + "\n[model]\n" + kFp8Llama +
         "recompute=" + recompute +
         "\n[optimizer]\nlearning_rate=1e-2\nclip_norm=0\n[schedule]\nsteps=20\nwarmup_steps=3\n";
}

class Fp8Training : public TrainingOnGpu {
 protected:
  void SetUp() override {
    TrainingOnGpu::SetUp();
    if (IsSkipped()) return;
    constexpr int kHopper = 9;
    if (Stream().gpu->major < kHopper) GTEST_SKIP() << "this card multiplies no fp8";
    Stream().fp8 = true;
  }
  // Launches of the gradients of a step behind the first one; nothing of it runs.
  std::int64_t Launches(const std::string& deck, bool fp8) {
    Stream().fp8 = fp8;
    OneRank run = OnCard(deck, Dtype::kBfloat16, false);
    run.Train(1);
    train::TrainingState& state = run.All();
    model::ParallelModel& net = state.Net();
    train::BatchLoader loader(state, Tokens());
    train::LoadedBatch batch;
    loader.Load(1, batch);
    model::StagedBatches::Taken taken = net.Tasks().Batches().Take(batch.Entries());
    device::Synchronise(net.Stream());
    device::Graph graph;
    graph.Begin(net.Stream());
    state.QueueGradients(std::move(taken));
    graph.End(net.Stream());
    Stream().fp8 = true;
    return graph.Nodes();
  }
};

// A weight is rounded once per step, whatever the number of micro-batches: in both forms. Of a
// micro-batch x is rounded for the product and for the weight's gradient, and dy for both at once.
// Recomputation rounds x once more, and then in both forms, but for the last layer's, which is not
// multiplied again.
TEST_F(Fp8Training, WeightsAreRoundedOnceAStep) {
  for (const char* recompute : {"none", "selective", "full"}) {
    for (const std::int64_t micro_batches : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << recompute << ", micro-batches " << micro_batches);
      const std::string deck = Fp8Deck(kFp8Batch / micro_batches, recompute);
      const std::int64_t roundings = Launches(deck, true) - Launches(deck, false);
      EXPECT_EQ(roundings, kFp8Sites * (1 + 3 * micro_batches));
    }
  }
}

// Sharded parameters are gathered for each use, and rounded by each: nothing is kept of them. The
// same bits, in steps of one micro-batch: sums over several have another order.
TEST_F(Fp8Training, WhatIsKeptChangesNoBit) {
  constexpr std::int64_t kMiddle = 3, kEnd = 6;
  for (const char* recompute : {"none", "full"}) {
    SCOPED_TRACE(recompute);
    OneRank kept = OnCard(Fp8Deck(kFp8Batch, recompute), Dtype::kBfloat16);
    OneRank gathered = OnCard(Fp8Deck(kFp8Batch, recompute, "parameters"), Dtype::kBfloat16);
    kept.TakeFirstAlgorithms();
    gathered.TakeFirstAlgorithms();
    EXPECT_GT(kept.All().Memory().fp8_operands, gathered.All().Memory().fp8_operands);
    EXPECT_EQ(kept.Train(kMiddle), gathered.Train(kMiddle));
    EXPECT_EQ(kept.Evaluate(data::Split::kValid), gathered.Evaluate(data::Split::kValid));
    EXPECT_EQ(kept.Train(kEnd), gathered.Train(kEnd));
    EXPECT_EQ(kept.State(), gathered.State());
    EXPECT_EQ(kept.Libraries().Scales(), gathered.Libraries().Scales());
  }
}

// Weights that are not an update's, as a checkpoint's: they are rounded before they are multiplied.
TEST_F(Fp8Training, WeightsThatWereLoadedAreRoundedAnew) {
  const auto losses = [&](const std::string& sharding) {
    OneRank run = OnCard(Fp8Deck(kFp8Batch, "none", sharding), Dtype::kBfloat16);
    run.TakeFirstAlgorithms();
    run.Train(2);
    const train::StateOnHost first = run.All().ModelBlocks();
    run.Train(4);
    run.All().StoreWeights(first);
    return run.Train(6);
  };
  EXPECT_EQ(losses("none"), losses("parameters"));
}

// Two operands as large as the largest, and both forms of the weights: query, key and value, the
// attention's output, gate and up, down.
TEST_F(Fp8Training, MemoryIsPlanned) {
  constexpr std::int64_t kDim = 32, kHidden = 48, kWidth = 64;
  constexpr std::int64_t kWeights = kDim * (kWidth + kDim + 2 * kHidden + kHidden);
  for (const char* sharding : {"none", "parameters"}) {
    const std::string deck = Fp8Deck(2, "none", sharding);
    train::Plan plan = PlanOf(deck, Tokens(), 1, Dtype::kBfloat16);
    plan.machine.stream = Stream();
    const std::int64_t operands = 2 * train::LargestOperand(plan.training.model);
    const std::int64_t kept = std::string(sharding) == "none" ? 2 * kFp8Layers * kWeights : 0;
    const device::MemoryTerms planned = train::PlanMemory(plan, 0);
    EXPECT_EQ(planned.fp8_operands, operands + kept) << sharding;
    OneRank run = OnCard(deck, Dtype::kBfloat16);
    EXPECT_EQ(run.All().Memory(), planned) << sharding;
  }
}

}  // namespace
}  // namespace trireme::test
