// The model against the reference: decoders, documents, and models that translate.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "configurations.hpp"
#include "documents.hpp"
#include "pairs.hpp"
#include "reference.hpp"
#include "rule_four.hpp"
#include "trireme/base/error.hpp"
#include "whole_model.hpp"

namespace trireme::test {
namespace {

// A small model with the reference's parameters and a batch, and the comparison of gradients.

constexpr std::uint32_t kSeed = 77;
constexpr std::int64_t kSequences = 3, kLength = 7, kMasked = 2;
constexpr std::int64_t kBatchStep = 7;  // of RandomBatch

struct Trial {
  std::unique_ptr<WholeModel> model;
  Parameters parameters;
  data::Entry batch;
};

model::ModelPlan PlanOf(const Configuration& configuration, Dtype dtype) {
  model::ModelPlan plan;
  plan.options = configuration.options;
  plan.dtype = dtype;
  plan.seed = kSeed;
  plan.length = kLength;
  plan.micro_batch = kSequences;
  plan.label_smoothing = configuration.label_smoothing;
  plan.z_loss = configuration.z_loss;
  return plan;
}

device::Stream Threads(int threads) { return {.threads = threads}; }

void SetParameters(WholeModel& model, const Parameters& parameters) {
  const kernels::Registry& registry = model.Parameters();
  DispatchDtype(registry.Type(), [&](auto zero) {
    for (const kernels::Parameter& parameter : registry.Parameters()) {
      const std::vector<double>& values = parameters.at(parameter.name);
      ASSERT_EQ(static_cast<std::int64_t>(values.size()), parameter.end);
      auto* to = static_cast<decltype(zero)*>(registry.Values()) + parameter.offset;
      for (std::size_t i = 0; i < values.size(); ++i) {
        to[i] = static_cast<decltype(zero)>(values[i]);
      }
    }
  });
}

std::vector<double> GradientOf(const WholeModel& model, const kernels::Parameter& parameter) {
  const kernels::Registry& registry = model.Parameters();
  std::vector<double> values;
  DispatchDtype(registry.Type(), [&](auto zero) {
    const auto* from = static_cast<const decltype(zero)*>(registry.Gradients()) + parameter.offset;
    values.assign(from, from + parameter.end);
  });
  const double dropout = model.Plan().options.weight_dropout;
  if (dropout == 0 || parameter.number < 0) return values;
  // A training step drops elements of the gradients' sum, after the micro-batches.
  const Array whole(parameter.shape[0], parameter.shape[1], values);
  return DropWeight(dropout, kSeed, kBatchStep, static_cast<std::uint32_t>(parameter.number), whole)
      .values;
}

Trial MakeTrial(const Configuration& configuration, Dtype dtype, int threads) {
  Trial trial;
  trial.model = std::make_unique<WholeModel>(PlanOf(configuration, dtype), Threads(threads));
  trial.parameters = RandomParameters(configuration.options, 5);
  SetParameters(*trial.model, trial.parameters);
  trial.batch = RandomBatch(configuration.options.vocabulary, kSequences, kLength, kMasked, 9);
  return trial;
}

// Rule 4's measure of the gradients against `wanted`, and the worst parameter's name.
std::pair<double, std::string> WorstGradient(const WholeModel& model, const Parameters& wanted) {
  std::vector<std::vector<double>> got, right;
  const auto& parameters = model.Parameters().Parameters();
  for (const kernels::Parameter& parameter : parameters) {
    got.push_back(GradientOf(model, parameter));
    right.push_back(wanted.at(parameter.name));
  }
  const LargestDifference worst = RuleFourDifference(got, right);
  return {worst.relative, parameters[worst.tensor].name};
}

// muP changes the initial deviation of the blocks' matrices alone: four times as wide, half of it.
TEST(MupStart, MatricesOfBlocksAreSmaller) {
  for (const bool translates : {false, true}) {
    Configuration plain{"plain", SmallOptions()};
    if (translates) MakeTranslation(plain.options);
    plain.options.tie_embeddings = false;
    Configuration mup = plain;
    mup.options.parametrization = model::Parametrization::kMup;
    mup.options.mup_base = static_cast<double>(plain.options.dim) / 4;
    const WholeModel a(PlanOf(plain, Dtype::kFloat32)), b(PlanOf(mup, Dtype::kFloat32));
    int smaller = 0;
    for (const kernels::Parameter& parameter : a.Parameters().Parameters()) {
      const bool matrix = parameter.shape.size() == 2 && parameter.name.starts_with("blocks.");
      smaller += matrix ? 1 : 0;
      for (std::int64_t i = parameter.offset; i < parameter.offset + parameter.end; ++i) {
        const auto at = [i](const WholeModel& model) {
          return static_cast<const float*>(model.Parameters().Values())[i];
        };
        ASSERT_EQ(at(b), matrix ? at(a) / 2 : at(a)) << parameter.name;
      }
    }
    EXPECT_EQ(smaller, translates ? 2 * 6 + 2 * 10 : 2 * 6);
  }
}

// Gradients are reported final from the end of the storage to its start, each when it is that of a
// whole pass. twin: the same trial.
void ExpectReportsWhenFinal(Trial& trial, Trial& twin) {
  twin.model->ForwardBackward(twin.batch, {});
  const kernels::Registry& registry = trial.model->Parameters();
  const auto* final_values = static_cast<const double*>(twin.model->Parameters().Gradients());
  const auto* now = static_cast<const double*>(registry.Gradients());
  std::int64_t last = registry.Size() + 1;
  trial.model->ForwardBackward(trial.batch, [&](std::int64_t begin) {
    EXPECT_LT(begin, last);
    last = begin;
    EXPECT_TRUE(std::equal(now + begin, now + registry.Size(), final_values + begin))
        << "at offset " << begin;
  });
  EXPECT_EQ(last, 0);
}

// The model that translates: its own derivative; which tokens each prediction depends on; padding;
// recomputation; memory.

Configuration Translation(const std::string& name, double label_smoothing,
                          void (*change)(model::Options&)) {
  Configuration configuration{name, SmallOptions(), label_smoothing};
  MakeTranslation(configuration.options);
  change(configuration.options);
  return configuration;
}

std::vector<Configuration> Translations() {
  using model::Options;
  std::vector<Configuration> table;
  table.push_back(Translation("Vaswani", 0.1, [](Options& o) {
    o.norm_position = model::NormPosition::kPost;
    o.position = model::Position::kSinusoidal;
    o.scale_embedding = true;
    o.dropout = 0.15;
    o.attention_dropout = 0.25;
    o.ffn_dropout = 0.35;
  }));
  table.push_back(Translation("PreRotary", 0, [](Options& o) {
    o.position = model::Position::kRope;
    o.kv_heads = 1;
    o.encoder_layers = 1;
    o.layers = 3;
    o.shared_vocabulary = false;
    o.source_types = 11;
    o.dropout = 0.2;
    o.attention_dropout = 0.3;
    o.word_dropout = 0.4;
    o.layer_dropout = 0.2;
  }));
  table.push_back(Translation("PreLearned", 0.1, [](Options& o) {
    o.weight_dropout = 0.25;
    o.norm = model::Norm::kRmsNorm;
    o.activation = model::Activation::kSwiglu;
    o.bias = o.qkv_bias = o.tie_embeddings = false;
    o.encoder_layers = 3;
    o.qk_norm = true;
  }));
  table.push_back(Translation("PostLearnedApart", 0, [](Options& o) {
    o.norm_position = model::NormPosition::kPost;
    o.shared_vocabulary = false;
    o.source_types = 31;
    o.tie_embeddings = false;
    o.layers = 1;
    o.word_dropout = 0.3;
    o.layer_dropout = 0.4;
  }));
  return table;
}

Trial MakePairTrial(const Configuration& configuration, Dtype dtype, int threads = 1) {
  Trial trial;
  trial.model = std::make_unique<WholeModel>(PlanOf(configuration, dtype), Threads(threads));
  trial.parameters = ParametersOf(*trial.model, 5);
  SetParameters(*trial.model, trial.parameters);
  trial.batch = RandomPairs(configuration.options, kSequences, kLength - 1, kLength, 9);
  trial.batch.step = kBatchStep;
  return trial;
}

std::vector<std::vector<double>> GradientsOf(const WholeModel& model) {
  std::vector<std::vector<double>> all;
  for (const kernels::Parameter& p : model.Parameters().Parameters()) {
    all.push_back(GradientOf(model, p));
  }
  return all;
}

class TranslationModel : public testing::TestWithParam<Configuration> {};

TEST_P(TranslationModel, CountsItsParameters) {
  const Trial trial = MakePairTrial(GetParam(), Dtype::kFloat64);
  std::int64_t count = 0;
  for (const auto& parameter : trial.model->Parameters().Parameters()) count += parameter.end;
  EXPECT_EQ(count, model::ParameterCount(GetParam().options));
}

// Directional derivatives by a five-point stencil, one tensor at a time, with dropout.
TEST_P(TranslationModel, GradientIsTheDerivativeOfTheLoss) {
  constexpr double kStep = 4e-4, kTolerance = 1e-7;
  Trial trial = MakePairTrial(GetParam(), Dtype::kFloat64);
  trial.model->ForwardBackward(trial.batch, {});
  int compared = 0;
  for (const kernels::Parameter& parameter : trial.model->Parameters().Parameters()) {
    const std::vector<double> gradient = GradientOf(*trial.model, parameter);
    const double norm = Norm(gradient);
    if (norm < 1e-9) {
      EXPECT_TRUE(parameter.name.ends_with("key.bias")) << parameter.name;
      continue;  // softmax ignores it
    }
    const auto loss_at = [&](double step) {
      Parameters moved = trial.parameters;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        moved[parameter.name][i] += step * gradient[i] / norm;
      }
      WholeModel shifted(PlanOf(GetParam(), Dtype::kFloat64));
      SetParameters(shifted, moved);
      return shifted.ForwardBackward(trial.batch, {});
    };
    const double derivative =
        (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) /
        (12 * kStep);
    EXPECT_NEAR(derivative / norm, 1, kTolerance) << parameter.name;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

// A prediction depends on every token of its source and on no later token of its target.
TEST_P(TranslationModel, PredictionsSeeTheSourceAndEarlierTargets) {
  constexpr std::int64_t kPosition = 3;
  Trial trial = MakePairTrial(GetParam(), Dtype::kFloat64);
  const data::Entry& whole = trial.batch;
  const std::vector<double> before = trial.model->Logits(whole, kPosition);
  const auto after = [&](std::vector<std::int32_t> data::Entry::*text, std::size_t place) {
    data::Entry changed = whole;
    (changed.*text)[place] = ((changed.*text)[place] + 5) % 11;
    return trial.model->Logits(changed, kPosition);
  };
  for (std::int32_t t = 0; t < whole.target_lengths[0]; ++t) {
    EXPECT_EQ(after(&data::Entry::inputs, static_cast<std::size_t>(t)) == before, t > kPosition)
        << "target token " << t;
  }
  for (std::int32_t s = 0; s < whole.source_length; ++s) {
    EXPECT_EQ(after(&data::Entry::sources, static_cast<std::size_t>(s)) == before,
              s >= whole.source_lengths[0])
        << "source token " << s;
  }
}

// Tokens in the padding change no bit of loss and gradients.
TEST_P(TranslationModel, PaddingIsNotRead) {
  for (const int threads : {1, 2}) {
    Trial plain = MakePairTrial(GetParam(), Dtype::kFloat32, threads);
    Trial other = MakePairTrial(GetParam(), Dtype::kFloat32, threads);
    data::Entry& batch = other.batch;
    int padding = 0;
    const auto fill = [&](std::vector<std::int32_t>& tokens, std::int64_t length,
                          const std::vector<std::int32_t>& lengths) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        if (at % length < lengths[static_cast<std::size_t>(at / length)]) continue;
        tokens[i] = static_cast<std::int32_t>((tokens[i] + 3 + at) % 11);
        ++padding;
      }
    };
    fill(batch.sources, batch.source_length, batch.source_lengths);
    fill(batch.inputs, batch.length, batch.target_lengths);
    ASSERT_GT(padding, 4);
    EXPECT_EQ(plain.model->ForwardBackward(plain.batch, {}),
              other.model->ForwardBackward(other.batch, {}));
    EXPECT_EQ(GradientsOf(*plain.model), GradientsOf(*other.model));
    EXPECT_EQ(plain.model->Loss(plain.batch), other.model->Loss(other.batch));
  }
}

// Wider padding changes losses and gradients by rounding alone.
TEST_P(TranslationModel, PaddingMayHaveAnyWidth) {
  Trial narrow = MakePairTrial(GetParam(), Dtype::kFloat64);
  Trial wide = MakePairTrial(GetParam(), Dtype::kFloat64);
  narrow.batch = RandomPairs(GetParam().options, kSequences, kLength - 2, kLength - 2, 4);
  wide.batch = Widened(narrow.batch, kLength, kLength);
  const double loss = narrow.model->ForwardBackward(narrow.batch, {});
  EXPECT_NEAR(wide.model->ForwardBackward(wide.batch, {}), loss, 1e-12 * loss);
  EXPECT_LT(RuleFourDifference(GradientsOf(*wide.model), GradientsOf(*narrow.model)).relative,
            1e-12);
}

TEST_P(TranslationModel, RecomputedActivationsHaveTheSameBits) {
  Trial kept = MakePairTrial(GetParam(), Dtype::kFloat32);
  const double loss = kept.model->ForwardBackward(kept.batch, {});
  for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
    Configuration configuration = GetParam();
    configuration.options.recompute = recompute;
    Trial again = MakePairTrial(configuration, Dtype::kFloat32);
    EXPECT_EQ(again.model->ForwardBackward(again.batch, {}), loss);
    EXPECT_EQ(GradientsOf(*again.model), GradientsOf(*kept.model));
    EXPECT_LT(again.model->Memory().activations, kept.model->Memory().activations);
  }
}

// The order in which gradients are reported final: from the end of the storage to its start.
TEST_P(TranslationModel, ReportsGradientsWhenTheyAreFinal) {
  Trial trial = MakePairTrial(GetParam(), Dtype::kFloat64);
  Trial twin = MakePairTrial(GetParam(), Dtype::kFloat64);
  ExpectReportsWhenFinal(trial, twin);
}

// The plan's bytes are the allocator's, exactly; no pass takes more, also for entries of many short
// pairs where tokens are limited.
TEST_P(TranslationModel, MemoryIsThatOfTheAllocator) {
  for (const bool training : {true, false}) {
    for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{2 * kLength}}) {
      model::ModelPlan plan = PlanOf(GetParam(), Dtype::kFloat32);
      plan.training = training;
      plan.tokens = tokens;
      const std::int64_t before = device::AllocatedBytes();
      WholeModel model(plan);
      const std::int64_t built = device::AllocatedBytes();
      EXPECT_EQ(built - before, model.Memory().Total());
      device::ResetPeakAllocatedBytes();
      const std::int64_t length = tokens > 0 ? tokens / kSequences : kLength;
      for (const auto& [pairs, longest] :
           {std::pair{kSequences, length}, std::pair{std::int64_t{2}, kLength}}) {
        const data::Entry batch = RandomPairs(GetParam().options, pairs, longest, longest, 9);
        if (training) model.ForwardBackward(batch, {});
        model.Loss(batch);
      }
      EXPECT_EQ(device::PeakAllocatedBytes(), built);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, TranslationModel, testing::ValuesIn(Translations()),
                         [](const auto& info) { return info.param.name; });

// An encoder whose queries are zero sees all positions alike, and with rotary positions then knows
// no order: a source text backwards gives the same loss. One that saw earlier positions only would
// know the order.
TEST(Translation, EncoderSeesAllPositions) {
  const Configuration configuration = Translations().at(1);
  ASSERT_EQ(configuration.options.position, model::Position::kRope);
  Trial trial = MakePairTrial(configuration, Dtype::kFloat64);
  data::Entry backwards = trial.batch;
  for (std::int64_t i = 0; i < backwards.sequences; ++i) {
    const auto first = backwards.sources.begin() + i * backwards.source_length;
    std::reverse(first, first + backwards.source_lengths[static_cast<std::size_t>(i)]);
  }
  const double ordered = trial.model->Loss(trial.batch);
  EXPECT_GT(std::abs(trial.model->Loss(backwards) - ordered), 1e-6 * ordered);
  for (auto& [name, values] : trial.parameters) {
    const bool encoder = name.starts_with("blocks.0.");
    if (encoder && name.find(".query.") != std::string::npos) {
      std::fill(values.begin(), values.end(), 0.0);
    }
  }
  ASSERT_EQ(configuration.options.encoder_layers, 1);
  SetParameters(*trial.model, trial.parameters);
  const double loss = trial.model->Loss(trial.batch);
  EXPECT_NEAR(trial.model->Loss(backwards), loss, 1e-12 * loss);
}

// Entries of single texts are no input of a model that translates, and the other way round.
TEST(Translation, WantsPairs) {
  const Configuration configuration = Translations().front();
  Trial trial = MakePairTrial(configuration, Dtype::kFloat32);
  const data::Entry single = RandomBatch(23, 2, 5, 0, 3);
  EXPECT_THROW(trial.model->Loss(single), Error);
  Trial plain = MakeTrial(AllConfigurations().front(), Dtype::kFloat32, 1);
  EXPECT_THROW(plain.model->Loss(trial.batch), Error);
}

// The model against the plain reference: losses, logits and every parameter's gradient, for every
// choice of the architecture; and its own derivative, its causality and its independence of the
// batch.

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
    const ReferenceResult right =
        RunReference(GetParam().options, trial.parameters, trial.batch, kSeed,
                     {GetParam().label_smoothing, GetParam().z_loss}, true);
    const double loss = trial.model->ForwardBackward(trial.batch, {});
    EXPECT_NEAR(loss, right.loss_sum, kFp64 * std::abs(right.loss_sum));
    const auto [difference, name] = WorstGradient(*trial.model, right.gradients);
    EXPECT_LT(difference, kFp64) << name;
  }
}

TEST_P(ModelAgainstReference, EqualsItInFp32) {
  Trial trial = MakeTrial(GetParam(), Dtype::kFloat32, 2);
  const ReferenceResult right =
      RunReference(GetParam().options, trial.parameters, trial.batch, kSeed,
                   {GetParam().label_smoothing, GetParam().z_loss}, true);
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
    one.step = parts.batch.step;
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
      const double loss = shifted.ForwardBackward(trial.batch, {});
      if (configuration.z_loss == 0) return loss;
      const ReferenceResult right =
          RunReference(configuration.options, moved, trial.batch, kSeed,
                       {configuration.label_smoothing, configuration.z_loss}, true);
      return loss + right.objective - right.loss_sum;  // with the terms that losses are without
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
  EXPECT_LT(light.Memory().Total(), whole.model->Memory().Total());
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
      EXPECT_EQ(built - before, model.Memory().Total()) << configuration.name;
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

// Documents in a window: the model computes for each what it computes for a window of its own.

constexpr double kDocumentsFp64 = 1e-11;         // model_test.cpp
constexpr double kDocumentsFp32Loss = 1e-5;      // relative, of the loss
constexpr double kDocumentsFp32Gradient = 2e-4;  // in rule 4's norm

// With documents in the trial's batch.
Trial WithDocuments(const Configuration& configuration, Dtype dtype, int threads) {
  Trial trial = MakeTrial(configuration, dtype, threads);
  model::ModelPlan plan = PlanOf(configuration, dtype);
  plan.document_mask = true;
  trial.model = std::make_unique<WholeModel>(plan, Threads(threads));
  SetParameters(*trial.model, trial.parameters);
  trial.batch.begins = RandomBegins(kSequences, kLength, 2, 13);
  return trial;
}

class DocumentsAgainstReference : public testing::TestWithParam<Configuration> {
 protected:
  static void Compare(Trial& trial, double loss_tolerance, double gradient_tolerance) {
    const ReferenceResult right =
        RunReference(GetParam().options, trial.parameters, trial.batch, kSeed,
                     {GetParam().label_smoothing, GetParam().z_loss}, true);
    const double loss = trial.model->ForwardBackward(trial.batch, {});
    EXPECT_NEAR(loss, right.loss_sum, loss_tolerance * std::abs(right.loss_sum));
    const auto [difference, name] = WorstGradient(*trial.model, right.gradients);
    EXPECT_LT(difference, gradient_tolerance) << name;
  }
};

TEST_P(DocumentsAgainstReference, EqualInFp64) {
  for (const int threads : {1, 2}) {
    Trial trial = WithDocuments(GetParam(), Dtype::kFloat64, threads);
    Compare(trial, kDocumentsFp64, kDocumentsFp64);
  }
}

TEST_P(DocumentsAgainstReference, EqualInFp32) {
  Trial trial = WithDocuments(GetParam(), Dtype::kFloat32, 2);
  Compare(trial, kDocumentsFp32Loss, kDocumentsFp32Gradient);
}

INSTANTIATE_TEST_SUITE_P(Table, DocumentsAgainstReference, testing::ValuesIn(AllConfigurations()),
                         [](const auto& info) { return info.param.name; });

// Two windows; the last documents reach to their ends.
constexpr std::int64_t kWindow = 300;
constexpr std::int64_t kDocuments[][5] = {{1, 130, 9, 31, 129}, {150, 2, 1, 17, 130}};

Configuration Long(const char* name, model::Position position, model::Recompute recompute,
                   std::int64_t kv_heads) {
  Configuration configuration{name, SmallOptions(), 0.1};
  configuration.options.max_positions = kWindow;
  configuration.options.position = position;
  configuration.options.kv_heads = kv_heads;
  configuration.options.recompute = recompute;
  return configuration;
}

class DocumentsAlone : public testing::TestWithParam<Configuration> {
 protected:
  DocumentsAlone() : window_(RandomBatch(GetParam().options.vocabulary, 2, kWindow, 0, 4)) {
    for (const auto& documents : kDocuments) {
      std::int32_t begin = 0;
      for (const std::int64_t length : documents) {
        window_.begins.insert(window_.begins.end(), static_cast<std::size_t>(length), begin);
        begin += static_cast<std::int32_t>(length);
      }
    }
  }
  std::unique_ptr<WholeModel> Make() const {
    model::ModelPlan plan = PlanOf(GetParam(), Dtype::kFloat64);
    plan.length = kWindow;
    plan.micro_batch = 2;
    plan.document_mask = true;
    auto model = std::make_unique<WholeModel>(plan, Threads(1));
    SetParameters(*model, RandomParameters(GetParam().options, 5));
    return model;
  }
  // Rows [begin, begin + length) of the windows as a window of their own.
  data::Entry Alone(std::int64_t begin, std::int64_t length) const {
    data::Entry entry;
    entry.sequences = 1;
    entry.length = entry.valid = length;
    const auto cut = [&](const std::vector<std::int32_t>& v) {
      return std::vector<std::int32_t>(v.begin() + begin, v.begin() + begin + length);
    };
    entry.inputs = cut(window_.inputs);
    entry.targets = cut(window_.targets);
    entry.ordinals = {3};
    return entry;
  }
  data::Entry window_;
};

TEST_P(DocumentsAlone, AreWhatTheyAreInAWindow) {
  const auto together = Make(), apart = Make();
  std::vector<double> losses(2 * kWindow);
  together->Loss(window_, losses.data());
  together->Parameters().ZeroGradients();
  apart->Parameters().ZeroGradients();
  const double loss = together->ForwardBackward(window_, {});
  double sum = 0;
  std::int64_t begin = 0;
  for (const auto& documents : kDocuments) {
    for (const std::int64_t length : documents) {
      const data::Entry alone = Alone(begin, length);
      std::vector<double> own(static_cast<std::size_t>(length));
      apart->Loss(alone, own.data());
      for (std::size_t i = 0; i < own.size(); ++i) {
        const double in_window = losses[static_cast<std::size_t>(begin) + i];
        EXPECT_NEAR(in_window, own[i], kDocumentsFp64 * std::abs(own[i]))
            << "row " << begin << " + " << i;
      }
      sum += apart->ForwardBackward(alone, {});
      begin += length;
    }
  }
  EXPECT_NEAR(loss, sum, kDocumentsFp64 * sum);
  Parameters wanted;
  for (const kernels::Parameter& parameter : apart->Parameters().Parameters()) {
    wanted[parameter.name] = GradientOf(*apart, parameter);
  }
  const auto [difference, name] = WorstGradient(*together, wanted);
  EXPECT_LT(difference, kDocumentsFp64) << name;
  // Without the mask the numbers are others.
  data::Entry without = window_;
  without.begins.clear();
  EXPECT_GT(std::abs(together->Loss(without) - together->Loss(window_)), 1e-3);
}

TEST_P(DocumentsAlone, DoNotKnowOfEachOther) {
  const auto model = Make();
  std::vector<double> before(2 * kWindow), after(2 * kWindow);
  model->Loss(window_, before.data());
  // Another token in the middle of the second document; the last one begins at 171.
  data::Entry changed = window_;
  changed.inputs[70] = (changed.inputs[70] + 1) % 23;
  model->Loss(changed, after.data());
  const auto same = [&](std::int64_t begin, std::int64_t end) {
    return std::memcmp(before.data() + begin, after.data() + begin,
                       static_cast<std::size_t>(end - begin) * sizeof(double)) == 0;
  };
  EXPECT_TRUE(same(0, 70));
  EXPECT_FALSE(same(70, 131));
  EXPECT_TRUE(same(131, 2 * kWindow));
}

INSTANTIATE_TEST_SUITE_P(
    Positions, DocumentsAlone,
    testing::Values(Long("Rope", model::Position::kRope, model::Recompute::kNone, 1),
                    Long("Learned", model::Position::kLearned, model::Recompute::kSelective, 3),
                    Long("Sinusoidal", model::Position::kSinusoidal, model::Recompute::kFull, 1)),
    [](const auto& info) { return info.param.name; });

TEST(Documents, AreAnErrorInAModelPlannedWithout) {
  const Configuration configuration{"Small", SmallOptions()};
  Trial trial = MakeTrial(configuration, Dtype::kFloat32, 1);
  trial.batch.begins = RandomBegins(kSequences, kLength, 2, 13);
  EXPECT_THROW(trial.model->Loss(trial.batch), Error);
  Trial planned = WithDocuments(configuration, Dtype::kFloat32, 1);
  planned.batch.begins.pop_back();
  EXPECT_THROW(planned.model->Loss(planned.batch), Error);
}

// Attention's share falls with the keys that are seen.
TEST(Documents, AreCountedByWhatTheirQueriesSee) {
  const model::Options options = SmallOptions();
  EXPECT_EQ(model::FlopsPerTokenOf(options, 3.5), model::FlopsPerToken(options, 6));
  EXPECT_DOUBLE_EQ(model::FlopsPerTokenOf(options, 3.5) - model::FlopsPerTokenOf(options, 1.5),
                   2.0 * 12 * static_cast<double>(options.layers * options.heads * 4));
}

}  // namespace
}  // namespace trireme::test
