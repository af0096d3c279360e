// Masks of the loss: a step's loss is the mean over the targets that count, of all ranks; and every
// layout computes the serial run's numbers though its ranks hold very uneven counts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "layout_fixture.hpp"
#include "masked_tokens.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

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
      data::FillEntry(tokens_, split, {&window, 1}, kLength, entry);
      for (std::int64_t t = 0; t < window.targets; ++t) {  // none is left out here
        entry.targets.at(static_cast<std::size_t>(t)) = tokens_.Token(split, window.start + t + 1);
      }
      std::vector<double> losses(static_cast<std::size_t>(kLength));
      static_cast<void>(run.Net().Loss({&entry, 1}, losses.data()));
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

}  // namespace
}  // namespace trireme::test
