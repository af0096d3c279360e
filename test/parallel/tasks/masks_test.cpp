// Masks of documents and of the loss, and evaluation, in layouts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "small_run.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

// Masks of the loss: a step's loss is the mean over the targets that count, of all ranks; and every
// layout computes the serial run's numbers though its ranks hold very uneven counts.

constexpr int kLossMaskRanks = 4;
constexpr double kLossMaskFp64 =
    1e-11;  // relative: losses, norm; gradients and weights in rule 4's norm
constexpr std::int64_t kLossMaskMaskSteps = 6;  // more than an epoch, with its short batch

data::TokenData LossMasked() {
  data::TokenData data = SyntheticTokens();
  AddLossMask(data);
  return data;
}

class LossMask : public LayoutTest {
 protected:
  LossMask() : LayoutTest(LossMasked()) {}
  void SetUp() override { ASSERT_EQ(world_.Size(), kLossMaskRanks); }

  // Targets that count in a step's batch, and their summed loss by the weights of `run`, window by
  // window and target by target.
  std::pair<std::int64_t, double> Counted(TrainingRun& run, data::Split split,
                                          const std::vector<data::Sample>& windows) const {
    const data::TokenData all = LossMasked();
    const auto& counted = all.counted.at(static_cast<std::size_t>(split));
    std::pair<std::int64_t, double> sum{0, 0};
    for (const data::Sample& window : windows) {
      data::Entry entry;
      data::FillEntry({{&window, 1}, tokens_, split}, kLength, entry);
      for (std::int64_t t = 0; t < window.targets; ++t) {  // none is left out here
        entry.targets.at(static_cast<std::size_t>(t)) =
            tokens_.View(split, window.start + t + 1, 1, false).Id(0);
      }
      std::vector<double> losses(static_cast<std::size_t>(kLength));
      static_cast<void>(run.Net().Tasks().Loss({&entry, 1}, losses.data()));
      for (std::int64_t t = 0; t < window.targets; ++t) {
        if (counted.at(static_cast<std::size_t>(window.start + t + 1)) == 0) continue;
        sum.second += losses.at(static_cast<std::size_t>(t));
        ++sum.first;
      }
    }
    return sum;
  }
};

RunSettings Plain() {
  RunSettings settings = SmallSettings(Dtype::kFloat64, 3);
  model::Options& options = settings.model.options;
  options.dropout = options.attention_dropout = options.ffn_dropout = 0;
  settings.model.label_smoothing = 0;
  return settings;
}

TEST_F(LossMask, TheLossIsTheMeanOverTheTargetsThatCount) {
  TrainingRun run(self_, tokens_, Plain());
  for (std::int64_t step = 0; step < kLossMaskMaskSteps; ++step) {
    const data::Sampler& samples = run.Step().Samples();
    const auto [targets, sum] = Counted(run, data::Split::kTrain, samples.Share(step, 0, 1));
    run.Train(step + 1);
    EXPECT_EQ(run.Last().targets, targets);
    EXPECT_EQ(run.Last().tokens, samples.BatchTargets(step));
    EXPECT_LT(targets, run.Last().tokens);
    EXPECT_NEAR(run.Last().loss, sum / static_cast<double>(targets),
                kLossMaskFp64 * run.Last().loss);
  }
}

TEST_F(LossMask, AnEvaluationCountsTheSameTargetsInAnyLayout) {
  TrainingRun serial(self_, tokens_, Plain());
  std::vector<data::Sample> windows;
  for (std::int64_t start = 0; start + 1 < tokens_.Size(data::Split::kValid); start += kLength) {
    windows.push_back(
        {.ordinal = 0,
         .start = start,
         .targets = std::min(kLength, tokens_.Size(data::Split::kValid) - 1 - start)});
  }
  const auto [targets, sum] = Counted(serial, data::Split::kValid, windows);
  ASSERT_GT(targets, 0);
  for (const comm::GridShape& grid :
       {comm::GridShape{1, 4, 1, 1}, {1, 2, 2, 1}, {1, 1, 4, 1}, {2, 1, 2, 1}, {2, 2, 1, 1}}) {
    RunSettings settings = Plain();
    settings.grid = grid;
    TrainingRun run(world_, tokens_, settings);
    const train::Evaluation got = train::Evaluate(run.Net(), tokens_, data::Split::kValid);
    EXPECT_EQ(got.targets, targets) << comm::Describe(grid);
    EXPECT_NEAR(got.loss, sum / static_cast<double>(targets), kLossMaskFp64 * got.loss)
        << comm::Describe(grid);
  }
}

std::string LossMaskDeckOf(const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\n[model]\nheads=4\nkv_heads=2\n"
      "head_dim=3\ndim=12\nlayers=4\nffn=17\nmax_positions=7\n"
      "dropout=0.1\nattention_dropout=0.1\nffn_dropout=0.1\ninit_deviation=0.2\n"
      "[optimizer]\nlearning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing=0.05\n"
      "[schedule]\nsteps=20\nwarmup_steps=3\n[grid]\nbucket_mib=0.001\n{}",
      layout);
}

constexpr std::array kLossMaskLayouts = {
    "data=4\n[data]\nmicro_batch=1\n",
    "data=2\ntensor=2\n",
    "context=4\n",
    "data=2\ncontext=2\nsharding=gradients\n[data]\nmicro_batch=2\n",
    "pipeline=2\n[data]\nmicro_batch=2\n",
    "pipeline=2\ndata=1\ncontext=2\n[pipeline]\nschedule=zero_bubble\n[data]\nmicro_batch=2\n",
    "data=4\nsharding=parameters\n[data]\nmicro_batch=2\n",
    "data=2\ntensor=2\nsequence_parallel=yes\nsharding=optimizer\n",
};

TEST_F(LossMask, EveryLayoutComputesTheSerialRunsNumbers) {
  const Outcome wanted =
      RunDeck(self_, tokens_, SettingsOf(LossMaskDeckOf(""), tokens_, 1, Dtype::kFloat64),
              kLossMaskMaskSteps);
  for (const char* layout : kLossMaskLayouts) {
    const RunSettings settings =
        SettingsOf(LossMaskDeckOf(layout), tokens_, world_.Size(), Dtype::kFloat64);
    const Outcome got = RunDeck(world_, tokens_, settings, kLossMaskMaskSteps);
    EXPECT_LT(WorstRelative(got.losses, wanted.losses), kLossMaskFp64) << layout;
    EXPECT_LT(WorstRelative({got.norm}, {wanted.norm}), kLossMaskFp64) << layout;
    EXPECT_LT(RuleFourDifference(got.gradients, wanted.gradients).relative, kLossMaskFp64)
        << layout;
    EXPECT_LT(RuleFourDifference(got.weights, wanted.weights).relative, kLossMaskFp64) << layout;
  }
}

// run.canonical: the same bits.
TEST_F(LossMask, CanonicalRunsKeepTheirBits) {
  const std::string canonical = "[run]\ncanonical=4x1\ncanonical_leaf=2\n";
  const Outcome wanted =
      RunDeck(self_, tokens_, SettingsOf(LossMaskDeckOf(canonical), tokens_, 1, Dtype::kFloat32),
              kLossMaskMaskSteps);
  for (const char* layout : {"data=4\n", "data=2\npipeline=2\n"}) {
    const RunSettings settings =
        SettingsOf(LossMaskDeckOf(layout + canonical), tokens_, world_.Size(), Dtype::kFloat32);
    const Outcome got = RunDeck(world_, tokens_, settings, kLossMaskMaskSteps);
    EXPECT_EQ(got.losses, wanted.losses) << layout;
    EXPECT_EQ(got.weights, wanted.weights) << layout;
  }
}

// A mask without a single target in the training split.
class NoTarget : public LayoutTest {
 protected:
  static data::TokenData Nothing() {
    data::TokenData data = SyntheticTokens();
    data.counted[0].assign(data.tokens[0].size(), 0);
    data.counted[1].assign(data.tokens[1].size(), 0);
    return data;
  }
  NoTarget() : LayoutTest(Nothing()) {}
};

TEST_F(NoTarget, TheUpdateIsLeftOutByAllRanks) {
  RunSettings settings = SmallSettings(Dtype::kFloat32, 2);
  settings.grid = comm::GridShape{1, 2, 2, 1};
  TrainingRun run(world_, tokens_, settings);
  const Tensors before = run.Weights();
  const train::StepResult result = run.Step().Run(0, {}, train::OnFault::kSkip);
  ASSERT_TRUE(result.fault.has_value());
  EXPECT_EQ(result.fault->Text("node07"), "no target of this batch counts");
  EXPECT_THAT(result.fault->Advice(), testing::HasSubstr("/train/mask"));
  EXPECT_EQ(result.targets, 0);
  EXPECT_GT(result.tokens, 0);
  EXPECT_TRUE(std::isnan(result.loss));
  EXPECT_EQ(run.Weights(), before);
  try {
    run.Step().Run(1);
    ADD_FAILURE() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), testing::HasSubstr("step 2: no target of this batch counts"));
  }
}

TEST_F(NoTarget, AnEvaluationIsRefusedByName) {
  RunSettings settings = SmallSettings(Dtype::kFloat32, 2);
  TrainingRun run(world_, tokens_, settings);
  try {
    train::Evaluate(run.Net(), tokens_, data::Split::kValid);
    ADD_FAILURE() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), testing::HasSubstr("no target of /valid/tokens counts"));
  }
  EXPECT_GT(train::Evaluate(run.Net(), tokens_, data::Split::kTest).targets, 0);
}

// A mask with a single target in the valid split, in its last window.
class OneTarget : public LayoutTest {
 protected:
  static data::TokenData Single() {
    data::TokenData data = SyntheticTokens();
    data.counted[1].assign(data.tokens[1].size(), 0);
    data.counted[1].back() = 1;
    return data;
  }
  OneTarget() : LayoutTest(Single()) {}
};

TEST_F(OneTarget, ASampleGrowsUntilItHasOne) {
  RunSettings settings = SmallSettings(Dtype::kFloat64, 2);
  settings.grid = comm::GridShape{1, 2, 2, 1};
  TrainingRun run(world_, tokens_, settings);
  const train::Evaluation all = train::Evaluate(run.Net(), tokens_, data::Split::kValid);
  ASSERT_EQ(all.targets, 1);
  std::int64_t most = 0;
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    train::EvaluationOptions options;
    options.windows = 1;
    options.seed = seed;
    const train::Evaluation sample =
        train::Evaluate(run.Net(), tokens_, data::Split::kValid, options);
    EXPECT_EQ(sample.targets, 1);
    EXPECT_EQ(sample.loss, all.loss);
    most = std::max(most, sample.windows);
  }
  EXPECT_GT(most, 1);
}

// Evaluations with overlapping windows, of samples of windows and of given windows: each target
// once, with the context that was promised, and the serial run's numbers in every layout.

constexpr int kEvaluationRanks = 4;
constexpr double kEvaluationFp64 = 1e-11;  // relative
constexpr data::Split kSplit = data::Split::kValid;

constexpr std::array kGrids = {comm::GridShape{1, 4, 1, 1}, comm::GridShape{1, 1, 4, 1},
                               comm::GridShape{2, 1, 2, 1}, comm::GridShape{2, 2, 1, 1}};

data::TokenData Masked() {
  data::TokenData data = SyntheticTokens();
  AddLossMask(data);
  data.documents[1] = {0, 5, 6, 20, 41};
  return data;
}

class EvaluationLayouts : public LayoutTest {
 protected:
  EvaluationLayouts() : LayoutTest(Masked()) {}
  void SetUp() override { ASSERT_EQ(world_.Size(), kEvaluationRanks); }

  static RunSettings Settings(const comm::GridShape& grid, bool sharded = false,
                              bool document_mask = false) {
    RunSettings settings = SmallSettings(Dtype::kFloat64, 3);
    model::Options& options = settings.model.options;
    options.dropout = options.attention_dropout = options.ffn_dropout = 0;
    settings.model.label_smoothing = 0;
    settings.model.document_mask = document_mask;
    settings.grid = grid;
    if (sharded) settings.options.sharding = comm::Sharding::kParameters;
    return settings;
  }
  static RunSettings Serial(bool document_mask = false) {
    return Settings({1, 1, 1, 1}, false, document_mask);
  }

  // Losses by offset of the target, of all ranks; each must be visited once.
  struct Outcome {
    train::Evaluation result;
    std::map<std::int64_t, double> losses;
  };
  static Outcome Collect(
      const comm::Communicator& group, std::int64_t tokens,
      const std::function<train::Evaluation(const std::function<void(std::int64_t, double)>&)>&
          evaluate) {
    std::vector<double> losses(static_cast<std::size_t>(tokens)), visits(losses.size());
    Outcome outcome;
    outcome.result = evaluate([&](std::int64_t token, double loss) {
      losses.at(static_cast<std::size_t>(token)) += loss;
      visits.at(static_cast<std::size_t>(token)) += 1;
    });
    group.Sum(losses);
    group.Sum(visits);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_LE(visits[i], 1) << "target " << i << " counts more than once";
      if (visits[i] > 0) outcome.losses[static_cast<std::int64_t>(i)] = losses[i];
    }
    return outcome;
  }
  Outcome Evaluated(const comm::Communicator& group, TrainingRun& run,
                    train::EvaluationOptions options) const {
    return Collect(group, tokens_.Size(kSplit), [&](const auto& visit) {
      options.visit = visit;
      return train::Evaluate(run.Net(), tokens_, kSplit, options);
    });
  }

  // Loss of a target by the serial model, in a window of its own that begins at `start`.
  double LossIn(TrainingRun& run, std::int64_t start, std::int64_t target) const {
    const data::Sample window{.ordinal = 0,
                              .start = start,
                              .targets = std::min(kLength, tokens_.Size(kSplit) - 1 - start),
                              .source = 0};
    data::Entry entry;
    data::FillEntry({{&window, 1}, tokens_, kSplit}, kLength, entry, {},
                    run.Net().Plan().document_mask);
    std::vector<double> losses(static_cast<std::size_t>(kLength));
    static_cast<void>(run.Net().Tasks().Loss({&entry, 1}, losses.data()));
    return losses.at(static_cast<std::size_t>(target - start - 1));
  }

  static void ExpectSame(const Outcome& got, const Outcome& wanted, const std::string& where) {
    EXPECT_EQ(got.result.targets, wanted.result.targets) << where;
    EXPECT_EQ(got.result.windows, wanted.result.windows) << where;
    EXPECT_NEAR(got.result.loss, wanted.result.loss, kEvaluationFp64 * wanted.result.loss) << where;
    ASSERT_EQ(got.losses.size(), wanted.losses.size()) << where;
    for (const auto& [target, loss] : wanted.losses) {
      ASSERT_TRUE(got.losses.contains(target)) << where << ", target " << target;
      EXPECT_NEAR(got.losses.at(target), loss, kEvaluationFp64 * std::max(1.0, loss)) << where;
    }
  }
};

TEST_F(EvaluationLayouts, OverlappingWindowsCountEachTargetOnceWithItsContext) {
  for (const bool documents : {false, true}) {
    TrainingRun serial(self_, tokens_, Serial(documents));
    const auto plain = Evaluated(self_, serial, {});
    for (const std::int64_t stride : {1, 3, 5, 7}) {
      const Outcome wanted = Evaluated(self_, serial, {.stride = stride});
      ASSERT_EQ(wanted.losses.size(), plain.losses.size());
      EXPECT_EQ(wanted.result.targets, std::ssize(wanted.losses));
      ExactSum sum;
      for (const auto& [target, loss] : wanted.losses) {
        sum.Add(loss);
        // The first window that holds it.
        const std::int64_t late = std::max<std::int64_t>(0, target - kLength);
        const std::int64_t start = (late + stride - 1) / stride * stride;
        EXPECT_TRUE(start == 0 || target - start >= kLength - stride) << target;
        EXPECT_NEAR(loss, LossIn(serial, start, target), kEvaluationFp64 * loss) << target;
      }
      EXPECT_EQ(sum.Value(), wanted.result.nats);
      for (const comm::GridShape& grid : kGrids) {
        TrainingRun run(world_, tokens_, Settings(grid, false, documents));
        ExpectSame(Evaluated(world_, run, {.stride = stride}), wanted, comm::Describe(grid));
      }
    }
  }
}

TEST_F(EvaluationLayouts, StrideOfALengthIsTheDefaultToTheBit) {
  TrainingRun run(self_, tokens_, Serial());
  const auto plain = train::Evaluate(run.Net(), tokens_, kSplit);
  EXPECT_EQ(plain.loss, train::Evaluate(run.Net(), tokens_, kSplit, {.stride = kLength}).loss);
  EXPECT_NE(plain.loss, train::Evaluate(run.Net(), tokens_, kSplit, {.stride = 3}).loss);
  EXPECT_EQ(plain.loss, plain.nats / static_cast<double>(plain.targets));
  EXPECT_EQ(plain.windows, plain.all_windows);
}

TEST_F(EvaluationLayouts, ASampleOfWindowsIsTheSameInEveryLayout) {
  TrainingRun serial(self_, tokens_, Serial());
  const Outcome all = Evaluated(self_, serial, {});
  const Outcome wanted = Evaluated(self_, serial, {.windows = 3, .seed = 5});
  EXPECT_EQ(wanted.result.windows, 3);
  EXPECT_EQ(wanted.result.all_windows, all.result.windows);
  EXPECT_LT(wanted.losses.size(), all.losses.size());
  for (const auto& [target, loss] : wanted.losses) EXPECT_EQ(loss, all.losses.at(target));
  for (const bool sharded : {false, true}) {
    for (const comm::GridShape& grid : kGrids) {
      if (sharded && grid.data == 1) continue;
      TrainingRun run(world_, tokens_, Settings(grid, sharded));
      ExpectSame(Evaluated(world_, run, {.windows = 3, .seed = 5}), wanted, comm::Describe(grid));
    }
  }
  // Again the same; another seed, another sample; more than there are, all.
  EXPECT_EQ(Evaluated(self_, serial, {.windows = 3, .seed = 5}).losses, wanted.losses);
  EXPECT_NE(Evaluated(self_, serial, {.windows = 3, .seed = 6}).losses, wanted.losses);
  EXPECT_EQ(Evaluated(self_, serial, {.windows = 100, .seed = 5}).losses, all.losses);
}

TEST_F(EvaluationLayouts, GivenWindowsMayLieAnywhere) {
  const std::vector<data::Sample> windows = {
      {.ordinal = 0, .start = 2, .targets = 5, .source = 0},
      {.ordinal = 1, .start = 30, .targets = 7, .source = 0},
      {.ordinal = 2, .start = 10, .targets = 1, .source = 0}};
  const auto of = [&](const comm::Communicator& group, TrainingRun& run) {
    return Collect(group, tokens_.Size(kSplit), [&](const auto& visit) {
      return train::EvaluateWindows(run.Net(), tokens_, kSplit, windows, {.visit = visit});
    });
  };
  TrainingRun serial(self_, tokens_, Serial());
  const Outcome wanted = of(self_, serial);
  EXPECT_GT(wanted.losses.size(), 5U);
  for (const auto& [target, loss] : wanted.losses) {
    const std::int64_t start = target > 30 ? 30 : target > 10 ? 10 : 2;
    EXPECT_NEAR(loss, LossIn(serial, start, target), kEvaluationFp64 * loss);
  }
  for (const comm::GridShape& grid : kGrids) {
    TrainingRun run(world_, tokens_, Settings(grid));
    ExpectSame(of(world_, run), wanted, comm::Describe(grid));
  }
}

// Document masks in whole steps: the numbers of the same documents as windows of their own, in
// every layout, with and without a mask of the loss.

constexpr int kDocumentMaskRanks = 4;
constexpr double kDocumentMaskFp64 =
    1e-11;  // relative: losses, norm; gradients and weights in rule 4's norm
constexpr std::int64_t kMaskSteps = 6;  // more than an epoch, with its short batch

data::TokenData WithDocuments(bool loss_mask) {
  data::TokenData data = SyntheticTokens();
  AddDocuments(data);
  if (loss_mask) AddLossMask(data);
  return data;
}

struct DocumentMaskArchitecture {
  const char* name;
  const char* keys;
};
constexpr std::array kDocumentMaskArchitectures = {
    DocumentMaskArchitecture{"gpt", "position=learned\nnorm_position=pre\nactivation=gelu\n"},
    DocumentMaskArchitecture{"jsc", "position=sinusoidal\nnorm_position=post\ntie_embeddings=no\n"},
    DocumentMaskArchitecture{"llama", "position=rope\nnorm=rmsnorm\nactivation=swiglu\nbias=no\n"}};

std::string DocumentMaskDeckOf(const DocumentMaskArchitecture& architecture,
                               const std::string& layout, double dropout = 0.1) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\ndocument_mask=yes\n"
      "[model]\n{}heads=4\nkv_heads=2\n"
      "head_dim=4\ndim=12\nlayers=4\nffn=17\nmax_positions=7\ninit_deviation=0.2\n"
      "dropout={}\nattention_dropout={}\nffn_dropout={}\n"
      "[optimizer]\nlearning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing=0.05\n"
      "[schedule]\nsteps=20\nwarmup_steps=3\n[grid]\nbucket_mib=0.001\n{}",
      architecture.keys, dropout, dropout, dropout, layout);
}

// Parameter: also a mask of the loss.
class DocumentMask : public LayoutTest, public testing::WithParamInterface<bool> {
 protected:
  DocumentMask() : LayoutTest(WithDocuments(GetParam())) {}
  void SetUp() override { ASSERT_EQ(world_.Size(), kDocumentMaskRanks); }

  // Parts of documents in the windows, each a window of its own with the targets that count.
  std::vector<data::Entry> Apart(const std::vector<data::Sample>& windows) const {
    const data::TokenData data = WithDocuments(GetParam());
    std::vector<bool> begins(data.tokens[0].size() + 1);
    for (const std::int64_t at : data.documents[0]) begins[static_cast<std::size_t>(at)] = true;
    std::vector<data::Entry> entries;
    for (const data::Sample& window : windows) {
      for (std::int64_t t = 0; t < window.targets; ++t) {
        const auto at = static_cast<std::size_t>(window.start + t);
        if (t == 0 || begins[at]) entries.emplace_back().ordinals = {0};
        data::Entry& entry = entries.back();
        entry.sequences = 1;
        const bool counts = !begins[at + 1] && (!GetParam() || data.counted[0][at + 1] != 0);
        entry.inputs.push_back(data.tokens[0][at]);
        entry.targets.push_back(counts ? data.tokens[0][at + 1] : data::kMasked);
        entry.valid += counts ? 1 : 0;
        entry.positions = {{0, ++entry.length}, {entry.length, entry.length}};
      }
    }
    return entries;
  }
};

TEST_P(DocumentMask, AStepIsThatOfSeparateDocuments) {
  for (const DocumentMaskArchitecture& architecture : kDocumentMaskArchitectures) {
    const RunSettings settings =
        SettingsOf(DocumentMaskDeckOf(architecture, "", 0), tokens_, 1, Dtype::kFloat64);
    TrainingRun run(self_, tokens_, settings);
    const std::vector<data::Entry> apart = Apart(run.Step().Samples().Share(0, 0, 1));
    std::int64_t targets = 0;
    for (const data::Entry& entry : apart) targets += entry.valid;
    // As many entries as there are parts, without masks of documents.
    RunSettings plain = settings;
    plain.model.document_mask = false;
    plain.samples.stride = 1;  // many windows: as large a batch
    plain.samples.batch = std::ssize(apart);
    plain.model.micro_batch = 1;
    TrainingRun separate(self_, tokens_, plain);
    train::TrainingState& state = separate.All();
    state.QueueGradients(state.Net().Tasks().Batches().Take(apart));
    const double loss = state.Net().Tasks().FinishLoss().Value() / static_cast<double>(targets);
    state.QueueSums(0);
    const double norm = state.GradientNorm(targets);
    run.Train(1);
    EXPECT_EQ(run.Last().targets, targets) << architecture.name;
    EXPECT_NEAR(run.Last().loss, loss, kDocumentMaskFp64 * loss) << architecture.name;
    EXPECT_NEAR(run.Last().gradient_norm, norm, kDocumentMaskFp64 * norm) << architecture.name;
    EXPECT_LT(RuleFourDifference(run.Gradients(), separate.Gradients()).relative, kDocumentMaskFp64)
        << architecture.name;
  }
}

constexpr std::array kDocumentMaskLayouts = {
    "data=4\n[data]\nmicro_batch=1\n",
    "data=2\ntensor=2\n",
    "context=4\n",
    "data=2\ncontext=2\nsharding=gradients\n[data]\nmicro_batch=2\n",
    "pipeline=2\n[data]\nmicro_batch=2\n",
    "pipeline=2\ndata=1\ncontext=2\n[pipeline]\nschedule=zero_bubble\n[data]\nmicro_batch=2\n",
    "data=2\ntensor=2\nsequence_parallel=yes\nsharding=parameters\n[model]\nrecompute=full\n",
};

TEST_P(DocumentMask, EveryLayoutComputesTheSerialRunsNumbers) {
  for (const DocumentMaskArchitecture& architecture : kDocumentMaskArchitectures) {
    const RunSettings alone =
        SettingsOf(DocumentMaskDeckOf(architecture, ""), tokens_, 1, Dtype::kFloat64);
    TrainingRun serial(self_, tokens_, alone);
    const std::vector<double> losses = serial.Train(kMaskSteps);
    const double valid = train::Evaluate(serial.Net(), tokens_, data::Split::kValid).loss;
    for (const char* layout : kDocumentMaskLayouts) {
      const std::string what = fmt::format("{}, {}", architecture.name, layout);
      TrainingRun run(world_, tokens_,
                      SettingsOf(DocumentMaskDeckOf(architecture, layout), tokens_,
                                 kDocumentMaskRanks, Dtype::kFloat64));
      EXPECT_LT(WorstRelative(run.Train(kMaskSteps), losses), kDocumentMaskFp64) << what;
      EXPECT_LT(RuleFourDifference(run.Weights(), serial.Weights()).relative, kDocumentMaskFp64)
          << what;
      EXPECT_EQ(run.Last().targets, serial.Last().targets) << what;
      EXPECT_EQ(run.Last().visible_keys, serial.Last().visible_keys) << what;
      EXPECT_LT(
          WorstRelative({train::Evaluate(run.Net(), tokens_, data::Split::kValid).loss}, {valid}),
          kDocumentMaskFp64)
          << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LossMask, DocumentMask, testing::Bool(),
                         [](const auto& info) { return info.param ? "Too" : "None"; });

TEST(DocumentMaskPlan, NeedsTheDocumentsOfTheTokens) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  const data::TokenFile tokens(self, SyntheticTokens());
  try {
    PlanOf(DocumentMaskDeckOf(kDocumentMaskArchitectures[0], ""), tokens, 1, Dtype::kFloat32);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(
        error.what(),
        testing::HasSubstr("data.document_mask = yes: tokens in memory have no /train/documents"));
  }
}

TEST(DocumentMaskEvaluation, NeedsTheDocumentsOfTheSplit) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  data::TokenData data = WithDocuments(false);
  data.documents[1].clear();
  const data::TokenFile tokens(self, data);
  TrainingRun run(self, tokens,
                  SettingsOf(DocumentMaskDeckOf(kDocumentMaskArchitectures[0], ""), tokens, 1,
                             Dtype::kFloat32));
  EXPECT_GT(train::Evaluate(run.Net(), tokens, data::Split::kTest).targets, 0);
  try {
    train::Evaluate(run.Net(), tokens, data::Split::kValid);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), testing::HasSubstr("there is no /valid/documents"));
  }
}

}  // namespace
}  // namespace trireme::test
