// The model that translates in every layout: losses, gradients and weights of the serial run (rule
// 4), the same bits with run.canonical, stops and moves between layouts, evaluations, memory as
// planned.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "pair_settings.hpp"
#include "rule_four.hpp"
#include "same_ledgers.hpp"
#include "training_run.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

constexpr double kTranslationLayoutsFp64 =
    1e-11;  // relative: losses; gradients and weights in rule 4's norm
constexpr std::int64_t kTranslationLayoutsSteps = 5, kPairs = 150;

// Nothing divides: batches of up to 11 pairs of other shapes in each step.
RunSettings Settings(Dtype dtype, std::int64_t micro_batch) {
  RunSettings settings = PairSettings(dtype, micro_batch, 11, 130);
  settings.model.options.encoder_layers = 3;
  settings.model.options.layers = 2;
  settings.model.bucket_bytes = 1500;
  return settings;
}

void MakePost(model::Options& o) {
  o.norm_position = model::NormPosition::kPost;
  o.position = model::Position::kSinusoidal;
  o.tie_embeddings = false;
  o.scale_embedding = true;
}
void MakeRotary(model::Options& o) {
  o.position = model::Position::kRope;
  o.norm = model::Norm::kRmsNorm;
  o.activation = model::Activation::kSwiglu;
  o.bias = o.qkv_bias = false;
  o.encoder_layers = 2;
  o.layers = 3;
}

struct Results {
  std::vector<double> losses;
  Tensors gradients, weights;
};

double TranslationLayoutsWorstLoss(const std::vector<double>& got,
                                   const std::vector<double>& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - wanted[i]) / std::abs(wanted[i]));
  }
  return worst;
}

class TranslationLayouts : public testing::Test {
 protected:
  TranslationLayouts()
      : world_(World()), self_(comm::Communicator::Adopt(MPI_COMM_SELF)), folder_(world_) {
    const std::string path = folder_ / "pairs.h5";
    deck::Schema schema;
    data::Declare(schema);
    const deck::Deck deck = deck::Deck::Parse(
        schema, "", "test",
        {"tokenize.kind=numerals", fmt::format("tokenize.numerals_pairs={}", kPairs)});
    data::TokenizeInParallel(world_, data::ReadTokenize(deck), deck, path, {}, false);
    pairs_ = std::make_unique<data::PairFile>(world_, world_, path, data::Keeping());
    types_ = std::ssize(pairs_->Of(data::Side::kTarget).Words().words);
  }

  RunSettings Of(Dtype dtype, std::int64_t micro_batch,
                 void (*change)(model::Options&) = nullptr) const {
    RunSettings settings = Settings(dtype, micro_batch);
    if (change != nullptr) change(settings.model.options);
    settings.model.options.vocabulary = types_;
    settings.model.options.source_types = types_;
    return settings;
  }
  Results Run(const comm::Communicator& group, const RunSettings& settings,
              std::int64_t steps = kTranslationLayoutsSteps) const {
    TrainingRun run(group, *pairs_, settings);
    Results results;
    results.losses = run.Train(steps);
    results.gradients = run.Gradients();
    results.weights = run.Weights();
    return results;
  }
  void Compare(RunSettings settings, const Results& serial, const comm::GridShape& grid,
               const comm::GridOptions& options, const std::string& what) const {
    const auto ranks = static_cast<int>(grid.Ranks());
    const bool member = world_.Rank() < ranks;
    const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
    if (!member) return;
    settings.grid = grid;
    settings.options = options;
    const Results got = Run(group, settings);
    EXPECT_LT(TranslationLayoutsWorstLoss(got.losses, serial.losses), kTranslationLayoutsFp64)
        << what;
    EXPECT_LT(RuleFourDifference(got.gradients, serial.gradients).relative, kTranslationLayoutsFp64)
        << what;
    EXPECT_LT(RuleFourDifference(got.weights, serial.weights).relative, kTranslationLayoutsFp64)
        << what;
  }

  comm::Communicator world_, self_;
  SharedFolder folder_;
  std::unique_ptr<data::PairFile> pairs_;
  std::int64_t types_ = 0;
};

TEST_F(TranslationLayouts, DataRanksAndMicroBatches) {
  for (const auto change : {&MakePost, &MakeRotary}) {
    const Results serial = Run(self_, Of(Dtype::kFloat64, 11, change));
    ASSERT_LT(serial.losses.back(), serial.losses.front());
    for (const std::int64_t micro_batch : {1, 3}) {
      Compare(Of(Dtype::kFloat64, micro_batch, change), serial, {1, 1, 1, 1}, {}, "one rank");
      Compare(Of(Dtype::kFloat64, micro_batch, change), serial, {1, 3, 1, 1}, {}, "3 data ranks");
      Compare(Of(Dtype::kFloat64, micro_batch, change), serial, {1, 8, 1, 1}, {}, "8 data ranks");
    }
  }
}

TEST_F(TranslationLayouts, Sharding) {
  const Results serial = Run(self_, Of(Dtype::kFloat64, 11));
  using comm::Sharding;
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const int group : {0, 2}) {
      Compare(Of(Dtype::kFloat64, 2), serial, {1, 4, 1, 1},
              {.sharding = sharding, .shard_group = group},
              fmt::format("sharding {} in groups of {}", static_cast<int>(sharding), group));
    }
  }
}

TEST_F(TranslationLayouts, TensorRanks) {
  for (const auto change : {&MakePost, &MakeRotary}) {
    const Results serial = Run(self_, Of(Dtype::kFloat64, 11, change));
    for (const int tensor : {2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        Compare(Of(Dtype::kFloat64, 4, change), serial, {1, 2, 1, tensor},
                {.sequence_parallel = sequence_parallel},
                fmt::format("tensor {}, sequence parallel {}", tensor, sequence_parallel));
      }
    }
  }
}

TEST_F(TranslationLayouts, Stages) {
  using parallel::ScheduleKind;
  for (const auto change : {&MakePost, &MakeRotary}) {
    const Results serial = Run(self_, Of(Dtype::kFloat64, 11, change));
    for (const int stages : {2, 3, 4}) {
      for (const auto kind : {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward,
                              ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}) {
        RunSettings settings = Of(Dtype::kFloat64, 2, change);
        settings.model.pipeline.kind = kind;
        if (kind == ScheduleKind::kInterleaved) settings.model.pipeline.chunks = 2;
        if (settings.model.pipeline.chunks * stages > 6) continue;
        Compare(settings, serial, {stages, 1, 1, 1}, {},
                fmt::format("{} stages, schedule {}", stages, static_cast<int>(kind)));
      }
    }
  }
}

TEST_F(TranslationLayouts, Everything) {
  using model::Recompute;
  using parallel::ScheduleKind;
  for (const auto change : {&MakePost, &MakeRotary}) {
    const Results serial = Run(self_, Of(Dtype::kFloat64, 11, change));
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const auto kind : {ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}) {
        RunSettings settings = Of(Dtype::kFloat64, 1, change);
        settings.model.options.recompute = recompute;
        settings.model.pipeline.kind = kind;
        if (kind == ScheduleKind::kInterleaved) settings.model.pipeline.chunks = 2;
        Compare(settings, serial, {2, 2, 1, 2},
                {.sequence_parallel = true, .sharding = comm::Sharding::kParameters},
                fmt::format("recompute {}, schedule {}", static_cast<int>(recompute),
                            static_cast<int>(kind)));
      }
    }
  }
}

TEST_F(TranslationLayouts, TablesOfTheirOwn) {
  const auto apart = [](model::Options& o) { o.shared_vocabulary = false; };
  const Results serial = Run(self_, Of(Dtype::kFloat64, 11, apart));
  Compare(Of(Dtype::kFloat64, 2, apart), serial, {2, 2, 1, 2}, {.sequence_parallel = true},
          "tables apart");
  Compare(Of(Dtype::kFloat64, 2, apart), serial, {2, 4, 1, 1},
          {.sharding = comm::Sharding::kParameters}, "tables apart, sharded");
}

TEST_F(TranslationLayouts, TheSameLayoutGivesTheSameBits) {
  RunSettings settings = Of(Dtype::kFloat32, 2);
  settings.grid = comm::GridShape{2, 2, 1, 2};
  const Results first = Run(world_, settings), second = Run(world_, settings);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.weights, second.weights);
}

// A stop and a resume, in the same layout and in another one.
TEST_F(TranslationLayouts, StopsAndMoves) {
  RunSettings settings = Of(Dtype::kFloat64, 3);
  settings.grid = comm::GridShape{2, 2, 1, 2};
  TrainingRun whole(world_, *pairs_, settings);
  const std::vector<double> losses = whole.Train(kTranslationLayoutsSteps);
  TrainingRun first(world_, *pairs_, settings);
  first.Train(2);
  first.Save(folder_ / "checkpoints");
  TrainingRun again(world_, *pairs_, settings);
  again.Load(folder_ / "checkpoints");
  const std::vector<double> rest = again.Train(kTranslationLayoutsSteps);
  EXPECT_EQ(rest, std::vector<double>(losses.begin() + 2, losses.end()));
  EXPECT_EQ(again.Weights(), whole.Weights());
  RunSettings others = Of(Dtype::kFloat64, 2);
  others.grid = comm::GridShape{1, 8, 1, 1};
  others.options.sharding = comm::Sharding::kParameters;
  TrainingRun moved(world_, *pairs_, others);
  moved.Load(folder_ / "checkpoints");
  EXPECT_LT(TranslationLayoutsWorstLoss(moved.Train(kTranslationLayoutsSteps), rest),
            kTranslationLayoutsFp64);
  EXPECT_LT(RuleFourDifference(moved.Weights(), whole.Weights()).relative, kTranslationLayoutsFp64);
}

// Losses without dropout: of all pairs, and of a sample.
TEST_F(TranslationLayouts, Evaluations) {
  using comm::Sharding;
  const auto evaluate = [&](const comm::Communicator& group, RunSettings settings,
                            std::int64_t pairs) {
    TrainingRun run(group, *pairs_, settings);
    return train::EvaluatePairs(run.Net(), *pairs_, data::Split::kValid,
                                {.windows = pairs, .seed = 3});
  };
  for (const std::int64_t pairs : {0, 23}) {
    const train::Evaluation wanted = evaluate(self_, Of(Dtype::kFloat64, 7), pairs);
    EXPECT_EQ(wanted.windows, pairs == 0 ? pairs_->Pairs(data::Split::kValid) : pairs);
    EXPECT_GT(wanted.targets, wanted.windows);
    for (const auto& [grid, sharding] :
         {std::pair{comm::GridShape{1, 8, 1, 1}, Sharding::kParameters},
          std::pair{comm::GridShape{2, 2, 1, 2}, Sharding::kNone},
          std::pair{comm::GridShape{4, 2, 1, 1}, Sharding::kNone}}) {
      RunSettings settings = Of(Dtype::kFloat64, 2);
      settings.grid = grid;
      settings.options.sharding = sharding;
      const train::Evaluation got = evaluate(world_, settings, pairs);
      EXPECT_EQ(got.targets, wanted.targets);
      EXPECT_NEAR(got.loss, wanted.loss, kTranslationLayoutsFp64 * wanted.loss);
    }
  }
}

// Memory planned without MPI is that which the ranks take.
TEST_F(TranslationLayouts, MemoryIsAsPlanned) {
  for (const comm::GridShape& grid : {comm::GridShape{2, 2, 1, 2}, comm::GridShape{4, 2, 1, 1}}) {
    RunSettings settings = Of(Dtype::kFloat32, 3);
    settings.grid = grid;
    settings.options.sequence_parallel = grid.tensor > 1;
    settings.model.pipeline.kind = parallel::ScheduleKind::kZeroBubble;
    TrainingRun run(world_, *pairs_, settings);
    const train::Plan plan{.grid = grid,
                           .sharing = settings.options,
                           .options = settings,
                           .training = run.All().Plan(),
                           .machine = {.dtype = Dtype::kFloat32, .stream = {}},
                           .tokens = {}};
    EXPECT_EQ(train::PlanMemory(plan, world_.Rank()).Total(), run.All().Memory().Total());
    train::CheckTransfers(plan, world_.Rank());
    device::ResetPeakAllocatedBytes();
    const std::int64_t before = device::AllocatedBytes();
    run.Train(2);
    EXPECT_EQ(device::PeakAllocatedBytes(), before) << "a step takes memory";
  }
}

// Transfers of each step, group by group, and the operations of all ranks, which are the model's.
// Steps have unequal pairs and lengths.
TEST_F(TranslationLayouts, TransfersAndOperationsAreAsPlanned) {
  using comm::Sharding;
  struct Case {
    comm::GridShape grid;
    comm::GridOptions options;
    parallel::ScheduleKind kind = parallel::ScheduleKind::kOneForwardOneBackward;
  };
  const Case cases[] = {{{1, 8, 1, 1}, {}},
                        {{1, 8, 1, 1}, {.sharding = Sharding::kParameters}},
                        {{1, 4, 1, 2}, {.sequence_parallel = true}},
                        {{2, 2, 1, 2},
                         {.sequence_parallel = true, .sharding = Sharding::kGradients},
                         parallel::ScheduleKind::kZeroBubble},
                        {{4, 2, 1, 1}, {.sharding = Sharding::kOptimizer}}};
  for (const Case& each : cases) {
    RunSettings settings = Of(Dtype::kFloat32, 2, &MakePost);
    settings.grid = each.grid;
    settings.options = each.options;
    settings.model.pipeline.kind = each.kind;
    TrainingRun run(world_, *pairs_, settings);
    train::Plan plan{.grid = each.grid,
                     .sharing = each.options,
                     .options = settings,
                     .training = run.All().Plan(),
                     .machine = {.dtype = Dtype::kFloat32, .stream = {}},
                     .tokens = {}};
    plan.tokens.pairs = train::PairFacts();
    for (std::int64_t step = 0; step < kTranslationLayoutsSteps; ++step) {
      const data::PairBatchShape shape = run.Step().Pairs().Shape(step);
      const train::RankPlan planned = train::PlanRank(
          plan, world_.Rank(), {shape.pairs, shape.source_length, shape.target_length}, nullptr);
      run.Grid().Traffic().Clear();
      run.Train(step + 1);
      ExpectSame(
          run.Grid().Traffic(), planned.traffic,
          fmt::format("rank {}, {}, step {}", world_.Rank(), comm::Describe(each.grid), step + 1));
      double operations = 0;
      for (const auto& chunk : planned.operations) {
        for (const double part : chunk) operations += part;
      }
      const double wanted =
          static_cast<double>(shape.pairs) *
          model::PairFlops(settings.model.options, shape.source_length, shape.target_length);
      EXPECT_NEAR(world_.Sum(operations) / wanted, 1, 1e-12) << comm::Describe(each.grid);
    }
  }
}

struct CanonicalLayout {
  comm::GridShape grid;
  comm::GridOptions options;
  std::int64_t micro_batch;
  parallel::ScheduleKind kind = parallel::ScheduleKind::kOneForwardOneBackward;
  model::Recompute recompute = model::Recompute::kNone;
};

// run.canonical: the same bits in six layouts.
TEST_F(TranslationLayouts, CanonicalBits) {
  using comm::Sharding;
  using parallel::ScheduleKind;
  const CanonicalLayout layouts[] = {
      {{1, 1, 1, 1}, {}, 2},
      {{1, 4, 1, 2}, {.sequence_parallel = true}, 4},
      {{1, 8, 1, 1}, {.sharding = Sharding::kParameters}, 2},
      {{2, 2, 1, 2}, {.sharding = Sharding::kGradients}, 2, ScheduleKind::kZeroBubble},
      {{3, 2, 1, 1},
       {.sharding = Sharding::kOptimizer},
       4,
       ScheduleKind::kGpipe,
       model::Recompute::kFull},
      {{2, 1, 1, 2},
       {.sequence_parallel = true},
       6,
       ScheduleKind::kOneForwardOneBackward,
       model::Recompute::kSelective}};
  for (const auto change : {&MakePost, &MakeRotary}) {
    Results wanted;
    for (const CanonicalLayout& layout : layouts) {
      RunSettings settings = Of(Dtype::kFloat32, layout.micro_batch, change);
      settings.model.canonical = {.data_groups = 8, .slices = 2, .leaf = 2};
      settings.model.pipeline.kind = layout.kind;
      settings.model.options.recompute = layout.recompute;
      settings.grid = layout.grid;
      settings.options = layout.options;
      const bool member = world_.Rank() < layout.grid.Ranks();
      const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
      if (!member) continue;
      const Results got = Run(group, settings);
      if (layout.grid.Ranks() == 1) {
        wanted = got;
        continue;
      }
      if (wanted.losses.empty()) wanted.losses = got.losses;
      const std::string what =
          fmt::format("{} stages, {} data ranks, {} tensor ranks", layout.grid.pipeline,
                      layout.grid.data, layout.grid.tensor);
      EXPECT_EQ(got.losses, wanted.losses) << what;
      if (world_.IsRoot()) {
        EXPECT_EQ(got.weights, wanted.weights) << what;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
