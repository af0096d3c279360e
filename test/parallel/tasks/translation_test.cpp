// Models that translate: in every layout, and what the task translate writes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rule_four.hpp"
#include "small_run.hpp"
#include "training_run.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/tasks/evaluate.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

using tasks::BeamSearch;
using tasks::Translator;

// The model that translates in every layout: losses, gradients and weights of the serial run (rule
// 4), the same bits with run.canonical, stops and moves between layouts, evaluations, memory as
// planned.

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
  o.word_dropout = o.layer_dropout = o.weight_dropout = 0.1;
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

// Translations from a cache of keys and values against whole pairs computed anew for every token:
// in fp64 the same logits, texts and log-probabilities in every layout that holds the model.

using Ids = std::vector<std::int32_t>;

constexpr double kTranslateFp64 = 1e-12;  // relative: logits and log-probabilities
constexpr std::int64_t kTranslateWindow = 14;
constexpr std::int32_t kEos = 0;
constexpr std::int64_t kTypes = 6;  // tokens that may be chosen: few, so that texts end

// Encoders and decoders of all kinds of positions, norms, heads and vocabularies.
struct Kind {
  const char* keys;
  std::int64_t encoder_layers;
  std::int64_t source_types;  // 0: shared
};
constexpr std::array kTranslateModels = {
    Kind{"heads=4\nkv_heads=4\nhead_dim=3\ndim=12\nlayers=3\nffn=17\nnorm_position=post\n"
         "activation=relu\nposition=sinusoidal\nscale_embedding=yes\n",
         2, 0},
    Kind{"heads=4\nkv_heads=2\nhead_dim=4\ndim=13\nlayers=4\nffn=19\nnorm=rmsnorm\n"
         "activation=swiglu\nposition=rope\nbias=no\ntie_embeddings=no\n",
         3, 37},
    Kind{"heads=2\nkv_heads=1\nhead_dim=5\ndim=11\nlayers=3\nffn=16\nposition=learned\n", 1, 0}};

struct TranslateLayout {
  int ranks;
  const char* keys;
};
constexpr std::array kTranslateLayouts = {
    TranslateLayout{1, ""},
    TranslateLayout{2, "tensor=2\n"},
    TranslateLayout{2, "tensor=2\nsequence_parallel=yes\n"},
    TranslateLayout{2, "pipeline=2\n"},
    TranslateLayout{3, "pipeline=3\n"},
    TranslateLayout{4, "tensor=2\npipeline=2\n"},
    TranslateLayout{3, "data=3\n"},
    TranslateLayout{2, "sharding=parameters\n"},
    TranslateLayout{8, "tensor=2\npipeline=2\nsequence_parallel=yes\nsharding=parameters\n"},
    TranslateLayout{4, "pipeline=2\n[pipeline]\nschedule=interleaved\nchunks=2\n"}};

std::string TranslateDeckOf(const Kind& kind, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length={}\nbatch=8\nmicro_batch=1\n[model]\n{}"
      "max_positions={}\ndropout=0.1\ninit_deviation=0.4\n[schedule]\nsteps=5\nwarmup_steps=1\n"
      "[grid]\n{}",
      kTranslateWindow, kind.keys, kTranslateWindow, layout);
}

// Source texts of many lengths, the longest the window's.
std::vector<Ids> Sources(const Kind& kind, std::size_t count) {
  const std::int64_t types = kind.source_types > 0 ? kind.source_types : kVocabulary;
  std::vector<Ids> sources;
  for (std::size_t i = 0; i < count; ++i) {
    Ids& source = sources.emplace_back();
    const std::size_t length = i == 1 ? kTranslateWindow - 1 : (5 * i + 2) % (kTranslateWindow - 1);
    for (std::size_t k = 0; k < length; ++k) {
      source.push_back(static_cast<std::int32_t>((11 * k + 3 * i * i + 4) % types));
    }
    source.push_back(kEos);
  }
  return sources;
}

// A pair: the eos and `target` are what the decoder reads.
data::Entry PairOf(const Ids& source, const Ids& target) {
  data::Entry entry;
  entry.sequences = 1;
  entry.inputs = {kEos};
  entry.inputs.insert(entry.inputs.end(), target.begin(), target.end());
  entry.length = std::ssize(entry.inputs);
  entry.targets.assign(entry.inputs.size(), data::kMasked);
  entry.ordinals = {0};
  entry.positions = PositionsOf(entry.length, 0, 1);
  entry.sources = source;
  entry.source_length = std::ssize(source);
  entry.source_lengths = {static_cast<std::int32_t>(source.size())};
  entry.target_lengths = {static_cast<std::int32_t>(entry.length)};
  return entry;
}

std::vector<double> LogitsOf(model::ParallelModel& net, const Ids& source, const Ids& target) {
  return net.Inference().Logits(PairOf(source, target), std::ssize(target));
}

class TranslateTest : public LayoutTest {
 protected:
  TranslateTest() : LayoutTest(SyntheticTokens()) {}

  // A model that only translates, on the group's ranks; slots: 0 without a cache.
  template <typename Body>
  void With(const comm::Communicator& group, const Kind& kind, const TranslateLayout& layout,
            std::int64_t slots, const Body& body, bool packs = false) {
    RunSettings settings =
        SettingsOf(TranslateDeckOf(kind, layout.keys), tokens_, group.Size(), Dtype::kFloat64);
    model::ModelPlan& plan = settings.model;
    plan.options.kind = model::Kind::kEncoderDecoder;
    plan.options.encoder_layers = kind.encoder_layers;
    plan.options.shared_vocabulary = kind.source_types == 0;
    plan.options.source_types = kind.source_types;
    plan.training = false;
    plan.leaves = 1;
    plan.micro_batch = 2;
    plan.cache_slots = slots;
    plan.pack_weights =
        packs && slots > 1 && settings.options.sharding != comm::Sharding::kParameters;
    const comm::ProcessGrid grid(group, *settings.grid, settings.options);
    model::ParallelModel net(grid, plan, settings.stream);
    net.Inference().PackWeights();
    body(net);
  }
};

// The same search on whole pairs.
BeamSearch::Result TranslatedAnew(model::ParallelModel& net, const Ids& source,
                                  const BeamSearch::Options& options) {
  BeamSearch search(options);
  const auto width = static_cast<std::size_t>(options.beams);
  while (!search.Done()) {
    std::vector<BeamSearch::Candidate> candidates(search.Beams().size() * width);
    for (std::size_t i = 0; i < search.Beams().size(); ++i) {
      std::vector<double> logits = LogitsOf(net, source, search.Beams()[i].tokens);
      logits.resize(kTypes);
      tasks::LikeliestTokens(logits, options.beams,
                             std::span(candidates).subspan(i * width, width));
    }
    search.Advance(candidates);
  }
  return search.Best();
}

// Results of a data rank: the texts that are its own.
void ExpectTranslations(const std::vector<std::optional<BeamSearch::Result>>& got,
                        const std::vector<BeamSearch::Result>& wanted,
                        const comm::ProcessGrid& grid) {
  ASSERT_EQ(got.size(), wanted.size());
  const auto data = static_cast<std::size_t>(grid.Shape().data);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool mine = i % data == static_cast<std::size_t>(grid.Coordinates().data);
    ASSERT_EQ(got[i].has_value(), mine) << i;
    if (!mine) continue;
    EXPECT_EQ(got[i]->tokens, wanted[i].tokens) << i;
    EXPECT_EQ(got[i]->ended, wanted[i].ended) << i;
    EXPECT_NEAR(got[i]->log_probability, wanted[i].log_probability,
                kTranslateFp64 * std::abs(wanted[i].log_probability))
        << i;
  }
}

BeamSearch::Options SearchOf(std::int64_t beams) {
  return {.beams = beams, .length_penalty = 0.6, .longest = kTranslateWindow - 3, .eos = kEos};
}

TEST_F(TranslateTest, ACacheGivesTheTranslationsOfWholePairs) {
  int turn = 0;
  std::size_t ended = 0, tokens = 0;
  for (const Kind& kind : kTranslateModels) {
    const std::vector<Ids> sources = Sources(kind, 7);
    std::map<std::int64_t, std::vector<BeamSearch::Result>> wanted;  // by the number of beams
    With(self_, kind, kTranslateLayouts[0], 0, [&](model::ParallelModel& net) {
      for (const std::int64_t beams : {1, 3}) {
        for (const Ids& source : sources) {
          const BeamSearch::Result result = TranslatedAnew(net, source, SearchOf(beams));
          ended += result.ended ? 1 : 0;
          tokens += result.tokens.size();
          wanted[beams].push_back(result);
        }
      }
    });
    for (const TranslateLayout& layout : kTranslateLayouts) {
      const bool member = world_.Rank() < layout.ranks;
      const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
      const std::int64_t beams = ++turn % 3 == 0 ? 1 : 3;
      const std::int64_t slots = turn % 4 == 0 ? beams : 4 * beams + 1;
      if (!member) continue;
      SCOPED_TRACE(fmt::format("{}{} ranks, {}{} slots, {} beams", kind.keys, layout.ranks,
                               layout.keys, slots, beams));
      With(
          group, kind, layout, slots,
          [&](model::ParallelModel& net) {
            Translator translator({.model = net, .search = SearchOf(beams), .types = kTypes});
            ExpectTranslations(translator.Run(sources), wanted[beams], net.Grid());
            // The slots hold earlier texts now.
            ExpectTranslations(translator.Run(sources), wanted[beams], net.Grid());
          },
          turn % 2 == 0);
    }
  }
  EXPECT_GT(tokens, 100u);  // texts are neither all empty nor all cut off
  EXPECT_GT(ended, 5u);
}

// Logits of three texts of different lengths: after the eos, after a token more of each, after
// another one when one text has taken over another's, with its source text and without.
class LogitsOfPairs {
 public:
  explicit LogitsOfPairs(const std::vector<Ids>& sources)
      : sources_(sources), texts_(3), source_of_{0, 1, 2} {}

  void Grow(std::int32_t token) {
    for (Ids& text : texts_) text.push_back(token++);
  }
  void Take(std::size_t from, std::size_t to) {
    texts_[to] = texts_[from];
    source_of_[to] = source_of_[from];
  }
  const Ids& Source(std::size_t i) const { return sources_[source_of_[i]]; }
  const Ids& Target(std::size_t i) const { return texts_[i]; }
  model::CachedPlaces Places() const {
    model::CachedPlaces places{.slots = {2, 0, 1}, .firsts = {}, .asked = {0, 1, 2}};
    for (std::size_t i = 0; i < 3; ++i) {
      places.firsts.push_back(static_cast<std::int32_t>(texts_[i].size()));
      places.source_lasts.push_back(static_cast<std::int32_t>(Source(i).size()) - 1);
    }
    return places;
  }
  std::vector<double> Wanted(model::ParallelModel& net) const {
    std::vector<double> all;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::vector<double> logits = LogitsOf(net, Source(i), Target(i));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

 private:
  const std::vector<Ids>& sources_;
  std::vector<Ids> texts_;
  std::array<std::size_t, 3> source_of_;
};

// An entry of some of the texts, which begin.
data::Entry Beginning(const std::vector<Ids>& sources, std::span<const std::size_t> texts) {
  data::Entry entry = PairOf(sources[texts[0]], {});
  entry.sequences = std::ssize(texts);
  entry.source_length = kTranslateWindow;
  entry.sources.clear();
  entry.source_lengths.clear();
  for (const std::size_t text : texts) {
    Ids padded = sources[text];
    entry.source_lengths.push_back(static_cast<std::int32_t>(padded.size()));
    padded.resize(kTranslateWindow, 7);
    entry.sources.insert(entry.sources.end(), padded.begin(), padded.end());
  }
  entry.inputs.assign(texts.size(), kEos);
  entry.targets.assign(texts.size(), data::kMasked);
  entry.ordinals.assign(texts.size(), 0);
  entry.target_lengths.assign(texts.size(), 1);
  return entry;
}

// The passes of the test above, with a cache on `net`'s ranks or without one on one rank.
std::vector<double> Passes(model::ParallelModel& net, const std::vector<Ids>& sources) {
  LogitsOfPairs texts(sources);
  std::vector<double> all;
  const auto add = [&](const std::vector<double>& logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const bool cached = net.Plan().cache_slots > 0;
  if (cached) {
    const std::array<std::size_t, 2> pair = {0, 1};
    const std::array<std::size_t, 1> rest = {2};
    const std::array<data::Entry, 2> entries = {Beginning(sources, pair), Beginning(sources, rest)};
    const std::array<model::CachedPlaces, 2> places = {
        model::CachedPlaces{.slots = {2, 0}, .firsts = {0, 0}, .asked = {0, 1}},
        model::CachedPlaces{.slots = {1}, .firsts = {0}, .asked = {0}}};
    add(net.Inference().CachedLogits(entries, places));
  } else {
    add(texts.Wanted(net));
  }
  const std::array<std::int32_t, 3> slots = {2, 0, 1};
  for (int step = 0; step < 4; ++step) {
    std::vector<model::CachedCopy> copies;
    if (step == 1 || step == 2) {
      // Text 0 goes on in the slot of text 2; the second time the source text is there.
      const auto source = step == 1 ? std::ssize(texts.Source(0)) : 0;
      copies = {{slots[0], slots[2], std::ssize(texts.Target(0)) + 1, source}};
      texts.Take(0, 2);
    }
    texts.Grow(5 + 20 * step);
    if (!cached) {
      add(texts.Wanted(net));
      continue;
    }
    model::CachedPlaces places = texts.Places();
    places.copies = copies;
    Ids newest;
    for (std::size_t i = 0; i < 3; ++i) newest.push_back(texts.Target(i).back());
    const data::Entry entry = net.Inference().ContinuedEntry(newest, places.firsts);
    add(net.Inference().CachedLogits({&entry, 1}, {&places, 1}));
  }
  return all;
}

TEST_F(TranslateTest, ACacheGivesTheLogitsOfWholePairs) {
  for (const Kind& kind : kTranslateModels) {
    const std::vector<Ids> sources = Sources(kind, 3);
    std::vector<double> wanted;
    With(self_, kind, kTranslateLayouts[0], 0,
         [&](model::ParallelModel& net) { wanted = Passes(net, sources); });
    const double largest =
        std::abs(*std::ranges::max_element(wanted, {}, [](double x) { return std::abs(x); }));
    for (const TranslateLayout& layout : kTranslateLayouts) {
      SCOPED_TRACE(fmt::format("{}{} ranks, {}", kind.keys, layout.ranks, layout.keys));
      const bool member = world_.Rank() < layout.ranks;
      const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
      // Data ranks have texts of their own here: of parameters sharded over them.
      if (!member || std::string(layout.keys).starts_with("data")) continue;
      std::vector<double> plain;  // without packed weights
      for (const bool packs : {false, true}) {
        With(
            group, kind, layout, 3,
            [&](model::ParallelModel& net) {
              const std::vector<double> got = Passes(net, sources);
              ASSERT_EQ(got.size(), net.Grid().LastStage() ? wanted.size() : 0);
              for (std::size_t i = 0; i < got.size(); ++i) {
                ASSERT_NEAR(got[i], wanted[i], kTranslateFp64 * largest) << i / kVocabulary;
              }
              if (plain.empty()) plain = got;
              EXPECT_EQ(got, plain) << "packed weights change bits";
            },
            packs);
      }
    }
  }
}

// All ranks end when one is asked to, and translate again.
TEST_F(TranslateTest, OneRankThatIsAskedStopsAll) {
  const std::vector<Ids> sources = Sources(kTranslateModels[1], 9);
  With(world_, kTranslateModels[1], {8, "data=4\nsharding=parameters\npipeline=2\n"}, 6,
       [&](model::ParallelModel& net) {
         int turns = 0;
         Translator translator(
             {.model = net, .search = SearchOf(3), .types = kTypes, .stopped = [&] {
                return world_.Rank() == 5 && ++turns == 3;
              }});
         translator.Run(sources);
         EXPECT_TRUE(translator.Stopped());
         translator.Run(sources);
         EXPECT_FALSE(translator.Stopped());
       });
}

// The cache is planned: translations take no more memory than the plan says, and the encoder has
// none of it.
TEST_F(TranslateTest, MemoryIsAsPlanned) {
  const std::vector<Ids> sources = Sources(kTranslateModels[1], 9);
  const std::int64_t before = device::AllocatedBytes();
  device::ResetPeakAllocatedBytes();
  With(
      world_, kTranslateModels[1], {8, "data=2\ntensor=2\npipeline=2\n"}, 7,
      [&](model::ParallelModel& net) {
        const device::MemoryTerms memory = net.Memory();
        if (!net.Grid().LastStage()) {
          const Part blocks = net.LocalPlan().chunks[0];
          const std::int64_t decoders = blocks.end - kTranslateModels[1].encoder_layers;
          ASSERT_GT(decoders, 0);
          const std::int64_t elements = kernels::KeyValueElements(
              net.Stream(), {.heads = 2, .kv_heads = 1, .head_dim = 4}, kTranslateWindow);
          EXPECT_EQ(memory.key_value_cache, 2 * decoders * model::BufferBytes(7 * elements * 8));
        }
        EXPECT_EQ(device::AllocatedBytes() - before, memory.Total());
        Translator translator({.model = net, .search = SearchOf(3), .types = kTypes});
        translator.Run(sources);
        EXPECT_EQ(device::PeakAllocatedBytes() - before, memory.Total());
      },
      true);
}

}  // namespace
}  // namespace trireme::test
