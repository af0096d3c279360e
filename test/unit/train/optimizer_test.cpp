// The optimizer, its schedule, and the window of losses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/json.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::test {
namespace {

using train::Decay;
using train::Schedule;

// The optimizer on a registry of two parameters: decay where it belongs, clipping, the mean's
// divisor.

constexpr std::int64_t kCount = 8;  // valid targets: gradients are sums over these

// Norm of the gradient of the mean loss.
double Norm(const train::Optimizer& optimizer) {
  return std::sqrt(optimizer.GradientSquares()) / static_cast<double>(kCount);
}

class OptimizerTest : public testing::Test {
 protected:
  OptimizerTest() {
    kernels::ParameterList list;
    matrix_ = list.Add({.name = "matrix", .shape = {2, 3}, .initialiser = {}, .decay = true});
    norm_ = list.Add({.name = "norm", .shape = {3}, .initialiser = {}});
    registry_ = kernels::Registry(list, Dtype::kFloat64);
    for (int id : {matrix_, norm_}) {
      for (std::int64_t i = 0; i < registry_.Value(id).Size(); ++i) {
        registry_.Value(id).As<double>()[i] = 1;
        registry_.Gradient(id).As<double>()[i] = static_cast<double>(i + 1) * kCount;
      }
    }
  }
  double Value(int id, std::int64_t i) { return registry_.Value(id).As<double>()[i]; }

  kernels::Registry registry_;
  int matrix_ = 0, norm_ = 0;
};

TEST_F(OptimizerTest, NormIsOfTheMeansGradient) {
  const train::Optimizer optimizer({}, registry_, {});
  // 1, 2, ..., 6 and 1, 2, 3.
  EXPECT_NEAR(Norm(optimizer), std::sqrt(91.0 + 14.0), 1e-12);
}

TEST_F(OptimizerTest, SgdDecaysMatricesOnly) {
  train::OptimizerOptions options{
      .kind = train::OptimizerKind::kSgd, .weight_decay = 0.5, .clip_norm = 0};
  train::Optimizer optimizer(options, registry_, {});
  optimizer.Step(1, 0.1, Norm(optimizer), kCount);
  EXPECT_NEAR(Value(matrix_, 1), 1 - 0.1 * 0.5 - 0.1 * 2, 1e-14);
  EXPECT_NEAR(Value(norm_, 1), 1 - 0.1 * 2, 1e-14);
  EXPECT_TRUE(optimizer.Blocks(0, 1, 1).empty());
}

TEST_F(OptimizerTest, ClipsToTheGlobalNorm) {
  train::OptimizerOptions options{
      .kind = train::OptimizerKind::kSgd, .weight_decay = 0, .clip_norm = 2};
  train::Optimizer optimizer(options, registry_, {});
  const double norm = Norm(optimizer);
  optimizer.Step(1, 1.0, norm, kCount);
  EXPECT_NEAR(Value(matrix_, 2), 1 - 3 * 2 / norm, 1e-14);
}

TEST_F(OptimizerTest, ASmallGradientIsNotClipped) {
  train::OptimizerOptions options{
      .kind = train::OptimizerKind::kSgd, .weight_decay = 0, .clip_norm = 1000};
  train::Optimizer optimizer(options, registry_, {});
  optimizer.Step(1, 1.0, Norm(optimizer), kCount);
  EXPECT_NEAR(Value(matrix_, 2), 1 - 3.0, 1e-14);
}

// The first AdamW step has size learning_rate whatever the gradient: m-hat / sqrt(v-hat) = sign(g).
TEST_F(OptimizerTest, AdamWsFirstStepIsTheRate) {
  train::OptimizerOptions options{.weight_decay = 0.5, .clip_norm = 0};
  train::Optimizer optimizer(options, registry_, {});
  optimizer.Step(1, 0.01, Norm(optimizer), kCount);
  EXPECT_NEAR(Value(matrix_, 4), 1 - 0.01 * 0.5 - 0.01, 1e-9);
  EXPECT_NEAR(Value(norm_, 2), 1 - 0.01, 1e-9);
  const auto blocks = optimizer.Blocks(0, 1, 1);
  ASSERT_EQ(blocks.size(), 4U);
  EXPECT_EQ(blocks[0].name, "first_moment.matrix");
  EXPECT_EQ(blocks[3].name, "second_moment.norm");
  EXPECT_NEAR(static_cast<double*>(blocks[0].data)[1], (1 - options.beta1) * 2, 1e-14);
  EXPECT_NEAR(static_cast<double*>(blocks[3].data)[1], (1 - options.beta2) * 4, 1e-14);
}

// A rule names what it keeps from step to step; its memory is counted.
TEST_F(OptimizerTest, RulesKeepNamedMoments) {
  struct Recorder final : train::Rule {
    explicit Recorder(const kernels::Registry& registry) : Rule(registry, {}, {"velocity."}) {}
    void SetScalars(std::int64_t, std::span<kernels::UpdateScalars>) const override {}
    void Update(const kernels::UpdateScalars*, bool) override {}
  };
  const Recorder rule(registry_);
  ASSERT_EQ(rule.Moments().size(), 1U);
  EXPECT_EQ(rule.Moments()[0].prefix, "velocity.");
  EXPECT_EQ(rule.Bytes(), 256 + 128);  // 32 + 3 elements of fp64, in whole lines
  EXPECT_FALSE(train::NeedsWholeParameters(train::OptimizerKind::kAdamW));
}

TEST_F(OptimizerTest, ClearsGradientsOnlyWhereAsked) {
  for (const train::OptimizerKind kind :
       {train::OptimizerKind::kAdamW, train::OptimizerKind::kSgd}) {
    train::Optimizer optimizer({.kind = kind}, registry_, {});
    optimizer.Step(1, 0.01, Norm(optimizer), kCount);
    EXPECT_GT(optimizer.GradientSquares(), 0);
  }
  train::Optimizer optimizer({}, registry_, {});
  optimizer.Step(2, 0.01, Norm(optimizer), kCount, true);
  EXPECT_EQ(optimizer.GradientSquares(), 0);
}

// Gradients of which a rank owns a part, as with sharded moments: the others are cleared as well.
TEST(OptimizerShards, ClearsWhatOthersUpdate) {
  kernels::ParameterList list;
  const int matrix = list.Add({.name = "matrix", .shape = {4, 5}, .initialiser = {}});
  const int norm = list.Add({.name = "norm", .shape = {40}, .initialiser = {}});
  const std::int64_t size = list.Size(), begin = 7, end = size - 9;
  kernels::Ownership owns;
  owns.pieces = {{.range = {0, size}, .own = {begin, end}, .value = begin, .gradient = begin}};
  owns.values = owns.gradients = size;
  owns.moments = end - begin;
  kernels::Registry registry(list, Dtype::kFloat32, owns);
  for (const int id : {matrix, norm}) {
    const kernels::Matrix gradient = registry.Gradient(id);
    std::fill_n(gradient.As<float>(), gradient.Size(), 3.0F);
  }
  train::Optimizer optimizer({.weight_decay = 0}, registry, {});
  optimizer.Step(1, 0.01, 1, kCount, true);
  const auto* gradients = static_cast<const float*>(registry.Gradients());
  const auto* values = static_cast<const float*>(registry.Values());
  for (std::int64_t i = 0; i < size; ++i) {
    EXPECT_EQ(gradients[i], 0) << "element " << i;
    const bool padding = i >= 20 && i < registry.Parameters()[1].offset;
    EXPECT_EQ(values[i] != 0, i >= begin && i < end && !padding) << "element " << i;
  }
}

// The learning-rate schedule at its corners.

Schedule Make(Decay decay) {
  Schedule schedule;
  schedule.steps = 100;
  schedule.warmup_steps = 10;
  schedule.decay = decay;
  schedule.peak = 2.0;
  schedule.final_fraction = 0.1;
  schedule.decay_fraction = 0.2;
  return schedule;
}

TEST(Schedule, WarmsUpLinearlyFromTheFirstStep) {
  for (const Decay decay : {Decay::kConstant, Decay::kCosine, Decay::kLinear, Decay::kWsd}) {
    const Schedule schedule = Make(decay);
    EXPECT_DOUBLE_EQ(schedule.Rate(1), 0.2);
    EXPECT_DOUBLE_EQ(schedule.Rate(5), 1.0);
    EXPECT_DOUBLE_EQ(schedule.Rate(10), 2.0);
  }
}

TEST(Schedule, EndsAtItsFinalFraction) {
  for (const Decay decay : {Decay::kCosine, Decay::kLinear, Decay::kWsd}) {
    EXPECT_NEAR(Make(decay).Rate(100), 0.2, 1e-15);
  }
  EXPECT_DOUBLE_EQ(Make(Decay::kConstant).Rate(100), 2.0);
}

TEST(Schedule, IsHalfWayInTheMiddle) {
  // Steps 10 to 100: the middle is 55.
  EXPECT_NEAR(Make(Decay::kCosine).Rate(55), 2.0 * 0.55, 1e-12);
  EXPECT_NEAR(Make(Decay::kLinear).Rate(55), 2.0 * 0.55, 1e-12);
  // wsd: constant up to step 80, then linear.
  EXPECT_DOUBLE_EQ(Make(Decay::kWsd).Rate(80), 2.0);
  EXPECT_NEAR(Make(Decay::kWsd).Rate(90), 2.0 * 0.55, 1e-12);
}

TEST(Schedule, MayBeShorterThanItsWarmUp) {
  Schedule schedule = Make(Decay::kCosine);
  schedule.steps = 4;
  EXPECT_DOUBLE_EQ(schedule.Rate(4), 0.8);
}

TEST(Schedule, WithoutWarmUpStartsBelowThePeakOnly) {
  Schedule schedule = Make(Decay::kLinear);
  schedule.warmup_steps = 0;
  EXPECT_LT(schedule.Rate(1), schedule.peak);
  EXPECT_GT(schedule.Rate(1), 0.97 * schedule.peak);
}

deck::Deck Parse(const deck::Schema& schema, const std::vector<std::string>& keys) {
  return deck::Deck::Parse(schema, "", "test.in", keys);
}

// With 320 steps in the deck's epochs.
std::int64_t StepsOf(const deck::Deck& deck) {
  return train::MakeSchedule(train::ReadSchedule(deck), 1, 320).steps;
}

TEST(Schedule, EpochsBecomeSteps) {
  deck::Schema schema;
  train::DeclareOptimizerAndSchedule(schema);
  EXPECT_EQ(StepsOf(Parse(schema, {"schedule.epochs=2.5"})), 320);
  EXPECT_EQ(StepsOf(Parse(schema, {})), 320);
  EXPECT_EQ(StepsOf(Parse(schema, {"schedule.steps=20"})), 20);
}

TEST(Schedule, StepsOnTheCommandLineReplaceTheDecksEpochs) {
  deck::Schema schema;
  train::DeclareOptimizerAndSchedule(schema);
  const auto deck =
      deck::Deck::Parse(schema, "[schedule]\nepochs = 3\n", "a.in", {"schedule.steps=20"});
  EXPECT_EQ(StepsOf(deck), 20);
}

TEST(Schedule, StopAtKeepsTheRatesOfTheWhole) {
  Schedule whole = Make(Decay::kCosine), part = whole;
  part.stop_at = 40;
  EXPECT_EQ(part.Last(), 40);
  EXPECT_EQ(whole.Last(), 100);
  for (int step = 1; step <= 40; ++step) EXPECT_EQ(part.Rate(step), whole.Rate(step));
}

}  // namespace
}  // namespace trireme::test

namespace trireme::train {
namespace {

// LossWindow: which losses are spikes, and the same answers after a stop.

constexpr std::int64_t kWindow = 8;
constexpr double kThreshold = 6;

// Alternates around 3 with a deviation of 0.1.
double Calm(int step) { return step % 2 == 0 ? 2.9 : 3.1; }

LossWindow CalmWindow() {
  LossWindow window(kWindow, kThreshold);
  for (int step = 0; step < kWindow; ++step) EXPECT_FALSE(window.Take(Calm(step)));
  return window;
}

TEST(LossWindow, JudgesNothingBeforeItIsFull) {
  LossWindow window(kWindow, kThreshold);
  for (int step = 0; step < kWindow; ++step) {
    EXPECT_FALSE(window.Take(step == kWindow - 1 ? 1000.0 : 1.0)) << step;
  }
  EXPECT_EQ(window.Losses().size(), kWindow);
}

TEST(LossWindow, CountsInStandardDeviationsAboveTheMean) {
  LossWindow window = CalmWindow();
  EXPECT_FALSE(window.Take(3.0 + 5.99 * 0.1));
  window = CalmWindow();
  const auto spike = window.Take(3.0 + 6.01 * 0.1);
  ASSERT_TRUE(spike);
  EXPECT_NEAR(spike->mean, 3, 1e-14);
  EXPECT_NEAR(spike->deviation, 0.1, 1e-14);
  EXPECT_NEAR(spike->score, 6.01, 1e-11);
  EXPECT_EQ(spike->loss, 3.0 + 6.01 * 0.1);
}

TEST(LossWindow, AFallIsNoSpike) {
  LossWindow window = CalmWindow();
  EXPECT_FALSE(window.Take(-100));
}

TEST(LossWindow, EqualLossesMakeNoSpikeOfARoundingError) {
  LossWindow window(kWindow, kThreshold);
  for (int step = 0; step < kWindow; ++step) window.Take(2);
  EXPECT_FALSE(window.Take(2 + 1e-7));
  EXPECT_FALSE(window.Take(2 * (1 + 5.9e-3)));
  EXPECT_TRUE(window.Take(2 * (1 + 7e-2)));
}

TEST(LossWindow, ASpikeDoesNotHideTheNext) {
  LossWindow window = CalmWindow();
  EXPECT_TRUE(window.Take(1e6));
  EXPECT_NEAR(window.Losses().back(), 3.6, 1e-12);  // at the threshold
  EXPECT_TRUE(window.Take(1e6));
}

TEST(LossWindow, ANewLevelIsSoonNoSpike) {
  LossWindow window = CalmWindow();
  int spikes = 0;
  for (int step = 0; step < 100; ++step) spikes += window.Take(10).has_value() ? 1 : 0;
  EXPECT_GE(spikes, 1);
  EXPECT_LT(spikes, kWindow);
}

TEST(LossWindow, PassesOverWhatIsNotFinite) {
  LossWindow window = CalmWindow();
  const std::vector<double> before = window.Losses();
  EXPECT_FALSE(window.Take(std::nan("")));
  EXPECT_FALSE(window.Take(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(window.Losses(), before);
}

TEST(LossWindow, WithoutAWindowNothingIsASpike) {
  LossWindow window(0, kThreshold);
  for (const double loss : {1.0, 1.0, 1e30}) EXPECT_FALSE(window.Take(loss));
  EXPECT_TRUE(window.Losses().empty());
}

// By way of JSON, as a checkpoint keeps it.
TEST(LossWindow, GoesOnWithTheSameBits) {
  LossWindow whole(kWindow, 2);
  for (int stop = 0; stop < 40; ++stop) {
    const std::string text = nlohmann::json(whole.Losses()).dump();
    LossWindow resumed(kWindow, 2);
    resumed.Restore(nlohmann::json::parse(text).get<std::vector<double>>());
    const double loss = std::sin(stop * 0.7) / 3 + (stop % 11 == 10 ? 3 : 0);
    const auto wanted = whole.Take(loss), got = resumed.Take(loss);
    ASSERT_EQ(got.has_value(), wanted.has_value()) << stop;
    if (wanted) {
      EXPECT_EQ(got->score, wanted->score);
    }
    EXPECT_EQ(resumed.Losses(), whole.Losses());
  }
}

TEST(LossWindow, AShorterWindowKeepsTheLastLosses) {
  LossWindow window(2, kThreshold);
  window.Restore({1, 2, 3, 4});
  EXPECT_EQ(window.Losses(), (std::vector<double>{3, 4}));
}

}  // namespace
}  // namespace trireme::train
