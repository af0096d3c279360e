// The task verify: what it compares, and the mistakes that it finds.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "plan_of.hpp"
#include "small_run.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/verify.hpp"
#include "verifier.hpp"

namespace trireme::test {
namespace {

using tasks::Verification;
using testing::AllOf;
using testing::HasSubstr;
using train::TrainingOptions;

// Shared by the tests of verification: a large deck, and its small run on the ranks at hand.

constexpr int kRanks = 8;
constexpr std::int64_t kDeckBatch = 96;

// Pre-norm, tied, dropout everywhere; far too large to be run here.
constexpr const char* kDeck =
    R"([data]
sequence_length = 512
batch = 96
micro_batch = 8
[model]
dim = 1024
heads = 8
kv_heads = 4
layers = 24
ffn = 4096
dropout = 0.1
attention_dropout = 0.1
ffn_dropout = 0.1
max_positions = 1024
[optimizer]
label_smoothing = 0.1
[schedule]
steps = 1000
warmup_steps = 100
)";

class Verifying : public testing::Test {
 protected:
  Verifying() : world_(World()), folder_(world_) {}

  struct Large {
    deck::Deck deck;
    comm::GridShape grid;
    comm::GridOptions sharing;
    train::TrainingOptions setup;
    device::Stream stream;
  };
  // The deck with other keys, "section.key=value ...", as large as it is.
  Large Read(const std::string& keys, int ranks = kRanks) const {
    std::istringstream words(keys);
    std::vector<std::string> overrides{std::istream_iterator<std::string>(words), {}};
    constexpr std::int64_t kTokens = 1 << 20;  // windows enough for the largest batch
    train::TokenFacts facts{
        .vocabulary = kVocabulary, .train = kTokens, .source = "made up", .loss_mask = loss_mask_};
    if (pairs_) {
      const bool shared = keys.find("shared_vocabulary=no") == std::string::npos;
      overrides.emplace_back("model.kind=encoder_decoder");
      facts.pairs = train::PairFacts{.source_vocabulary = kVocabulary + (shared ? 0 : 7),
                                     .shared_vocabulary = shared,
                                     .pairs = kTokens,
                                     .steps = kTokens / kDeckBatch,
                                     .batch = kDeckBatch};
    }
    const train::Plan plan = PlanOf(kDeck, facts, ranks, Dtype::kFloat32, overrides);
    return {ParsedDeck(kDeck, overrides), plan.grid, plan.sharing, plan.training.options,
            plan.machine.stream};
  }

  tasks::Verification Run(const std::string& keys, Defect defect = Defect::kNone,
                          Dtype precision = Dtype::kFloat32) {
    const Large large = Read(keys);
    comm::ProcessGrid grid(world_, large.grid, large.sharing);
    Spoil(grid, defect);
    const train::TrainingOptions small = tasks::Shrink(large.setup, large.grid);
    const std::string folder = folder_ / std::to_string(runs_++);
    world_.Together([&] {
      if (world_.IsRoot()) std::filesystem::create_directories(folder);
    });
    return tasks::Verify(grid, small, large.stream, precision, folder);
  }

  comm::Communicator world_;
  SharedFolder folder_;
  int runs_ = 0;
  bool loss_mask_ = false;
  bool pairs_ = false;  // a model that translates
};

const tasks::VerifiedQuantity& Quantity(const tasks::Verification& verification,
                                        const std::string& name) {
  for (const auto& quantity : verification.quantities) {
    if (quantity.name == name) return quantity;
  }
  ADD_FAILURE() << "no quantity " << name;
  return verification.quantities.front();
}

// Verification: sound layouts pass on a deck shrunk to their divisibilities, and each deliberate
// mistake is found, named and placed.

TEST_F(Verifying, SoundLayoutsPass) {
  for (const char* keys : {
           "grid.data=8",
           "grid.tensor=8",
           "grid.tensor=8 grid.sequence_parallel=yes",
           "grid.pipeline=8",
           "grid.pipeline=2 grid.tensor=2 grid.sequence_parallel=yes",
           "grid.pipeline=4 pipeline.schedule=zero_bubble",
           "grid.pipeline=2 grid.tensor=2 pipeline.schedule=gpipe model.position=rope "
           "model.norm=rmsnorm model.activation=swiglu model.bias=no model.recompute=full",
           "grid.pipeline=2 grid.sequence_parallel=yes grid.tensor=4 pipeline.schedule=interleaved "
           "pipeline.chunks=3 model.recompute=selective",
           "grid.data=2 grid.tensor=4 model.norm_position=post model.activation=relu "
           "model.position=sinusoidal model.tie_embeddings=no model.init=xavier "
           "model.scale_embedding=yes optimizer.clip_norm=0",
           "grid.pipeline=2 grid.tensor=2 optimizer.kind=sgd",
           "grid.pipeline=2 grid.tensor=4 model.position=rope model.qk_norm=yes model.bias=no "
           "model.qkv_bias=yes model.rope_scaling=yarn model.rope_factor=4 "
           "model.rope_original_positions=128",
           "grid.tensor=8 grid.sequence_parallel=yes model.position=rope model.qk_norm=yes "
           "model.qkv_bias=no model.rope_scaling=llama3 model.rope_factor=8 "
           "model.rope_original_positions=128",
           "grid.pipeline=2 grid.tensor=4 model.parametrization=mup model.mup_base=128 "
           "model.mup_base_head_dim=32 optimizer.z_loss=0.01",
       }) {
    const Verification verification = Run(keys);
    EXPECT_EQ(verification.failure, "") << keys << verification.hint;
    // Every tensor was looked at, and rounding seen: nothing was compared with itself.
    double largest = 0;
    for (const auto& tensor : verification.tensors) largest = std::max(largest, tensor.gradient);
    EXPECT_GT(largest, 0) << keys;
    EXPECT_EQ(verification.quantities.size(), 6U) << keys;
    for (const auto& quantity : verification.quantities) {
      EXPECT_TRUE(quantity.Within()) << keys << quantity.name;
    }
  }
}

TEST_F(Verifying, ShardedAndContextLayoutsPass) {
  for (const char* keys : {
           "grid.sharding=optimizer",
           "grid.sharding=gradients grid.shard_group=2 grid.pipeline=2",
           "grid.sharding=parameters grid.tensor=2 grid.sequence_parallel=yes grid.prefetch=3",
           "grid.sharding=parameters grid.shard_group=4 model.recompute=full grid.overlap=no "
           "model.tie_embeddings=no",
           "grid.context=4 grid.data=2",
           "grid.context=8 model.position=rope",
           "grid.context=2 grid.tensor=2 grid.sequence_parallel=yes grid.sharding=optimizer",
           "grid.context=2 grid.pipeline=2 pipeline.schedule=zero_bubble grid.sharding=parameters "
           "grid.shard_group=2",
       }) {
    const Verification verification = Run(keys);
    EXPECT_EQ(verification.failure, "") << keys << verification.hint;
    EXPECT_EQ(verification.quantities.size(), 6U) << keys;
    double largest = 0;
    for (const auto& tensor : verification.tensors) largest = std::max(largest, tensor.gradient);
    EXPECT_GT(largest, 0) << keys;
  }
}

// Made-up tokens have documents and a mask of the loss where the deck's have.
TEST_F(Verifying, MaskedLayoutsPass) {
  for (const bool loss_mask : {false, true}) {
    loss_mask_ = loss_mask;
    for (const std::string keys : {
             "grid.data=8",
             "grid.context=4 grid.data=2 model.position=rope",
             "grid.pipeline=2 grid.context=2 grid.sharding=gradients",
             "grid.tensor=2 grid.pipeline=2 run.canonical=2x2",
         }) {
      const bool documents = keys.find("tensor") == std::string::npos;
      const std::string all = keys + (documents ? " data.document_mask=yes" : "");
      const Verification verification = Run(all);
      EXPECT_EQ(verification.failure, "") << all << verification.hint;
      double largest = 0;
      for (const auto& tensor : verification.tensors) largest = std::max(largest, tensor.gradient);
      EXPECT_GT(largest, 0) << all;
    }
  }
}

TEST_F(Verifying, LayoutsOfModelsThatTranslatePass) {
  pairs_ = true;
  for (const char* keys : {
           "grid.data=8",
           "grid.pipeline=8 model.shared_vocabulary=no",
           "grid.pipeline=2 grid.tensor=4 model.norm_position=post model.position=sinusoidal",
           "grid.pipeline=4 grid.sharding=gradients pipeline.schedule=zero_bubble "
           "model.recompute=full model.encoder_layers=5",
           "grid.tensor=2 grid.sequence_parallel=yes grid.sharding=parameters model.position=rope "
           "data.batch_tokens=4096",
           "run.canonical=4x2 grid.tensor=2 grid.pipeline=2 grid.data=2",
       }) {
    const Verification verification = Run(keys);
    EXPECT_EQ(verification.failure, "") << keys << verification.hint;
    double largest = 0;
    bool crosses = false;
    for (const auto& tensor : verification.tensors) {
      largest = std::max(largest, tensor.gradient);
      crosses = crosses || tensor.name.ends_with("cross.value.weight");
    }
    EXPECT_GT(largest, 0) << keys;
    EXPECT_TRUE(crosses) << keys;
  }
}

// Both stacks become smaller, and meet within a stage or between two as the deck's do.
TEST_F(Verifying, ShrinksBothStacks) {
  pairs_ = true;
  const auto shrunk = [&](const std::string& keys) {
    const Large large = Read(keys);
    return tasks::Shrink(large.setup, large.grid).model.options;
  };
  model::Options o = shrunk("grid.data=8");
  EXPECT_EQ(o.encoder_layers, 3);
  EXPECT_EQ(o.layers, 3);
  o = shrunk("grid.pipeline=2 model.encoder_layers=24");
  EXPECT_EQ(o.encoder_layers, o.layers);
  o = shrunk("grid.pipeline=4 model.encoder_layers=12 model.layers=36");
  EXPECT_EQ(3 * o.encoder_layers, o.layers);
  o = shrunk("grid.pipeline=4 model.encoder_layers=1 model.layers=47");
  EXPECT_EQ(o.encoder_layers, 1);
  EXPECT_LT(o.layers, 10);
}

// The small run computes with the deck's factors.
TEST_F(Verifying, ShrinkingKeepsTheFactorsOfMup) {
  const Large large = Read(
      "grid.data=8 model.parametrization=mup model.mup_base=128 model.mup_base_head_dim=32 "
      "optimizer.groups=matrices:3:0.5");
  const TrainingOptions small = tasks::Shrink(large.setup, large.grid);
  const model::Options &from = large.setup.model.options, &to = small.model.options;
  EXPECT_LT(to.dim, from.dim);
  EXPECT_NEAR(to.WidthFactor(), 8, 1e-12);
  const auto ratio = [](const model::Options& o) {
    return o.ScoreDivisor() / std::sqrt(static_cast<double>(o.head_dim));
  };
  EXPECT_NEAR(ratio(to), std::sqrt(128.0 / 32), 1e-12);
  const auto& matrices =
      small.optimizer.groups.at(static_cast<std::size_t>(train::ParameterGroup::kMatrices));
  EXPECT_EQ(matrices.rate, 3.0 / 8);
  EXPECT_EQ(matrices.decay, 0.5 * 8);
}

TEST_F(Verifying, FindsMistakesInModelsThatTranslate) {
  pairs_ = true;
  EXPECT_NE(Run("grid.data=8", Defect::kDataRanksWeighed).failure, "");
}

TEST_F(Verifying, FindsAnAverageOfAveragesOfMaskedTargets) {
  loss_mask_ = true;
  EXPECT_NE(Run("grid.data=8", Defect::kDataRanksWeighed).failure, "");
}

// Besides rule 4: the bits of one rank that computes canonically.
TEST_F(Verifying, CanonicalLayoutsPassBitByBit) {
  for (const char* keys : {
           "run.canonical=8x4 grid.data=8",
           "run.canonical=2x4 grid.data=2 grid.tensor=4 grid.sequence_parallel=yes "
           "run.canonical_leaf=5 data.micro_batch=10",
           "run.canonical=4x2 grid.tensor=2 grid.pipeline=2 grid.sharding=parameters "
           "pipeline.schedule=zero_bubble model.recompute=full",
       }) {
    const Verification verification = Run(keys);
    EXPECT_EQ(verification.failure, "") << keys << verification.hint;
    EXPECT_EQ(verification.quantities.size(), 12U) << keys;
    for (const char* name :
         {"loss", "gradients", "gradient norm", "weights", "moments", "evaluation loss"}) {
      const auto& quantity = Quantity(verification, fmt::format("canonical {}, fp32", name));
      EXPECT_EQ(quantity.tolerance, 0) << keys;
      EXPECT_EQ(quantity.difference, 0) << keys;
    }
    // The fast run on one rank was another one.
    EXPECT_GT(Quantity(verification, "loss, fp32").difference, 0) << keys;
  }
}

TEST_F(Verifying, CanonicalInFp64Too) {
  const Verification verification =
      Run("run.canonical=2x2 grid.data=2 grid.tensor=2 grid.pipeline=2", Defect::kNone,
          Dtype::kFloat64);
  EXPECT_EQ(verification.failure, "");
  EXPECT_EQ(Quantity(verification, "canonical weights, fp64").tolerance, 0);
}

TEST_F(Verifying, Fp64NeedsNoSecondRun) {
  const Verification verification = Run("grid.data=8", Defect::kNone, Dtype::kFloat64);
  EXPECT_EQ(verification.failure, "");
  EXPECT_EQ(verification.quantities.size(), 5U);
}

TEST_F(Verifying, FindsANormOfHeadsWhoseGradientIsNotSummed) {
  const Verification verification =
      Run("grid.tensor=2 grid.data=4 model.qk_norm=yes", Defect::kNormGradientNotSummed);
  EXPECT_THAT(verification.failure, HasSubstr("in step 1 the gradient of blocks.0.attention."));
  EXPECT_THAT(verification.hint, HasSubstr("does it pass with model.qk_norm = no?"));
}

TEST_F(Verifying, FindsANormWhoseGradientIsNotSummed) {
  for (const char* keys : {"grid.tensor=8 grid.sequence_parallel=yes",
                           "grid.tensor=2 grid.pipeline=2 grid.sequence_parallel=yes"}) {
    const Verification verification = Run(keys, Defect::kNormGradientNotSummed);
    EXPECT_THAT(verification.failure,
                AllOf(HasSubstr("in step 1 the gradient of blocks.0.attention.norm.weight"),
                      HasSubstr("most on rank "), HasSubstr("tensor ")))
        << keys;
    EXPECT_THAT(verification.hint, HasSubstr("grid.sequence_parallel = no")) << keys;
    EXPECT_FALSE(Quantity(verification, "gradient norm, fp64").Within()) << keys;
    const std::string table = tasks::Describe(verification);
    EXPECT_THAT(table, AllOf(HasSubstr("FAIL"), HasSubstr(".norm.weight"))) << keys;
  }
}

TEST_F(Verifying, FindsAnAverageOfAverages) {
  for (const char* keys : {"grid.data=8", "grid.tensor=4",
                           // One window a rank, and none on some: unequal already in step 1.
                           "grid.tensor=2 data.batch=3"}) {
    const Verification verification = Run(keys, Defect::kDataRanksWeighed);
    EXPECT_THAT(verification.failure, HasSubstr("the gradient of embedding.token.weight")) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("grid.data = 1")) << keys;
  }
}

// Not the layout's mistake but the machine's: replicas that no longer agree.
TEST_F(Verifying, FindsASumThatOneDataRankReadsWrongly) {
  for (const char* keys : {"grid.data=8", "grid.tensor=2 grid.pipeline=2"}) {
    const Verification verification = Run(keys, Defect::kDataSumSpoiled);
    EXPECT_THAT(verification.failure,
                HasSubstr("in step 1 the gradient of embedding.token.weight"));
    EXPECT_THAT(verification.failure, HasSubstr("data 1,")) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("Data ranks hold different sums")) << keys;
  }
}

TEST_F(Verifying, FindsATiedEmbeddingWhoseGradientsAreNotSummed) {
  for (const char* keys : {"grid.pipeline=8", "grid.pipeline=2 grid.tensor=2"}) {
    const Verification verification = Run(keys, Defect::kTiedGradientNotSummed);
    EXPECT_THAT(verification.failure, HasSubstr("in step 1 the gradient of embedding.token.weight"))
        << keys;
    EXPECT_THAT(verification.failure, testing::Not(HasSubstr("of the other"))) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("model.tie_embeddings = no")) << keys;
  }
}

TEST_F(Verifying, FindsAParameterThatIsUsedBeforeItsGather) {
  for (const char* keys :
       {"grid.sharding=parameters", "grid.sharding=parameters grid.pipeline=2"}) {
    const Verification verification = Run(keys, Defect::kUsedBeforeGather);
    EXPECT_THAT(verification.failure, HasSubstr("in step 1 the loss")) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("does it pass with grid.sharding = none")) << keys;
  }
}

TEST_F(Verifying, FindsAWrongOffsetInTheRing) {
  for (const char* keys : {"grid.context=2", "grid.context=4 grid.tensor=2"}) {
    const Verification verification = Run(keys, Defect::kRingOffsetWrong);
    EXPECT_THAT(verification.failure, HasSubstr("in step 1 the loss")) << keys;
    EXPECT_THAT(verification.hint, HasSubstr("does it pass with grid.context = 1")) << keys;
  }
}

// Right up to rounding, but not the same bits: only the canonical comparison sees it.
TEST_F(Verifying, FindsATreeThatDependsOnTheRanks) {
  const Verification verification =
      Run("run.canonical=2x4 grid.data=2 grid.tensor=4", Defect::kTreeOfRanks);
  EXPECT_THAT(verification.failure,
              AllOf(HasSubstr("canonical"), HasSubstr("the same bits are wanted")));
  EXPECT_THAT(verification.hint,
              AllOf(HasSubstr("Rounding depends on the layout"), HasSubstr("grid.tensor = 1")));
  EXPECT_TRUE(Quantity(verification, "loss, fp64").Within());
  EXPECT_TRUE(Quantity(verification, "loss, fp32").Within());
  EXPECT_FALSE(Quantity(verification, "canonical weights, fp32").Within());
}

// Ranks of a shard group hold different parts: a difference in one of them is no disagreement of
// copies. Where there are copies, those with the same part still tell.
TEST_F(Verifying, ShardsAreNoCopies) {
  const Verification alone =
      Run("grid.sharding=gradients", Defect::kDataSumSpoiled, Dtype::kFloat64);
  EXPECT_THAT(alone.failure, AllOf(HasSubstr("in step 1 the gradient of"), HasSubstr("data 1,")));
  EXPECT_THAT(alone.hint, testing::Not(HasSubstr("Data ranks hold different sums")));
  EXPECT_THAT(alone.hint, HasSubstr("grid.sharding = none"));
  const Verification copies =
      Run("grid.sharding=gradients grid.shard_group=2", Defect::kDataSumSpoiled, Dtype::kFloat64);
  EXPECT_THAT(copies.hint, AllOf(HasSubstr("Data ranks hold different sums"),
                                 HasSubstr("grid.sharding = none")));
}

// Mistakes without an effect are not reported.
TEST_F(Verifying, AMistakeWithoutEffectPasses) {
  EXPECT_EQ(Run("grid.tensor=4", Defect::kNormGradientNotSummed).failure, "");
  EXPECT_EQ(Run("grid.tensor=2 grid.pipeline=4", Defect::kDataRanksWeighed).failure, "");
  EXPECT_EQ(Run("grid.tensor=8", Defect::kTiedGradientNotSummed).failure, "");
  EXPECT_EQ(Run("grid.pipeline=2 model.tie_embeddings=no", Defect::kTiedGradientNotSummed).failure,
            "");
  EXPECT_EQ(Run("grid.sharding=optimizer", Defect::kUsedBeforeGather).failure, "");
  EXPECT_EQ(Run("grid.data=8", Defect::kRingOffsetWrong).failure, "");
  // Two operands have one tree.
  EXPECT_EQ(Run("run.canonical=2x2 grid.data=2 grid.tensor=2 grid.pipeline=2", Defect::kTreeOfRanks)
                .failure,
            "");
}

// A single rank compares micro-batches and recomputation with a run that has neither.
TEST_F(Verifying, OneRankIsNotComparedWithItself) {
  const comm::Communicator alone = world_.Split(world_.Rank(), 0);
  const Large large = Read("model.recompute=full", 1);
  const comm::ProcessGrid grid(alone, large.grid);
  const std::string folder = folder_ / ("alone" + std::to_string(world_.Rank()));
  std::filesystem::create_directories(folder);
  const Verification verification = tasks::Verify(grid, tasks::Shrink(large.setup, large.grid),
                                                  large.stream, Dtype::kFloat32, folder);
  EXPECT_EQ(verification.failure, "");
  EXPECT_GT(verification.tensors.front().gradient, 0);
}

// A run that blows up is an error of its own, on all ranks.
TEST_F(Verifying, ARunThatCannotGoOnSaysWhich) {
  const Large large = Read("grid.data=8");
  const comm::ProcessGrid grid(world_, large.grid);
  TrainingOptions small = tasks::Shrink(large.setup, large.grid);
  small.model.options.init_deviation = 1e300;
  try {
    tasks::Verify(grid, small, large.stream, Dtype::kFloat32, folder_.Path());
    FAIL() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("verify: the run on one rank cannot go on: step 1: "));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("-r")));
  }
}

bool HeadAlone(const model::Options& o, std::int64_t length, int stages) {
  const model::PartCosts costs = model::CostsPerToken(o, length);
  return parallel::BalanceStages(o.layers, stages, costs.block, costs.embedding, costs.head)
             .back()
             .Size() == 0;
}

// The compared run is small, suits the layout, and has the deck's remainders.
void ExpectShrunk(const deck::Deck& deck, const TrainingOptions& large,
                  const TrainingOptions& small, const comm::GridShape& grid) {
  const model::Options &from = large.model.options, &to = small.model.options;
  EXPECT_EQ(from.ffn % grid.tensor, to.ffn % grid.tensor);
  EXPECT_EQ(from.vocabulary % grid.tensor, to.vocabulary % grid.tensor);
  EXPECT_EQ(large.model.length % grid.tensor, small.model.length % grid.tensor);
  EXPECT_EQ(large.samples.batch % grid.data, small.samples.batch % grid.data);
  EXPECT_EQ(from.dim == from.heads * from.head_dim, to.dim == to.heads * to.head_dim);
  EXPECT_EQ(from.kv_heads % grid.tensor == 0, to.kv_heads % grid.tensor == 0);
  EXPECT_EQ(large.samples.stride <=> large.model.length,
            small.samples.stride <=> small.model.length);
  const int stages = grid.pipeline * large.model.pipeline.chunks;
  if (stages > 1) {
    EXPECT_EQ(from.layers % stages, to.layers % stages);
    EXPECT_EQ(HeadAlone(from, large.model.length, stages),
              HeadAlone(to, small.model.length, stages));
  }
  EXPECT_EQ(train::MicroBatches(large.samples.batch, grid.data, large.model.micro_batch) > 1,
            train::MicroBatches(small.samples.batch, grid.data, small.model.micro_batch) > 1);
  model::CheckLayout(deck, to, grid, small.model.pipeline);
  model::CheckMicroBatches(deck, small.model.pipeline, grid.data,
                           CeilDivide(small.samples.batch, grid.data), small.model.micro_batch);
  EXPECT_LE(to.layers, std::max(3, 4 * stages));
  EXPECT_LE(to.dim, 66);
  const int blocks = grid.context == 1 ? 1 : 2 * grid.context;
  EXPECT_EQ(large.model.length % (blocks * grid.tensor),
            small.model.length % (blocks * grid.tensor));
  EXPECT_GE(small.model.length, std::min<std::int64_t>(large.model.length, 2 * blocks));
  EXPECT_LE(small.model.length, 10 + 3 * blocks * grid.tensor);
  EXPECT_LE(small.samples.batch, 6 * grid.data * grid.pipeline);
  EXPECT_LE(to.vocabulary, 520);
}

TEST_F(Verifying, ShrinkingKeepsDivisibilities) {
  const std::vector<std::string> decks = {
      "", "data.batch=97 data.micro_batch=7 data.stride=100",
      "data.sequence_length=3 data.batch=5 data.stride=9 data.micro_batch=1 model.layers=5 "
      "model.ffn=4099 model.max_positions=3 model.dim=1000 model.head_dim=126",
      "model.heads=64 model.kv_heads=8 model.layers=31 model.dim=4097 model.head_dim=64"};
  for (const int tensor : {1, 2, 4, 8}) {
    for (const int pipeline : {1, 2, 3, 5}) {
      for (const int data : {1, 2, 3, 8}) {
        for (const std::string& more : decks) {
          const int context = 1 + (data + pipeline) % 4;
          std::string keys =
              fmt::format("grid.data={} grid.context={} grid.tensor={} grid.pipeline={} {}", data,
                          context, tensor, pipeline, more);
          if (more.empty() && pipeline > 1) {
            keys +=
                "pipeline.schedule=interleaved pipeline.chunks=3 data.micro_batch=0 data.batch=480";
          }
          SCOPED_TRACE(keys);
          Large large = Read(keys, data * context * tensor * pipeline);
          for (const std::int64_t vocabulary : {101, 1000, 50257}) {
            large.setup.model.options.vocabulary = vocabulary;
            ExpectShrunk(large.deck, large.setup, tasks::Shrink(large.setup, large.grid),
                         large.grid);
          }
        }
      }
    }
  }
}

// Groups, slices, leaves: short and empty ones where the deck has some.
TEST_F(Verifying, ShrinkingKeepsLeavesAndSlices) {
  using train::LeavesOfGroup, train::LargestShare, train::MicroBatches;
  for (const int groups : {1, 4, 8}) {
    for (const int slices : {1, 4, 8}) {
      for (const int pipeline : {1, 2, 3}) {
        for (const std::string more :
             {"", "data.batch=97 run.canonical_leaf=3 data.micro_batch=9",
              "data.batch=5 run.canonical_leaf=1 data.micro_batch=1", "run.canonical_leaf=4",
              "model.dim=1152 model.heads=72 model.kv_heads=36 data.batch=33 "
              "run.canonical_leaf=4"}) {
          const int data = std::min(groups, 2), tensor = std::min(slices, 4);
          const std::string keys = fmt::format(
              "grid.data={} grid.tensor={} grid.pipeline={} "
              "run.canonical={}x{} {}",
              data, tensor, pipeline, groups, slices,
              more.starts_with("model") ? more : "model.heads=32 model.kv_heads=8 " + more);
          SCOPED_TRACE(keys);
          const Large large = Read(keys, data * tensor * pipeline);
          const TrainingOptions small = tasks::Shrink(large.setup, large.grid);
          const parallel::Canonical &from = large.setup.model.canonical,
                                    &to = small.model.canonical;
          EXPECT_EQ(to.data_groups, from.data_groups);
          EXPECT_EQ(to.slices, from.slices);
          EXPECT_EQ(to.leaf, std::min<std::int64_t>(from.leaf, 2));
          const model::Options& o = small.model.options;
          EXPECT_GE(std::min({o.heads, o.kv_heads, o.ffn, o.vocabulary}), slices);
          EXPECT_EQ(large.setup.model.options.kv_heads % slices, o.kv_heads % slices);
          EXPECT_EQ(small.model.micro_batch % to.leaf, 0);
          const auto missing = [&](const TrainingOptions& setup) {
            return groups * LeavesOfGroup(setup.samples.batch, setup.model.canonical) -
                   CeilDivide(setup.samples.batch, setup.model.canonical.leaf);
          };
          EXPECT_EQ(missing(large.setup), missing(small));
          if (from.leaf > 1) {
            EXPECT_EQ(large.setup.samples.batch % from.leaf == 0,
                      small.samples.batch % to.leaf == 0);
          }
          const auto count = [&](const TrainingOptions& setup) {
            return MicroBatches(setup.samples.batch, data, setup.model.micro_batch,
                                setup.model.canonical);
          };
          EXPECT_EQ(count(large.setup) % pipeline, count(small) % pipeline);
          EXPECT_EQ(count(large.setup) > 1, count(small) > 1);
          model::CheckLayout(large.deck, o, large.grid, small.model.pipeline);
          EXPECT_LE(small.samples.batch, 6 * groups * pipeline);
        }
      }
    }
  }
}

TEST_F(Verifying, WhatShrankIsSaid) {
  const Large large = Read("grid.tensor=8");
  const TrainingOptions small = tasks::Shrink(large.setup, large.grid);
  const std::string text = tasks::DescribeShrinking(large.setup, small, 8);
  EXPECT_THAT(text, HasSubstr("layers 24 -> 3, dim 1024 -> 32, "));
  EXPECT_THAT(text, HasSubstr(",\n        "));
  EXPECT_EQ(tasks::DescribeShrinking(small, small, 8), "nothing");
}

// The runs are worth comparing: clipping acts, and the weights learn.
TEST_F(Verifying, TheSmallRunClipsAndHasAShortWindow) {
  const Large large = Read("grid.data=8");
  const TrainingOptions small = tasks::Shrink(large.setup, large.grid);
  const data::TokenFile tokens(world_, tasks::VerificationTokens(small));
  const comm::ProcessGrid grid(world_, large.grid);
  train::TrainingState state(
      grid, train::PlanTraining(small, tokens.Size(data::Split::kTrain), grid.Shape()), {});
  train::TrainingStep training(state, tokens);
  const std::int64_t whole = small.samples.batch * small.model.length;
  EXPECT_EQ(training.Samples().StepsPerEpoch(), 2);
  EXPECT_LT(training.Samples().TargetsBefore(2),
            whole + (small.samples.batch - 1) * small.model.length);
  EXPECT_GT(training.Run(0).gradient_norm, 2 * small.optimizer.clip_norm);
}

kernels::StateBlock Block(std::vector<double>& values, std::int64_t begin, std::int64_t size) {
  return {"t", {size}, Dtype::kFloat64, begin, begin + std::ssize(values), values.data(), 0, 1};
}

// A NaN, and a tensor that nobody holds all of, pass no tolerance.
TEST(VerifyCompare, WhatIsNoNumberIsInfinitelyFar) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(tasks::RelativeDifference(kNan, 1), kInfinite);
  EXPECT_EQ(tasks::RelativeDifference(1, kNan), kInfinite);
  EXPECT_EQ(tasks::RelativeDifference(kNan, kNan), kInfinite);
  EXPECT_EQ(tasks::RelativeDifference(kInfinite, 1), kInfinite);
  EXPECT_EQ(tasks::RelativeDifference(0, 0), 0);
  EXPECT_DOUBLE_EQ(tasks::RelativeDifference(1, 2), 0.5);

  const comm::Communicator world = World();
  const comm::ProcessGrid grid(world, {1, 1, 1, world.Size()});
  std::vector<double> whole(static_cast<std::size_t>(world.Size()), 2.0), mine = {2.0};
  const std::int64_t size = world.Size();
  const auto compare = [&] {
    return tasks::Compare(grid, {Block(mine, world.Rank(), size)}, {Block(whole, 0, size)}).all[0];
  };
  EXPECT_EQ(compare(), 0);
  const bool last = world.Rank() == world.Size() - 1;
  mine[0] = last ? 3.0 : 2.0;
  EXPECT_DOUBLE_EQ(compare(), 1.0 / (2.0 * std::sqrt(static_cast<double>(size))));
  EXPECT_THAT(tasks::WhereLargest(grid, last ? 1.0 : 0.0),
              fmt::format("rank {0} (pipeline 0, data 0, context 0, tensor {0})", size - 1));
  mine[0] = last ? kNan : 2.0;
  EXPECT_EQ(compare(), kInfinite);
  EXPECT_EQ(tasks::CompareBits(grid, {Block(mine, 0, 1)}, {Block(mine, 0, 1)}).all[0], 0);
  mine[0] = 2.0;
  if (last) mine.clear();
  EXPECT_EQ(compare(), kInfinite);

  std::vector<double> zero = {0.0}, minus = {-0.0};
  EXPECT_GT(tasks::CompareBits(grid, {Block(zero, 0, 1)}, {Block(minus, 0, 1)}).all[0], 0);
}

TEST(VerifyCompare, TheTableSaysWhatFails) {
  Verification verification;
  verification.tolerance = 1e-11;
  verification.quantities = {{"loss, fp64", 2e-3, 1e-11}, {"stop, resume", 0, 0}};
  for (int i = 0; i < 12; ++i) verification.tensors.push_back({"t" + std::to_string(i), 1e-16, 0});
  verification.tensors[11].weights = std::numeric_limits<double>::infinity();
  const std::string table = tasks::Describe(verification);
  EXPECT_THAT(table, testing::ContainsRegex("loss, fp64 +2.0e-03 +1e-11  FAIL\n"));
  EXPECT_THAT(table, testing::ContainsRegex("stop, resume +0 +same bits  ok\n"));
  EXPECT_THAT(table, testing::ContainsRegex("t11 +1.0e-16 not finite +1e-11  FAIL\n"));
  EXPECT_THAT(table, HasSubstr("2 more, none above 1.0e-16\n"));
}

TEST(VerifyCompare, AFailureIsOneErrorWithExitCodeOne) {
  const comm::Communicator world = World();
  Verification verification;
  EXPECT_NO_THROW(tasks::Judge(verification, world, 1));
  verification.failure = "in step 1 the loss differs";
  verification.hint = "Suspect this.";
  try {
    tasks::Judge(verification, world, 1);
    FAIL() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_STREQ(error.what(), "verify: in step 1 the loss differs\n  Suspect this.");
  }
}

}  // namespace
}  // namespace trireme::test
