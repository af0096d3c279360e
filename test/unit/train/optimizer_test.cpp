// The optimizer, its schedule, and the window of losses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference.hpp"
#include "trireme/base/error.hpp"
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

// v = 0.5 v + g: the second step moves by 1.5 g.
TEST_F(OptimizerTest, SgdSumsUpItsMomentum) {
  train::OptimizerOptions options{
      .kind = train::OptimizerKind::kSgd, .momentum = 0.5, .weight_decay = 0, .clip_norm = 0};
  train::Optimizer optimizer(options, registry_, {});
  optimizer.Step(1, 0.1, Norm(optimizer), kCount);
  EXPECT_NEAR(Value(matrix_, 1), 1 - 0.1 * 2, 1e-14);
  optimizer.Step(2, 0.01, Norm(optimizer), kCount, true);
  EXPECT_NEAR(Value(matrix_, 1), 1 - 0.1 * 2 - 0.01 * 1.5 * 2, 1e-14);
  EXPECT_EQ(optimizer.GradientSquares(), 0);
  EXPECT_EQ(optimizer.Blocks(0, 1, 1).front().name, "first_moment.matrix");
}

// Two steps, the second with the opposite gradient: the signs of 0.1 g, then of 0.9 m - 0.1 g.
TEST_F(OptimizerTest, LionMovesByTheSignOfItsMomentum) {
  train::OptimizerOptions options{.kind = train::OptimizerKind::kLion,
                                  .beta1 = 0.9,
                                  .beta2 = 0.5,
                                  .weight_decay = 0.5,
                                  .clip_norm = 0};
  train::Optimizer optimizer(options, registry_, {});
  optimizer.Step(1, 0.01, Norm(optimizer), kCount);
  EXPECT_NEAR(Value(matrix_, 3), 1 - 0.01 * 0.5 - 0.01, 1e-14);
  EXPECT_NEAR(Value(norm_, 2), 1 - 0.01, 1e-14);
  for (const int id : {matrix_, norm_}) {
    for (std::int64_t i = 0; i < registry_.Gradient(id).Size(); ++i) {
      registry_.Gradient(id).As<double>()[i] *= -1;
    }
  }
  optimizer.Step(2, 0.01, Norm(optimizer), kCount);  // 0.9 * 0.5 g - 0.1 g > 0
  EXPECT_NEAR(Value(norm_, 2), 1 - 0.02, 1e-14);
  // first = 0.5 (0.5 g) - 0.5 g = -0.25 g, with g = 3
  EXPECT_NEAR(static_cast<double*>(optimizer.Blocks(0, 1, 1)[1].data)[2], -0.75, 1e-14);
}

TEST_F(OptimizerTest, GroupsHaveRatesAndDecaysOfTheirOwn) {
  for (const auto kind :
       {train::OptimizerKind::kSgd, train::OptimizerKind::kLion, train::OptimizerKind::kAdamW}) {
    train::OptimizerOptions options{.kind = kind, .weight_decay = 0.5, .clip_norm = 0};
    options.groups[static_cast<std::size_t>(train::ParameterGroup::kNorms)] = {.rate = 0,
                                                                               .decay = 7};
    options.groups[static_cast<std::size_t>(train::ParameterGroup::kEmbedding)] = {.rate = 3,
                                                                                   .decay = 0.25};
    const double before = Value(matrix_, 0), norm = Value(norm_, 0);
    train::Optimizer optimizer(options, registry_, {});
    optimizer.Step(1, 0.01, Norm(optimizer), kCount);
    EXPECT_NEAR(Value(matrix_, 0), before - 0.03 * (1 + 0.25 * before), 1e-9);
    EXPECT_EQ(Value(norm_, 0), norm);
  }
}

// The average follows the weights up to step 2, then it is their mean, and from the fourth share on
// an exponential mean; values and average change places, and back.
TEST_F(OptimizerTest, AveragesItsWeights) {
  constexpr double kDecay = 0.75;
  const train::OptimizerOptions options{.kind = train::OptimizerKind::kSgd,
                                        .weight_decay = 0.1,
                                        .average = kDecay,
                                        .average_from = 2,
                                        .clip_norm = 0};
  train::Optimizer optimizer(options, registry_, {});
  const auto average = [&](std::size_t id, std::int64_t i) {
    return static_cast<double*>(optimizer.Blocks(0, 1, 1)[id].data)[i];
  };
  EXPECT_EQ(average(0, 5), 1) << "before the first step";
  std::vector<double> weights;
  double wanted = 0;
  for (int step = 1; step <= 9; ++step) {
    optimizer.Step(step, 0.1 / step, Norm(optimizer), kCount);
    weights.push_back(Value(matrix_, 4));
    if (step <= 3) {
      wanted = weights.back();
    } else if (step <= 6) {  // a mean of the weights of steps 3 to 6
      wanted = 0;
      for (int s = 3; s <= step; ++s) wanted += weights[static_cast<std::size_t>(s - 1)];
      wanted /= step - 2;
    } else {
      wanted = kDecay * wanted + (1 - kDecay) * weights.back();
    }
    EXPECT_NEAR(average(0, 4), wanted, 1e-14) << step;
  }
  ASSERT_EQ(optimizer.Blocks(0, 1, 1).size(), 2U);
  EXPECT_EQ(optimizer.Blocks(0, 1, 1)[1].name, "average.norm");
  const double value = Value(norm_, 2), mean = average(1, 2);
  EXPECT_NE(value, mean);
  optimizer.ExchangeAverage();
  EXPECT_EQ(Value(norm_, 2), mean);
  EXPECT_EQ(average(1, 2), value);
  optimizer.ExchangeAverage();
  EXPECT_EQ(Value(norm_, 2), value);
  EXPECT_EQ(average(1, 2), mean);
  optimizer.FollowWeights();
  EXPECT_EQ(average(1, 2), value);
}

// Storage longer than what is exchanged at a time; an average over many steps in fp32 is that in
// fp64, and does not shrink.
TEST(OptimizerAverage, LongRunsInSinglePrecision) {
  constexpr std::int64_t kSize = 300'000;
  constexpr int kSteps = 40'000;
  kernels::ParameterList list;
  const int large = list.Add({.name = "large", .shape = {kSize}, .initialiser = {}});
  kernels::Registry registry(list, Dtype::kFloat32);
  float* const values = registry.Value(large).As<float>();
  for (std::int64_t i = 0; i < kSize; ++i) values[i] = static_cast<float>(i);
  constexpr double kDecay = 0.9999;
  const train::OptimizerOptions options{.kind = train::OptimizerKind::kSgd, .average = kDecay};
  train::Optimizer exchanged(options, registry, {});
  std::fill_n(values, kSize, -1.0F);
  exchanged.ExchangeAverage();
  const auto* const average = static_cast<const float*>(exchanged.Blocks(0, 1, 1).front().data);
  for (std::int64_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(values[i], static_cast<float>(i));
    ASSERT_EQ(average[i], -1.0F);
  }

  kernels::ParameterList few;
  constexpr std::int64_t kFew = 8;
  const int small = few.Add({.name = "small", .shape = {kFew}, .initialiser = {}});
  kernels::Registry weights(few, Dtype::kFloat32);
  train::Optimizer optimizer(options, weights, {});
  std::vector<double> mean(kFew);
  std::uint32_t state = 1;
  for (int step = 1; step <= kSteps; ++step) {
    for (std::int64_t i = 0; i < kFew; ++i) {  // between 0.75 and 1.25
      state = state * 1664525 + 1013904223;
      const float value = 0.75F + static_cast<float>(state >> 8) / 0x1p25F;
      weights.Value(small).As<float>()[i] = value;
      double& wanted = mean[static_cast<std::size_t>(i)];
      wanted += std::max(1 - kDecay, 1.0 / step) * (static_cast<double>(value) - wanted);
    }
    optimizer.Step(step, 0, 1, 1);
  }
  constexpr double kRoundings = 2e-5;  // with shares that do not add up to 1: 1.6e-4
  const auto* const got = static_cast<const float*>(optimizer.Blocks(0, 1, 1).front().data);
  for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(got[i], mean[i], kRoundings) << i;
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
    explicit Recorder(const train::RuleParts& parts) : Rule(parts, {"velocity."}) {}
    void SetScalars(std::int64_t, std::span<kernels::UpdateScalars>) const override {}
    void Update(const kernels::UpdateScalars*, bool) override {}
  };
  const Recorder rule({{}, {}, registry_, {}, {}});
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

// Gradients of a block's matrix lose the elements that a step drops of the matrix, also where a
// rank owns a part that begins and ends within rows; a norm's and another matrix's stay.
TEST(OptimizerShards, DropsGradientsWhereTheStepDropsWeights) {
  constexpr std::int64_t kRows = 7, kColumns = 13;
  kernels::ParameterList list;
  list.BeginUnit("embedding");
  list.Add({.name = "embedding", .shape = {2, 16}, .initialiser = {}, .decay = true});
  list.BeginUnit("blocks.0", true);
  list.Add({.name = "norm", .shape = {16}, .initialiser = {}});
  list.Add({.name = "first", .shape = {1, 16}, .initialiser = {}, .decay = true});
  list.Add({.name = "second", .shape = {kRows, kColumns}, .initialiser = {}, .decay = true});
  const std::int64_t size = list.Size(), second = list.Parameters()[3].offset;
  ASSERT_EQ(list.Parameters()[3].number, 1);
  const Array kept =
      DropWeight(0.4, 9, 3, 1, Array(kRows, kColumns, std::vector<double>(kRows * kColumns, 3)));
  for (const Part& own : {Part{0, size}, Part{second + 5, second + 8}, Part{second + 5, size},
                          Part{0, second + kColumns + 1}, Part{second + 20, second + 70}}) {
    kernels::Ownership owns;
    owns.pieces = {{.range = {0, size}, .own = own, .value = own.begin, .gradient = own.begin}};
    owns.values = owns.gradients = size;
    owns.moments = own.Size();
    kernels::Registry registry(list, Dtype::kFloat64, owns);
    auto* const gradients = static_cast<double*>(registry.Gradients());
    std::fill_n(gradients, size, 3.0);
    train::Optimizer optimizer({}, registry, {});
    optimizer.DropGradients({.probability = 0.4, .seed = 9, .step = 3});
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t element = i - second;
      if (i < list.Parameters()[2].offset) {
        EXPECT_EQ(gradients[i], 3) << i;
      }
      if (element < 0 || element >= kRows * kColumns) continue;
      const double dropped = kept.values[static_cast<std::size_t>(element)];
      EXPECT_DOUBLE_EQ(gradients[i], i >= own.begin && i < own.end ? dropped : 3) << i;
    }
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

TEST(OptimizerKeys, Groups) {
  deck::Schema schema;
  train::DeclareOptimizerAndSchedule(schema);
  const auto read = [&](const std::string& groups) {
    return train::ReadOptimizer(Parse(schema, {"optimizer.groups=" + groups})).groups;
  };
  const auto groups = read("norms:2, matrices : 0.5 : 0.25");
  EXPECT_EQ(groups[static_cast<std::size_t>(train::ParameterGroup::kNorms)].rate, 2);
  EXPECT_FALSE(groups[static_cast<std::size_t>(train::ParameterGroup::kNorms)].decay);
  EXPECT_EQ(groups[static_cast<std::size_t>(train::ParameterGroup::kMatrices)].rate, 0.5);
  EXPECT_EQ(groups[static_cast<std::size_t>(train::ParameterGroup::kMatrices)].decay, 0.25);
  EXPECT_EQ(groups[static_cast<std::size_t>(train::ParameterGroup::kHead)].rate, 1);
  for (const char* bad : {"norm:1", "norms", "norms:", "norms:-1", "norms:x",
                          "norms:1:", "norms:1:2:3", "norms:1,norms:2", "norms:1,", "norms:inf"}) {
    EXPECT_THROW(read(bad), Error) << bad;
  }
}

TEST(OptimizerKeys, AveragesBeginWithADecay) {
  deck::Schema schema;
  train::DeclareOptimizerAndSchedule(schema);
  const auto options =
      train::ReadOptimizer(Parse(schema, {"optimizer.average=0.5", "optimizer.average_from=7"}));
  EXPECT_EQ(options.average, 0.5);
  EXPECT_EQ(options.average_from, 7);
  EXPECT_THROW(train::ReadOptimizer(Parse(schema, {"optimizer.average_from=7"})), Error);
  for (const char* bad : {"-0.5", "1.5", "nan"}) {
    EXPECT_THROW(Parse(schema, {std::string("optimizer.average=") + bad}), Error) << bad;
  }
}

TEST(OptimizerKeys, BelongToTheirKind) {
  deck::Schema schema;
  train::DeclareOptimizerAndSchedule(schema);
  const auto read = [&](const char* kind, const char* key) {
    return train::ReadOptimizer(Parse(schema, {std::string("optimizer.kind=") + kind, key}));
  };
  EXPECT_EQ(read("sgd", "optimizer.momentum=0.5").momentum, 0.5);
  EXPECT_EQ(read("muon", "optimizer.muon_momentum=0.5").muon_momentum, 0.5);
  EXPECT_EQ(read("muon", "optimizer.muon_iterations=3").muon_iterations, 3);
  EXPECT_THROW(read("adamw", "optimizer.momentum=0.5"), Error);
  EXPECT_THROW(read("sgd", "optimizer.muon_momentum=0.5"), Error);
  EXPECT_THROW(read("adamw", "optimizer.muon_iterations=3"), Error);
  EXPECT_THROW(read("muon", "optimizer.muon_iterations=0"), Error);
}

TEST(Schedule, StopAtKeepsTheRatesOfTheWhole) {
  Schedule whole = Make(Decay::kCosine), part = whole;
  part.stop_at = 40;
  EXPECT_EQ(part.Last(), 40);
  EXPECT_EQ(whole.Last(), 100);
  for (int step = 1; step <= 40; ++step) EXPECT_EQ(part.Rate(step), whole.Rate(step));
}

// Muon against plain loops in fp64, and the orthogonality of its updates.

using Dense = std::vector<std::vector<double>>;  // [rows][columns]

Dense Product(const Dense& a, const Dense& b) {
  Dense c(a.size(), std::vector<double>(b.front().size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < c[i].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Dense Transposed(const Dense& a) {
  Dense t(a.front().size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

// Newton-Schulz iterations from x / |x| (Jordan et al. 2024).
Dense Orthogonal(Dense x, int iterations) {
  double squares = 0;
  for (const auto& row : x) {
    for (const double value : row) squares += value * value;
  }
  for (auto& row : x) {
    for (double& value : row) value /= std::sqrt(squares);
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const Dense once = Product(Product(x, Transposed(x)), x);
    const Dense twice = Product(Product(x, Transposed(x)), once);
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < x[i].size(); ++j) {
        x[i][j] = 3.4445 * x[i][j] - 4.7750 * once[i][j] + 2.0315 * twice[i][j];
      }
    }
  }
  return x;
}

struct MuonCase {
  std::int64_t rows = 0, columns = 0;
  int iterations = 5;
};

// A hidden matrix [rows, columns] and a table of the same shape.
class MuonTest : public testing::TestWithParam<MuonCase> {
 protected:
  MuonTest() {
    const auto [rows, columns, iterations] = GetParam();
    kernels::ParameterList list;
    list.BeginUnit("embedding.token");
    table_ =
        list.Add({.name = "embedding", .shape = {rows, columns}, .initialiser = {}, .decay = true});
    list.BeginUnit("blocks.0", true);
    hidden_ = list.Add(
        {.name = "blocks.0.up", .shape = {rows, columns}, .initialiser = {}, .decay = true});
    registry_ = kernels::Registry(list, Dtype::kFloat64);
  }
  void SetGradients(int step) {
    for (const int id : {hidden_, table_}) {
      for (std::int64_t i = 0; i < registry_.Gradient(id).Size(); ++i) {
        registry_.Gradient(id).As<double>()[i] = GradientAt(step, i);
      }
    }
  }
  static double GradientAt(int step, std::int64_t i) {
    return std::sin(static_cast<double>(7 * i + 3 * step + i * i));
  }
  static Dense Zeros() {
    return Dense(static_cast<std::size_t>(GetParam().rows),
                 std::vector<double>(static_cast<std::size_t>(GetParam().columns)));
  }
  double Value(int id, std::size_t row, std::size_t column) {
    const auto at = static_cast<std::int64_t>(row) * GetParam().columns;
    return registry_.Value(id).As<double>()[at + static_cast<std::int64_t>(column)];
  }

  kernels::Registry registry_;
  int hidden_ = 0, table_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Shapes, MuonTest,
                         testing::Values(MuonCase{3, 5}, MuonCase{6, 4}, MuonCase{4, 4},
                                         MuonCase{3, 5, 2}, MuonCase{6, 4, 1}));

const train::OptimizerOptions kMuon{.kind = train::OptimizerKind::kMuon, .clip_norm = 0};
constexpr double kRate = 0.02;
const double kMu = kMuon.muon_momentum;

TEST_P(MuonTest, StepsAreThoseOfPlainLoops) {
  const auto [rows, columns, iterations] = GetParam();
  train::OptimizerOptions options = kMuon;
  options.muon_iterations = iterations;
  train::Optimizer muon(options, registry_, {});
  Dense momentum = Zeros(), want = momentum;
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  for (int step = 1; step <= 3; ++step) {
    SetGradients(step);
    std::int64_t element = 0;
    Dense ahead = momentum;
    for (std::size_t i = 0; i < momentum.size(); ++i) {
      for (std::size_t j = 0; j < momentum[i].size(); ++j) {
        const double gradient = GradientAt(step, element++) / 2;  // 2 targets
        momentum[i][j] = kMu * momentum[i][j] + (1 - kMu) * gradient;
        ahead[i][j] = kMu * momentum[i][j] + (1 - kMu) * gradient;  // Nesterov's
      }
    }
    const Dense update = Orthogonal(ahead, iterations);
    muon.Step(step, kRate, 1, 2);
    for (std::size_t i = 0; i < want.size(); ++i) {
      for (std::size_t j = 0; j < want[i].size(); ++j) {
        want[i][j] = (1 - kRate * kMuon.weight_decay) * want[i][j] - kRate * scale * update[i][j];
        EXPECT_NEAR(Value(hidden_, i, j), want[i][j], 1e-12) << i << ", " << j;
      }
    }
  }
}

TEST_P(MuonTest, AnUpdateIsNearlyOrthogonal) {
  train::Optimizer muon(kMuon, registry_, {});
  SetGradients(1);
  muon.Step(1, kRate, 1, 2);
  const auto [rows, columns, iterations] = GetParam();
  const double scale = kRate * 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  Dense update = Zeros();
  for (std::size_t i = 0; i < update.size(); ++i) {
    for (std::size_t j = 0; j < update[i].size(); ++j) update[i][j] = Value(hidden_, i, j) / scale;
  }
  if (rows > columns) update = Transposed(update);
  const Dense square = Product(update, Transposed(update));
  for (std::size_t i = 0; i < square.size(); ++i) {
    for (std::size_t j = 0; j < square.size(); ++j) {
      EXPECT_NEAR(square[i][j], i == j ? 1 : 0, 0.5) << i << ", " << j;
    }
  }
}

// A table moves by AdamW, whose first step has the size of the rate.
TEST_P(MuonTest, OtherParametersMoveByAdamW) {
  train::Optimizer muon(kMuon, registry_, {});
  SetGradients(1);
  muon.Step(1, kRate, 1, 2, true);
  EXPECT_NEAR(std::abs(Value(table_, 1, 1)), kRate, 1e-8);
  EXPECT_EQ(muon.GradientSquares(), 0) << "gradients are cleared";
  // Only the table has a second moment, and memory for it.
  const auto blocks = muon.Blocks(0, 1, 1);
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[2].name, "second_moment.embedding");
  EXPECT_NE(static_cast<const double*>(blocks[2].data)[0], 0);
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
