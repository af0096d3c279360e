// The model against the plain reference: losses, logits and every parameter's gradient, for every
// choice of the architecture; and its own derivative, its causality and its independence of the
// batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trial.hpp"

namespace trireme::test {
namespace {

// Rule 4, fp64: a gradient t is equal within this part of max(|t|, rms(all) sqrt(n)).
constexpr double kFp64 = 1e-11;
constexpr double kFp32Loss = 1e-5;      // relative, of the loss
constexpr double kFp32Gradient = 2e-4;  // the same measure as kFp64; ReLU's kink excluded
class ModelAgainstReference : public testing::TestWithParam<Configuration> {};

TEST_P(ModelAgainstReference, RegistersTheReferencesParameters) {
  const Trial trial = MakeTrial(GetParam(), Dtype::kFloat64, 1);
  const auto shapes = ParameterShapes(GetParam().options);
  const auto& parameters = trial.model->Parameters().Parameters();
  ASSERT_EQ(parameters.size(), shapes.size());
  std::int64_t count = 0;
  for (const auto& parameter : parameters) {
    const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const auto& entry) {
      return entry.first == parameter.name;
    });
    ASSERT_NE(found, shapes.end()) << parameter.name;
    EXPECT_EQ(parameter.shape, found->second) << parameter.name;
    EXPECT_EQ(parameter.decay, parameter.shape.size() == 2) << parameter.name;
    count += parameter.end;
  }
  EXPECT_EQ(count, model::ParameterCount(GetParam().options));
}

TEST_P(ModelAgainstReference, EqualsItInFp64) {
  for (int threads : {1, 2}) {
    Trial trial = MakeTrial(GetParam(), Dtype::kFloat64, threads);
    const ReferenceResult right = RunReference(GetParam().options, trial.parameters, trial.batch,
                                               kSeed, GetParam().label_smoothing, true);
    const double loss = trial.model->ForwardBackward(trial.batch, {});
    EXPECT_NEAR(loss, right.loss_sum, kFp64 * std::abs(right.loss_sum));
    const auto [difference, name] = WorstGradient(*trial.model, right.gradients);
    EXPECT_LT(difference, kFp64) << name;
  }
}

TEST_P(ModelAgainstReference, EqualsItInFp32) {
  Trial trial = MakeTrial(GetParam(), Dtype::kFloat32, 2);
  const ReferenceResult right = RunReference(GetParam().options, trial.parameters, trial.batch,
                                             kSeed, GetParam().label_smoothing, true);
  const double loss = trial.model->ForwardBackward(trial.batch, {});
  EXPECT_NEAR(loss, right.loss_sum, kFp32Loss * std::abs(right.loss_sum));
  const auto [difference, name] = WorstGradient(*trial.model, right.gradients);
  EXPECT_LT(difference, kFp32Gradient) << name;
}

TEST_P(ModelAgainstReference, EvaluatesWithoutDropout) {
  Trial trial = MakeTrial(GetParam(), Dtype::kFloat64, 1);
  const ReferenceResult right =
      RunReference(GetParam().options, trial.parameters, trial.batch, kSeed, 0, false);
  std::vector<double> losses(static_cast<std::size_t>(kSequences * kLength));
  const double loss = trial.model->Loss(trial.batch, losses.data());
  EXPECT_NEAR(loss, right.loss_sum, kFp64 * std::abs(right.loss_sum));
  double sum = 0;
  for (double one : losses) sum += one;
  EXPECT_NEAR(sum, loss, kFp64 * std::abs(loss));
  const std::int64_t position = kLength - 3;
  const std::vector<double> logits = trial.model->Logits(trial.batch, position);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(position) * logits.size() + i;
    EXPECT_NEAR(logits[i], right.logits[at], 1e-11 * std::max(1.0, std::abs(right.logits[at])));
  }
}

// The gradient adds up over micro-batches: one sequence at a time equals all at once.
TEST_P(ModelAgainstReference, AccumulatesOverMicroBatches) {
  Trial whole = MakeTrial(GetParam(), Dtype::kFloat64, 1);
  Trial parts = MakeTrial(GetParam(), Dtype::kFloat64, 1);
  const double loss = whole.model->ForwardBackward(whole.batch, {});
  double sum = 0;
  for (std::size_t b = 0; b < kSequences; ++b) {
    data::Entry one;
    one.sequences = 1;
    one.length = kLength;
    const auto begin = static_cast<std::ptrdiff_t>(b) * kLength;
    one.inputs.assign(parts.batch.inputs.begin() + begin,
                      parts.batch.inputs.begin() + begin + kLength);
    one.targets.assign(parts.batch.targets.begin() + begin,
                       parts.batch.targets.begin() + begin + kLength);
    one.ordinals = {parts.batch.ordinals[b]};
    sum += parts.model->ForwardBackward(one, {});
  }
  EXPECT_NEAR(sum, loss, kFp64 * std::abs(loss));
  Parameters right;
  for (const auto& parameter : whole.model->Parameters().Parameters()) {
    right[parameter.name] = GradientOf(*whole.model, parameter);
  }
  const auto [difference, name] = WorstGradient(*parts.model, right);
  EXPECT_LT(difference, kFp64) << name;
}

// A future token changes no bit of an earlier prediction; without the mask, which only tests can
// take away, it does.
TEST_P(ModelAgainstReference, PredictionsNeverSeeTheirTargets) {
  for (const bool causal : {true, false}) {
    Configuration configuration = GetParam();
    model::ModelPlan plan = PlanOf(configuration, Dtype::kFloat32);
    plan.causal = causal;
    WholeModel model(plan);
    SetParameters(model, RandomParameters(configuration.options, 5));
    data::Entry batch = RandomBatch(configuration.options.vocabulary, 1, kLength, 0, 3);
    constexpr std::int64_t kPosition = 3;
    const std::vector<double> before = model.Logits(batch, kPosition);
    for (std::size_t t = kPosition + 1; t < kLength; ++t) {
      batch.inputs[t] =
          (batch.inputs[t] + 5) % static_cast<std::int32_t>(configuration.options.vocabulary);
    }
    EXPECT_EQ(model.Logits(batch, kPosition) == before, causal);
  }
}

// The order in which gradients are reported final: from the end of the storage to its start.
TEST_P(ModelAgainstReference, ReportsGradientsWhenTheyAreFinal) {
  Trial trial = MakeTrial(GetParam(), Dtype::kFloat64, 1);
  Trial twin = MakeTrial(GetParam(), Dtype::kFloat64, 1);
  ExpectReportsWhenFinal(trial, twin);
}

// Directional derivatives by a five-point stencil, one tensor at a time. ReLU's kink is the
// reference's matter: it notices when a step crosses one.
TEST_P(ModelAgainstReference, GradientIsTheDerivativeOfTheLoss) {
  constexpr double kStep = 4e-4, kTolerance = 1e-7;
  const Configuration& configuration = GetParam();
  if (configuration.options.activation == model::Activation::kRelu) return;
  Trial trial = MakeTrial(configuration, Dtype::kFloat64, 1);
  trial.model->ForwardBackward(trial.batch, {});
  for (const kernels::Parameter& parameter : trial.model->Parameters().Parameters()) {
    const std::vector<double> gradient = GradientOf(*trial.model, parameter);
    // Along the gradient itself the derivative is its norm, far from cancellation.
    const double norm = Norm(gradient);
    if (norm < 1e-9) continue;  // a key's bias: softmax ignores it
    const auto loss_at = [&](double step) {
      Parameters moved = trial.parameters;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        moved[parameter.name][i] += step * gradient[i] / norm;
      }
      WholeModel shifted(PlanOf(configuration, Dtype::kFloat64));
      SetParameters(shifted, moved);
      return shifted.ForwardBackward(trial.batch, {});
    };
    const double derivative =
        (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) /
        (12 * kStep);
    EXPECT_NEAR(derivative / norm, 1, kTolerance) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ModelAgainstReference, testing::ValuesIn(AllConfigurations()),
                         [](const auto& info) { return info.param.name; });

// The base of the rotary angles, from the deck to the loss; the reference has a base of its own.
TEST(RotaryBase, OfTheDeckIsTheModels) {
  deck::Schema schema;
  model::Declare(schema);
  for (const double theta : {100.0, 500'000.0}) {
    const deck::Deck deck = deck::Deck::Parse(
        schema, "", "test", {"model.position=rope", fmt::format("model.rope_theta={}", theta)});
    Configuration configuration = MakeConfiguration(
        "Rotary", 0, [](model::Options& o) { o.position = model::Position::kRope; });
    const model::Options usual = configuration.options;
    configuration.options.rope_theta = model::Read(deck).rope_theta;
    Trial trial = MakeTrial(configuration, Dtype::kFloat64, 1);
    const double loss = trial.model->Loss(trial.batch);
    const auto reference = [&](double base) {
      model::Options options = usual;
      options.rope_theta = base;
      return RunReference(options, trial.parameters, trial.batch, kSeed, 0, false).loss_sum;
    };
    EXPECT_NEAR(loss, reference(theta), kFp64 * loss) << theta;
    EXPECT_GT(std::abs(loss - reference(10'000)), 1e-6 * loss) << theta;
  }
}

// Without training: no gradients, less memory, the same loss.
TEST(ModelForEvaluation, GivesTheSameLossInLessMemory) {
  const Configuration configuration = AllConfigurations().front();
  Trial whole = MakeTrial(configuration, Dtype::kFloat32, 2);
  model::ModelPlan plan = PlanOf(configuration, Dtype::kFloat32);
  plan.training = false;
  WholeModel light(plan, Threads(2));
  SetParameters(light, whole.parameters);
  EXPECT_EQ(light.Loss(whole.batch), whole.model->Loss(whole.batch));
  EXPECT_LT(light.Memory().Sum(), whole.model->Memory().Sum());
  EXPECT_THROW(light.ForwardBackward(whole.batch, {}), Error);
}

// The plan's bytes are the allocator's, exactly; no pass takes more.
TEST(ModelMemory, IsThatOfTheAllocator) {
  for (const Configuration& configuration : AllConfigurations()) {
    for (const bool training : {true, false}) {
      model::ModelPlan plan = PlanOf(configuration, Dtype::kFloat32);
      plan.training = training;
      const std::int64_t before = device::AllocatedBytes();
      WholeModel model(plan);
      const std::int64_t built = device::AllocatedBytes();
      EXPECT_EQ(built - before, model.Memory().Sum()) << configuration.name;
      EXPECT_EQ(model.Memory().gradients > 0, training);
      device::ResetPeakAllocatedBytes();
      const data::Entry batch =
          RandomBatch(configuration.options.vocabulary, kSequences, kLength, kMasked, 9);
      if (training) model.ForwardBackward(batch, {});
      model.Loss(batch);
      EXPECT_EQ(device::PeakAllocatedBytes(), built) << configuration.name;
    }
  }
}

TEST(ModelInitialisation, DoesNotDependOnPrecision) {
  Configuration configuration = AllConfigurations().front();
  WholeModel narrow(PlanOf(configuration, Dtype::kFloat32));
  WholeModel wide(PlanOf(configuration, Dtype::kFloat64), Threads(2));
  const auto* a = static_cast<const float*>(narrow.Parameters().Values());
  const auto* b = static_cast<const double*>(wide.Parameters().Values());
  ASSERT_EQ(narrow.Parameters().Size(), wide.Parameters().Size());
  for (std::int64_t i = 0; i < narrow.Parameters().Size(); ++i) {
    ASSERT_EQ(static_cast<double>(a[i]), b[i]) << i;
  }
}

// N(0, 0.02): mean and deviation of the embedding within four standard errors.
TEST(ModelInitialisation, FollowsItsDistribution) {
  Configuration configuration = AllConfigurations().front();
  configuration.options.init = model::Init::kNormal;
  configuration.options.init_deviation = 0.02;
  configuration.options.vocabulary = 5000;
  WholeModel model(PlanOf(configuration, Dtype::kFloat64));
  const kernels::Matrix weight = model.Parameters().Value(0);
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < weight.Size(); ++i) {
    sum += weight.As<double>()[i];
    squares += weight.As<double>()[i] * weight.As<double>()[i];
  }
  const auto n = static_cast<double>(weight.Size());
  EXPECT_NEAR(sum / n, 0, 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n) / 0.02, 1, 4 / std::sqrt(2 * n));
}

}  // namespace
}  // namespace trireme::test
