// The optimizer on a registry of two parameters: decay where it belongs, clipping, the mean's
// divisor.
#include "trireme/train/optimizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace trireme::test {
namespace {

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

}  // namespace
}  // namespace trireme::test
