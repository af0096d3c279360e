// The [model] section, the plan of a model, and batches on their way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/model/options.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/model/staged_batches.hpp"

namespace trireme::test {
namespace {

using model::Options;
using model::RopeScaling;
using model::StagedBatches;
using testing::HasSubstr;

// Keys of [model] that known families need: biases of queries, keys and values, scaled rotary
// positions, presets; and the angles that follow from them.

Options OptionsOf(const std::vector<std::string>& keys, const std::string& text = "") {
  static const deck::Schema schema = [] {
    deck::Schema made;
    model::Declare(made);
    return made;
  }();
  deck::Deck deck = deck::Deck::Parse(schema, text, "a.in", keys);
  model::Resolve(deck);
  return model::Read(deck);
}

std::string Refusal(const std::vector<std::string>& keys, const std::string& text = "") {
  try {
    OptionsOf(keys, text);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST(ModelOptions, BiasesOfQueriesFollowTheOthersUnlessTheyAreGiven) {
  EXPECT_TRUE(OptionsOf({}).qkv_bias);
  EXPECT_FALSE(OptionsOf({"model.bias=no"}).qkv_bias);
  EXPECT_TRUE(OptionsOf({"model.bias=no", "model.qkv_bias=yes"}).qkv_bias);
  EXPECT_FALSE(OptionsOf({"model.qkv_bias=no"}).qkv_bias);
  EXPECT_FALSE(OptionsOf({"model.preset=llama_5m"}).qkv_bias);
  const Options qwen2 = OptionsOf({"model.preset=llama_5m", "model.qkv_bias=yes"});
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.bias);
  // dim 128, 2 key/value heads of 32, 4 layers.
  EXPECT_EQ(
      model::ParameterCount(qwen2) - model::ParameterCount(OptionsOf({"model.preset=llama_5m"})),
      4 * (128 + 2 * 2 * 32));
}

TEST(ModelOptions, NormsOfHeadsHaveTwoWeightsABlock) {
  Options options = OptionsOf({"model.preset=llama_5m"});
  const std::int64_t without = model::ParameterCount(options);
  options.qk_norm = true;
  EXPECT_EQ(model::ParameterCount(options), without + 4 * 2 * 32);
  EXPECT_TRUE(OptionsOf({"model.qk_norm=yes"}).qk_norm);
}

// Sizes that Meta publishes: safetensors.index.json of each (tied weights once).
TEST(ModelOptions, PresetsHaveThePublishedNumbersOfParameters) {
  constexpr std::int64_t kVocabulary = 128'256;
  const std::pair<const char*, std::int64_t> published[] = {{"llama3_1b", 1'235'814'400},
                                                            {"llama3_3b", 3'212'749'824},
                                                            {"llama3_8b", 8'030'261'248},
                                                            {"llama3_70b", 70'553'706'496}};
  for (const auto& [name, count] : published) {
    Options options = OptionsOf({std::string("model.preset=") + name});
    options.vocabulary = kVocabulary;
    EXPECT_EQ(model::ParameterCount(options), count) << name;
    EXPECT_EQ(options.rope_scaling, RopeScaling::kLlama3) << name;
    EXPECT_EQ(options.rope_original_positions, 8192) << name;
    EXPECT_EQ(options.max_positions, 131'072) << name;
    EXPECT_EQ(options.norm_epsilon, 1e-5) << name;
    EXPECT_EQ(options.rope_theta, 500'000) << name;
    EXPECT_FALSE(options.qkv_bias) << name;
  }
  EXPECT_EQ(OptionsOf({"model.preset=llama3_3b"}).rope_factor, 32);
  EXPECT_EQ(OptionsOf({"model.preset=llama3_70b"}).rope_factor, 8);
}

// Another scaling than the preset's has none of its numbers.
TEST(ModelOptions, ScalingsNumbersStayWithTheirKind) {
  const Options plain = OptionsOf({"model.preset=llama3_1b", "model.rope_scaling=none"});
  EXPECT_EQ(plain.rope_factor, 0);
  EXPECT_EQ(plain.rope_original_positions, 0);
  EXPECT_EQ(plain.rope_theta, 500'000);
  EXPECT_THAT(Refusal({"model.preset=llama3_1b", "model.rope_scaling=linear"}),
              HasSubstr("needs model.rope_factor"));
  const Options longer = OptionsOf({"model.preset=llama3_1b", "model.rope_factor=16"});
  EXPECT_EQ(longer.rope_factor, 16);
  EXPECT_EQ(longer.rope_original_positions, 8192);
}

TEST(ModelOptions, ScalingsNumbersAreRefusedByLine) {
  const std::string rope = "model.position=rope", yarn = "model.rope_scaling=yarn";
  const std::string factor = "model.rope_factor=4", positions = "model.rope_original_positions=64";
  EXPECT_EQ(Refusal({rope, yarn, factor, positions}), "");
  EXPECT_EQ(Refusal({rope, yarn, factor}),
            "command line: model.rope_scaling = yarn: needs model.rope_original_positions\n"
            "  `trireme --help-deck model` says what it means.");
  EXPECT_THAT(Refusal({rope, yarn, positions}), HasSubstr("yarn: needs model.rope_factor"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=llama3", factor}),
              HasSubstr("llama3: needs model.rope_original_positions"));
  EXPECT_EQ(Refusal({rope, "model.rope_scaling=linear", factor}), "");
  EXPECT_EQ(Refusal({}, "[model]\nposition = rope\nrope_factor = 4\n"),
            "a.in:3: model.rope_factor = 4: is not a number of model.rope_scaling = none\n"
            "  Leave it out, or choose the scaling that it belongs to.");
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=linear", factor, positions}),
              HasSubstr("model.rope_original_positions = 64: is not a number of"));
  EXPECT_THAT(Refusal({rope, yarn, factor, positions, "model.rope_low_frequency_factor=2"}),
              HasSubstr("model.rope_low_frequency_factor = 2: is not a number of"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=llama3", factor, positions,
                       "model.rope_attention_factor=1.5"}),
              HasSubstr("model.rope_attention_factor = 1.5: is not a number of"));
  // Defaults that a resolved deck states are no numbers of another kind.
  EXPECT_EQ(Refusal({rope, "model.rope_beta_fast=32", "model.rope_high_frequency_factor=4"}), "");
}

TEST(ModelOptions, ScalingsThatMeanNothingAreRefused) {
  const std::string rope = "model.position=rope", yarn = "model.rope_scaling=yarn";
  const std::string factor = "model.rope_factor=4", positions = "model.rope_original_positions=64";
  EXPECT_EQ(Refusal({"model.rope_scaling=linear", factor}),
            "command line: model.rope_scaling = linear: scales rotary positions, which this model "
            "does not have\n"
            "  What fits: model.position = rope, or model.rope_scaling = none.");
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=linear", "model.rope_factor=0.5"}),
              HasSubstr("model.rope_factor = 0.5: must be 1 or larger"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=llama3", factor, positions,
                       "model.rope_low_frequency_factor=4"}),
              HasSubstr("must lie below model.rope_high_frequency_factor = 4"));
  EXPECT_THAT(Refusal({rope, yarn, factor, positions, "model.rope_beta_slow=32"}),
              HasSubstr("must lie below model.rope_beta_fast = 32"));
  EXPECT_THAT(Refusal({rope, yarn, factor, positions, "model.rope_theta=1"}),
              HasSubstr("must lie above 1"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=dynamic"}), HasSubstr("not one of none, linear"));
}

// Numbers of a plain Python program of the published formulas in double precision
// (transformers' modeling_rope_utils.py computes the same in fp32).
struct Golden {
  std::vector<std::string> keys;
  double magnitude;
  std::vector<std::pair<std::size_t, double>> frequencies;  // pair, radians
};
const Golden kGoldens[] = {
    {{"model.preset=llama3_1b"},
     1,
     {{0, 1.0},
      {1, 0.6636012376960885},
      {14, 0.0032114459947525913},
      {15, 0.001290547928209264},
      {16, 0.00042955679655936815},
      {17, 9.70828780262767e-05},
      {18, 1.9461638184831125e-05},
      {31, 9.418306725434909e-08}}},
    {{"model.preset=llama3_8b"},
     1,
     {{28, 0.0032114459947525913},
      {29, 0.002166570763503359},
      {32, 0.0005248461609929547},
      {34, 0.00017850781276799638},
      {36, 7.78465527393245e-05},
      {63, 3.068925988914511e-07}}},
    // Qwen2 beyond 32,768 tokens, as its model card says; the ramp from pair 23 to pair 40.
    {{"model.position=rope", "model.dim=3584", "model.heads=28", "model.rope_theta=1000000",
      "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_positions=32768"},
     1.138629436111989,
     {{0, 1.0},
      {10, 0.1154781984689458},
      {23, 0.006978305848598663},
      {24, 0.005375321490790102},
      {30, 0.0010643609812470017},
      {39, 6.490394320837028e-05},
      {40, 4.445698525097307e-05},
      {63, 3.102344401879299e-07}}},
    {{"model.position=rope", "model.dim=64", "model.heads=1", "model.rope_scaling=yarn",
      "model.rope_factor=16", "model.rope_original_positions=4096"},
     1.2772588722239782,
     {{10, 0.056234132519034905},
      {11, 0.039128569789286714},
      {15, 0.00852684377296741},
      {22, 0.00023938376673600877},
      {23, 8.334508951020775e-05},
      {31, 8.334508951020775e-06}}}};

TEST(RopeAngles, AreThePublishedOnes) {
  constexpr double kRounding = 1e-14;  // relative
  for (const Golden& golden : kGoldens) {
    const Options options = OptionsOf(golden.keys);
    const model::RopeAngles angles = model::RopeAnglesOf(options);
    ASSERT_EQ(std::ssize(angles.frequencies), options.head_dim / 2);
    EXPECT_NEAR(angles.magnitude, golden.magnitude, kRounding);
    for (const auto& [pair, value] : golden.frequencies) {
      EXPECT_NEAR(angles.frequencies.at(pair) / value, 1, kRounding)
          << golden.keys.front() << " " << pair;
    }
  }
}

// Every pair, against the published code's steps.
TEST(RopeAngles, EqualThePlainReference) {
  constexpr double kRounding = 1e-14;
  for (const RopeScaling scaling :
       {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kYarn, RopeScaling::kLlama3}) {
    for (const std::int64_t head_dim : {2, 6, 64, 128}) {
      for (const double theta : {100.0, 10'000.0, 1e6}) {
        for (const std::int64_t positions : {4, 100, 8192}) {
          Options o;
          o.head_dim = head_dim;
          o.rope_theta = theta;
          o.rope_scaling = scaling;
          o.rope_factor = 8;
          o.rope_original_positions = positions;
          const model::RopeAngles got = model::RopeAnglesOf(o);
          const RotaryTurns wanted = TurnsOf(o);
          ASSERT_EQ(got.frequencies.size(), wanted.frequencies.size());
          EXPECT_NEAR(got.magnitude / wanted.magnitude, 1, kRounding);
          for (std::size_t i = 0; i < wanted.frequencies.size(); ++i) {
            EXPECT_NEAR(got.frequencies[i] / wanted.frequencies[i], 1, kRounding)
                << static_cast<int>(scaling) << " " << head_dim << " " << theta << " " << i;
          }
        }
      }
    }
  }
}

TEST(RopeAngles, AGivenAttentionFactorReplacesTheFormula) {
  const Options options =
      OptionsOf({"model.position=rope", "model.rope_scaling=yarn", "model.rope_factor=4",
                 "model.rope_original_positions=64", "model.rope_attention_factor=1.5"});
  EXPECT_EQ(model::RopeAnglesOf(options).magnitude, 1.5);
}

// The bits of the table without scaling are those of the formula that it has always been.
TEST(RopeAngles, PlainTablesAreUnchanged) {
  constexpr std::int64_t kRows = 50, kDim = 10;
  constexpr double kTheta = 10'000;
  Options o;
  o.head_dim = kDim;
  o.rope_theta = kTheta;
  const model::RopeAngles angles = model::RopeAnglesOf(o);
  std::vector<float> values(kRows * kDim);
  kernels::RopeTable(angles.frequencies, angles.magnitude,
                     {values.data(), Dtype::kFloat32, kRows, kDim, kDim});
  for (std::int64_t t = 0; t < kRows; ++t) {
    for (std::int64_t i = 0; i < kDim / 2; ++i) {
      const double angle = static_cast<double>(t) * std::pow(kTheta, -2.0 * static_cast<double>(i) /
                                                                         static_cast<double>(kDim));
      const auto at = static_cast<std::size_t>(t * kDim + i);
      EXPECT_EQ(values[at], static_cast<float>(std::cos(angle)));
      EXPECT_EQ(values[at + kDim / 2], static_cast<float>(std::sin(angle)));
    }
  }
}

// muP: what goes together; the factors by the formulas.

TEST(Mup, IsRefusedByLine) {
  const std::string mup = "model.parametrization=mup", base = "model.mup_base=64";
  EXPECT_EQ(Refusal({mup, base}), "");
  EXPECT_EQ(Refusal({mup}),
            "command line: model.parametrization = mup: mup needs model.mup_base\n"
            "  Give the model.dim of the model whose learning rate you tuned.");
  EXPECT_EQ(Refusal({}, "[model]\nmup_base = 64\n"),
            "a.in:2: model.mup_base = 64: belongs to model.parametrization = mup\n"
            "  Leave it out, or choose that parametrization.");
  EXPECT_THAT(Refusal({"model.mup_base_head_dim=16"}), HasSubstr("belongs to"));
  EXPECT_THAT(Refusal({mup, base, "model.init=xavier"}),
              HasSubstr("does not go together with model.init = xavier"));
  EXPECT_THAT(Refusal({mup, base, "model.scale_embedding=yes"}),
              HasSubstr("does not go together with model.scale_embedding = yes"));
  EXPECT_THAT(Refusal({mup, "model.mup_base=-1"}), HasSubstr("model.mup_base = -1"));
}

TEST(Mup, FactorsAreOneAtTheBase) {
  const std::vector<std::string> keys = {"model.parametrization=mup", "model.dim=256",
                                         "model.heads=4"};
  const auto with = [&](const char* base, const char* head_dim) {
    std::vector<std::string> all = keys;
    all.insert(all.end(), {base, head_dim});
    return OptionsOf(all);
  };
  EXPECT_EQ(with("model.mup_base=256", "model.mup_base_head_dim=0").ScoreDivisor(), 0);
  EXPECT_EQ(with("model.mup_base=256", "model.mup_base_head_dim=64").ScoreDivisor(), 8);
  EXPECT_EQ(with("model.mup_base=256", "model.mup_base_head_dim=64").WidthFactor(), 1);
  EXPECT_EQ(with("model.mup_base=64", "model.mup_base_head_dim=16").ScoreDivisor(), 16);
  EXPECT_EQ(with("model.mup_base=64", "model.mup_base_head_dim=16").WidthFactor(), 4);
  EXPECT_EQ(OptionsOf({}).WidthFactor(), 1);
}

// The plan of a rank's part of a model, a pure function: all ranks' parts make up the model once.

constexpr std::int64_t kLayers = 7, kPlanLength = 13, kPlanSequences = 3;

model::ModelPlan StagesPlan(int stages, int chunks = 1) {
  model::ModelPlan plan;
  plan.options.vocabulary = 101;
  plan.options.layers = kLayers;
  plan.length = kPlanLength;
  plan.micro_batch = kPlanSequences;
  plan.pipeline.stages = stages;
  plan.pipeline.chunks = chunks;
  plan.pipeline.micro_batches = 5;
  if (chunks > 1) plan.pipeline.kind = parallel::ScheduleKind::kInterleaved;
  return plan;
}

constexpr comm::GridShape kGrid{.pipeline = 3, .data = 2, .context = 2, .tensor = 2};

TEST(StagePlan, OfOneRankIsTheWholeModel) {
  const model::StagePlan whole = model::PlanStage(StagesPlan(1), {}, {}, 0);
  EXPECT_TRUE(whole.First());
  EXPECT_TRUE(whole.Last());
  ASSERT_EQ(whole.chunks.size(), 1u);
  EXPECT_EQ(whole.chunks[0].begin, 0);
  EXPECT_EQ(whole.chunks[0].end, kLayers);
  ASSERT_EQ(whole.slots.size(), 1u);
  EXPECT_EQ(whole.slots[0].input, 1);
  EXPECT_EQ(whole.slots[0].weight, 1);
  EXPECT_EQ(whole.slots[0].backward, 0);
  EXPECT_EQ(whole.Length(), kPlanLength);
  EXPECT_EQ(whole.tokens, kPlanSequences * kPlanLength);
  EXPECT_EQ(whole.residual_rows, whole.tokens);
  EXPECT_EQ(whole.groups, 1);
  EXPECT_EQ(whole.shard.ranks, 1);
}

TEST(StagePlan, EveryBlockIsOnOneStage) {
  for (const int chunks : {1, 2}) {
    std::vector<int> times(kLayers);
    for (int stage = 0; stage < kGrid.pipeline; ++stage) {
      const int rank = comm::RankAt({stage, 1, 0, 1}, kGrid);
      const model::StagePlan part =
          model::PlanStage(StagesPlan(kGrid.pipeline, chunks), kGrid, {}, rank);
      EXPECT_EQ(part.stage, stage);
      EXPECT_EQ(part.First(), stage == 0);
      EXPECT_EQ(part.Last(), stage == kGrid.pipeline - 1);
      EXPECT_EQ(std::ssize(part.chunks), chunks);
      EXPECT_EQ(part.slots.size(), part.chunks.size());
      for (const Part& chunk : part.chunks) {
        for (std::int64_t i = chunk.begin; i < chunk.end; ++i) ++times[static_cast<std::size_t>(i)];
      }
    }
    EXPECT_EQ(times, std::vector<int>(kLayers, 1)) << chunks;
  }
}

// Interleaved schedules run multiples of the stages.
TEST(StagePlan, MicroBatchesAreThoseThatRun) {
  EXPECT_EQ(model::PlanStage(StagesPlan(3), kGrid, {}, 0).pipeline.micro_batches, 5);
  EXPECT_EQ(model::PlanStage(StagesPlan(3, 2), kGrid, {}, 0).pipeline.micro_batches, 6);
}

TEST(StagePlan, PositionsAndRowsAreCut) {
  const model::ModelPlan plan = StagesPlan(kGrid.pipeline);
  std::set<std::int64_t> seen;
  for (int context = 0; context < kGrid.context; ++context) {
    const int rank = comm::RankAt({0, 0, context, 0}, kGrid);
    const model::StagePlan whole = model::PlanStage(plan, kGrid, {}, rank);
    const model::StagePlan cut = model::PlanStage(plan, kGrid, {.sequence_parallel = true}, rank);
    for (std::int64_t p = 0; p < whole.Length(); ++p) seen.insert(whole.positions.At(p));
    EXPECT_EQ(whole.tokens, kPlanSequences * whole.Length());
    EXPECT_EQ(whole.residual_rows, whole.tokens);
    EXPECT_EQ(cut.tokens, whole.tokens);
    EXPECT_EQ(cut.residual_rows, CeilDivide(whole.tokens, std::int64_t{kGrid.tensor}));
  }
  EXPECT_EQ(std::ssize(seen), kPlanLength);
}

// As ProcessGrid splits its communicators: consecutive ranks of data x context share one copy.
TEST(StagePlan, ShardsAreConsecutiveDataRanks) {
  const comm::GridOptions halves{.sharding = comm::Sharding::kParameters, .shard_group = 2};
  const comm::GridOptions all{.sharding = comm::Sharding::kParameters};
  for (int rank = 0; rank < kGrid.Ranks(); ++rank) {
    const comm::GridShape at = comm::Locate(rank, kGrid);
    const int copy = at.data * kGrid.context + at.context;
    const model::ModelPlan plan = StagesPlan(kGrid.pipeline);
    const model::StagePlan half = model::PlanStage(plan, kGrid, halves, rank);
    EXPECT_EQ(half.shard.ranks, 2);
    EXPECT_EQ(half.shard.rank, copy % 2);
    const model::StagePlan whole = model::PlanStage(plan, kGrid, all, rank);
    EXPECT_EQ(whole.shard.ranks, 4);
    EXPECT_EQ(whole.shard.rank, copy);
    EXPECT_EQ(model::PlanStage(plan, kGrid, {}, rank).shard.ranks, 1);
  }
}

// Evaluation keeps no gradients and no moments: only sharded parameters remain sharded.
TEST(StagePlan, EvaluationShardsParametersAlone) {
  model::ModelPlan plan = StagesPlan(kGrid.pipeline);
  plan.training = false;
  for (const comm::Sharding sharding : {comm::Sharding::kOptimizer, comm::Sharding::kGradients}) {
    EXPECT_EQ(model::PlanStage(plan, kGrid, {.sharding = sharding}, 0).shard.sharding,
              comm::Sharding::kNone);
  }
  EXPECT_EQ(
      model::PlanStage(plan, kGrid, {.sharding = comm::Sharding::kParameters}, 0).shard.sharding,
      comm::Sharding::kParameters);
}

TEST(StagePlan, CanonicalGroupsAreSharedOutOverDataRanks) {
  model::ModelPlan plan = StagesPlan(kGrid.pipeline);
  plan.canonical = {8, 2, 3};
  const model::StagePlan part = model::PlanStage(plan, kGrid, {}, 0);
  EXPECT_EQ(part.groups, 4);
  EXPECT_TRUE(part.shard.canonical);
  EXPECT_EQ(part.shard.gradient_levels, 3);
  plan.canonical.data_groups = 1;
  EXPECT_THROW(model::PlanStage(plan, kGrid, {}, 0), Error);
}

TEST(StagePlan, StagesAreTheGrids) {
  EXPECT_THROW(model::PlanStage(StagesPlan(2), kGrid, {}, 0), Error);
}

// The order of StagedBatches' stages, which hold for every device: a wrong one is an error at once.
// Copies to a GPU are the matter of test/unit/driver_cuda.

using Batches = std::vector<data::Entry>;

// A ticket cannot be copied, made up, or used at another stage.
static_assert(!std::is_copy_constructible_v<StagedBatches::Staged>);
static_assert(!std::is_copy_constructible_v<StagedBatches::Taken>);
static_assert(!std::is_default_constructible_v<StagedBatches::Staged>);
static_assert(!std::is_default_constructible_v<StagedBatches::Taken>);
static_assert(!std::is_convertible_v<StagedBatches::Staged, StagedBatches::Taken>);
static_assert(!std::is_constructible_v<StagedBatches::Taken, StagedBatches::Staged>);
static_assert(
    !std::is_constructible_v<StagedBatches::Taken, std::span<const data::Entry>, std::uint64_t>);

Batches TwoEntries() {
  Batches batches(2);
  for (data::Entry& batch : batches) {
    batch.sequences = 1;
    batch.length = 3;
    batch.inputs = {1, 2, 3};
    batch.targets = {2, 3, 4};
    batch.ordinals = {7};
  }
  return batches;
}

class Staged : public testing::Test {
 protected:
  const Batches first_ = TwoEntries(), second_ = TwoEntries();
  StagedBatches staged_{{}, {.entries = 2, .sequences = 1, .length = 3}};
};

TEST_F(Staged, OnTheCpuTokensStayWhereTheyAre) {
  EXPECT_EQ(staged_.Bytes(), 0);
  const auto opened = staged_.Open(staged_.Take(staged_.Stage(first_)));
  EXPECT_EQ(opened.data(), first_.data());
  EXPECT_EQ(staged_.At(1).inputs, first_[1].inputs.data());
  EXPECT_EQ(staged_.At(1).targets, first_[1].targets.data());
  EXPECT_EQ(staged_.At(0).ordinals, first_[0].ordinals.data());
}

// An evaluation between two steps.
TEST_F(Staged, OthersMayComeInBetween) {
  StagedBatches::Staged ahead = staged_.Stage(first_);
  EXPECT_EQ(staged_.Open(staged_.Take(staged_.Stage(second_))).data(), second_.data());
  EXPECT_EQ(staged_.Open(staged_.Take(std::move(ahead))).data(), first_.data());
  EXPECT_EQ(staged_.At(0).inputs, first_[0].inputs.data());
}

TEST_F(Staged, ATicketIsUsedOnce) {
  StagedBatches::Staged ticket = staged_.Stage(first_);
  StagedBatches::Taken taken = staged_.Take(std::move(ticket));
  EXPECT_TRUE(ticket.Batches().empty());  // NOLINT(bugprone-use-after-move): that is the test
  EXPECT_THROW((void)staged_.Take(std::move(ticket)), Error);
  staged_.Open(std::move(taken));
  EXPECT_THROW(staged_.Open(std::move(taken)), Error);
}

// The computation would read the other batches.
TEST_F(Staged, OnlyTheBatchesInPlaceAreOpened) {
  StagedBatches::Taken early = staged_.Take(staged_.Stage(first_));
  StagedBatches::Taken late = staged_.Take(staged_.Stage(second_));
  EXPECT_THROW(staged_.Open(std::move(early)), Error);
  EXPECT_EQ(staged_.Open(std::move(late)).data(), second_.data());
}

TEST_F(Staged, NoMoreThanPlanned) {
  Batches three = TwoEntries();
  three.push_back(three.front());
  EXPECT_THROW((void)staged_.Stage(three), Error);
}

}  // namespace
}  // namespace trireme::test
