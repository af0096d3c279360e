// Plans of ranks that are not there: what is decided, what is refused, which kinds of ranks there
// are, and the operations of a step.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "plan_of.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;

constexpr train::TokenFacts kPlanTokens{.vocabulary = 1000, .train = 100'000, .source = "made up"};

std::string PlanTextOf(const std::string& more) {
  return "[data]\nbatch=64\nsequence_length=64\n[model]\ndim=64\nheads=8\nffn=201\nlayers=12\n"
         "max_positions=64\n[schedule]\nsteps=20\n" +
         more;
}

train::Plan Made(const std::string& more, int ranks, const std::vector<std::string>& keys = {}) {
  return PlanOf(PlanTextOf(more), kPlanTokens, ranks, Dtype::kFloat32, keys);
}

std::string Refusal(const std::string& more, int ranks) {
  try {
    Made(more, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown: " << more;
  return {};
}

TEST(Plan, DecidesTheLayout) {
  const train::Plan plan = Made("[grid]\ntensor=2\npipeline=3\nsharding=optimizer\n", 24);
  EXPECT_EQ(plan.grid, (comm::GridShape{.pipeline = 3, .data = 4, .context = 1, .tensor = 2}));
  EXPECT_EQ(plan.training.batch, 64);
  EXPECT_EQ(plan.training.model.pipeline.stages, 3);
  // 16 windows for each data rank, in micro-batches of which each stage has 4.
  EXPECT_EQ(plan.training.model.micro_batch, 1);
  EXPECT_EQ(plan.training.model.pipeline.micro_batches, 16);
  EXPECT_THAT(train::Describe(plan),
              HasSubstr("pipeline 3 x data 4 x context 1 x tensor 2; moments "
                        "sharded over 4 ranks; 1f1b, 16 micro-batches"));
}

TEST(Plan, OdditiesAreSaid) {
  using testing::ElementsAre;
  const auto odd = [](const std::vector<std::string>& keys, int ranks) {
    return train::Oddities(Made("", ranks, keys));
  };
  EXPECT_THAT(odd({}, 64), testing::IsEmpty());
  EXPECT_THAT(odd({}, 80),
              ElementsAre("80 data ranks share data.batch = 64: 16 of them have nothing to do"));
  EXPECT_THAT(odd({"schedule.warmup_steps=21"}, 1),
              ElementsAre("schedule.warmup_steps = 21 exceeds the run's 20 steps: the rate ends at "
                          "0.000952 and never reaches optimizer.learning_rate = 0.001"));
  EXPECT_THAT(odd({"schedule.warmup_steps=20"}, 1), testing::IsEmpty());
  EXPECT_THAT(odd({"optimizer.learning_rate=0"}, 1),
              ElementsAre("optimizer.learning_rate = 0: nothing is learned"));
  EXPECT_THAT(odd({"data.stride=128"}, 1),
              ElementsAre("data.stride = 128 exceeds data.sequence_length = 64: 50% of the tokens "
                          "are never trained on"));
  EXPECT_THAT(odd({"data.sequence_length=200000", "model.max_positions=200000"}, 1),
              ElementsAre("data.sequence_length = 200000 exceeds the 100000 tokens of made up: its "
                          "only window is filled up"));
  EXPECT_THAT(
      odd({"model.position=rope", "model.max_positions=32"}, 1),
      ElementsAre("data.sequence_length = 64 exceeds model.max_positions = 32, for which the "
                  "rotary positions are made"));
}

// Bytes of activations, of micro-batches of one window: on a GPU in bf16, or on a CPU in fp32.
std::int64_t Activations(bool on_gpu, std::vector<std::string> keys) {
  const device::Gpu gpu(device::GpuContext{.name = "a card", .major = 9, .multiprocessors = 132});
  keys.emplace_back("data.micro_batch=1");
  const deck::Deck deck = ParsedDeck(PlanTextOf("[model]\nposition=rope\n"), keys);
  const app::DeckOptions options = app::ReadAll(deck);
  train::MachineFacts machine;
  machine.dtype = on_gpu ? Dtype::kBfloat16 : Dtype::kFloat32;
  machine.stream.gpu = on_gpu ? &gpu.Context() : nullptr;
  const train::Plan plan = train::MakePlan({options, deck, 1, kPlanTokens, machine});
  return train::PlanMemory(plan, 0).activations;
}

// Norms of heads keep queries and keys as they were, and two numbers of fp32 a head and token: on a
// GPU in bf16 as on a CPU in fp32.
TEST(Plan, NormsOfHeadsKeepTheirInputs) {
  constexpr std::int64_t kLayers = 12, kRows = 64, kAllHeads = 16, kWidth = 8;
  for (const bool on_gpu : {false, true}) {
    const std::int64_t kept = kRows * kAllHeads * (kWidth * (on_gpu ? 2 : 4) + 2 * 4);
    EXPECT_EQ(
        Activations(on_gpu, {"model.qk_norm=yes"}) - Activations(on_gpu, {"model.qk_norm=no"}),
        kLayers * kept)
        << on_gpu;
  }
}

// Dropout of the two branches of a block keeps a bit of each element on a GPU, as long as what else
// the input gradient needs: with full recomputation of one block at a time. CPUs keep none.
TEST(Plan, DropoutKeepsABitPerElementOnAGpu) {
  constexpr std::int64_t kLayers = 12, kRows = 64, kDim = 64, kOfABlock = 2 * kRows * kDim / 8;
  const auto more = [](bool on_gpu, const std::string& recompute) {
    return Activations(on_gpu, {recompute, "model.dropout=0.1"}) -
           Activations(on_gpu, {recompute, "model.dropout=0"});
  };
  for (const char* const recompute : {"model.recompute=none", "model.recompute=selective"}) {
    EXPECT_EQ(more(true, recompute), kLayers * kOfABlock) << recompute;
    EXPECT_EQ(more(false, recompute), 0) << recompute;
  }
  EXPECT_EQ(more(true, "model.recompute=full"), kOfABlock);
}

// 99,999 targets make 1,563 windows of 64: 25 steps of 64 windows per epoch, or 49 of 32.
TEST(Plan, EpochsAreCountedFromTheOrigin) {
  const deck::Deck deck =
      ParsedDeck(PlanTextOf(""), {"schedule.epochs=3", "data.batch=32", "data.micro_batch=1"});
  const app::DeckOptions options = app::ReadAll(deck);
  train::Request request{options, deck, 2, kPlanTokens, {}, {}};
  EXPECT_EQ(train::MakePlan(request).training.schedule.steps, 3 * 49);
  // After 30 steps of 64 windows, 20 steps of an epoch are left at half the batch, doubled.
  request.origin = {.step = 30, .sample = 1563 + 5 * 64, .targets = 99'999 + 5 * 64 * 64};
  const train::Plan plan = train::MakePlan(request);
  EXPECT_EQ(plan.training.schedule.steps, 30 + 39 + 49);
  EXPECT_EQ(plan.training.samples.origin.sample, request.origin.sample);
  EXPECT_EQ(plan.StepsPerEpoch(), 49);
  const data::Sampler sampler(plan.training.samples);
  EXPECT_EQ(sampler.NextSample(plan.training.schedule.steps), 3 * 1563);
}

// Windows that are read ahead are memory of the first rank of a replica; those in use, of all.
TEST(Plan, CountsTheWindowsOfAStream) {
  const auto bytes = [](std::int64_t ahead, const char* keys, int rank) {
    train::TokenFacts tokens = kPlanTokens;
    tokens.read_ahead = ahead;
    tokens.loss_mask = true;
    return train::PlanMemory(PlanOf(PlanTextOf(keys), tokens, 4, Dtype::kFloat32), rank).tokens;
  };
  // 32 windows of a data rank's share of a step, and a micro-batch of a validation.
  constexpr std::int64_t kWindows = 32 + 4, kTokensOfAWindow = 65;
  constexpr const char* kKeys = "[grid]\ndata=2\ntensor=2\n[data]\nmicro_batch=4\n";
  EXPECT_EQ(bytes(0, kKeys, 0), 0);
  const std::int64_t few = bytes(2, kKeys, 0), many = bytes(102, kKeys, 0);
  EXPECT_GT(many - few, 100 * kWindows * kTokensOfAWindow * (4 + 1));
  EXPECT_LT(many - few, 100 * kWindows * (kTokensOfAWindow * (4 + 1) + 200));
  EXPECT_EQ(bytes(2, kKeys, 1), bytes(102, kKeys, 1));
  EXPECT_GT(bytes(2, kKeys, 1), kWindows * kTokensOfAWindow * (4 + 1 + 2 * 4));
  const std::string masked = std::string(kKeys) + "document_mask=yes\n";
  EXPECT_GT(bytes(102, masked.c_str(), 0) - bytes(2, masked.c_str(), 0),
            100 * kWindows * kTokensOfAWindow * (4 + 8 + 1));
}

TEST(Plan, RefusesWithTheLineOfTheDeck) {
  EXPECT_THAT(Refusal("[grid]\ntensor=3\n", 6), HasSubstr("deck:13: grid.tensor = 3"));
  EXPECT_THAT(Refusal("[grid]\npipeline=5\n", 8), HasSubstr("deck:13: grid.pipeline = 5"));
  EXPECT_THAT(Refusal("[grid]\npipeline=16\n", 16), HasSubstr("deck:13: grid.pipeline = 16"));
  EXPECT_THAT(Refusal("[run]\ncanonical=2x1\n[grid]\ndata=4\n", 4),
              HasSubstr("deck:15: grid.data"));
  EXPECT_THAT(Refusal("[run]\ncanonical=2x1\ncanonical_leaf=3\n[data]\nmicro_batch=4\n", 2),
              HasSubstr("data.micro_batch = 4"));
}

// Stages, uneven slices, uneven blocks of sequences and places of shard groups all differ.
TEST(Plan, KindsCoverAllRanks) {
  for (const char* layout : {"", "[grid]\ntensor=4\npipeline=3\nsequence_parallel=yes\n",
                             "[grid]\ncontext=5\ntensor=2\nsharding=parameters\n",
                             "[grid]\npipeline=4\nsharding=gradients\nshard_group=5\n",
                             "[grid]\ntensor=4\nsharding=optimizer\n"}) {
    const train::Plan plan = Made(layout, 60, {"data.sequence_length=61"});
    std::map<std::int64_t, std::int64_t> wanted, got;  // ranks by bytes
    for (int rank = 0; rank < 60; ++rank) ++wanted[train::PlanMemory(plan, rank).Total()];
    const std::vector<train::RankKind> kinds = train::PlanKinds(plan);
    for (const train::RankKind& kind : kinds) got[kind.memory.Total()] += kind.ranks;
    EXPECT_EQ(got, wanted) << layout;
    EXPECT_EQ(kinds.front().memory.Total(), wanted.rbegin()->first) << layout;
    EXPECT_LT(kinds.size(), 60U) << layout;
  }
}

// All products of a step, whoever computes them: 6 per matrix parameter and token, and attention.
TEST(Plan, OperationsAreTheModels) {
  for (const char* layout :
       {"", "[grid]\ntensor=2\n", "[grid]\npipeline=3\n[data]\nmicro_batch=2\n",
        "[grid]\npipeline=2\n[pipeline]\nschedule=zero_bubble\n"}) {
    const train::Plan plan = Made(layout, 6);
    double sum = 0;
    for (int rank = 0; rank < 6; ++rank) {
      for (const auto& chunk : train::PlanRank(plan, rank).operations) {
        for (const double operations : chunk) sum += operations;
      }
    }
    const double wanted = model::FlopsPerToken(plan.training.model.options, 64) * 64 * 64;
    EXPECT_NEAR(sum / wanted, 1, 1e-12) << layout;
  }
}

TEST(Plan, RecomputationRepeatsTheForwardPass) {
  const auto forward_and_backward = [](const char* model) {
    double sum = 0;
    for (const auto& chunk : train::PlanRank(Made(model, 1), 0).operations) {
      for (const double operations : chunk) sum += operations;
    }
    return sum;
  };
  EXPECT_GT(forward_and_backward("[model]\nrecompute=full\n"), 1.1 * forward_and_backward(""));
}

// 7 windows: the first data rank has 1, the last one 2, and of 9 data ranks the first has none.
TEST(Plan, TheBusiestRankHasTheLargestShareOfTheBatch) {
  const std::vector<std::string> keys = {"data.batch=7", "data.micro_batch=1"};
  EXPECT_THAT(train::Describe(Made("", 4, keys)), HasSubstr("busiest rank; 50% of that"));
  EXPECT_THAT(train::Describe(Made("", 9, keys)), HasSubstr("busiest rank; 0% of that"));
  EXPECT_THAT(train::Describe(Made("[run]\ncanonical=4x1\ncanonical_leaf=1\n", 4, keys)),
              HasSubstr("busiest rank; 50% of that"));
}

TEST(Plan, ManyRanks) {
  constexpr int kRanks = 100'000;
  const train::Plan plan =
      Made("[grid]\ntensor=4\npipeline=5\nsharding=parameters\n", kRanks, {"data.batch=40000"});
  const std::vector<train::RankKind> kinds = train::PlanKinds(plan);
  std::int64_t ranks = 0;
  for (const train::RankKind& kind : kinds) ranks += kind.ranks;
  EXPECT_EQ(ranks, kRanks);
  EXPECT_THAT(train::Describe(plan), HasSubstr("sharded over 5000 ranks"));
}

}  // namespace
}  // namespace trireme::test
