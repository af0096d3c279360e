// The model that translates: its own derivative; which tokens each prediction depends on; padding;
// recomputation; memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "pairs.hpp"
#include "trial.hpp"

namespace trireme::test {
namespace {

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
  }));
  table.push_back(Translation("PreLearned", 0.1, [](Options& o) {
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
  }));
  return table;
}

Trial MakePairTrial(const Configuration& configuration, Dtype dtype, int threads = 1) {
  Trial trial;
  trial.model = std::make_unique<WholeModel>(PlanOf(configuration, dtype), Threads(threads));
  trial.parameters = ParametersOf(*trial.model, 5);
  SetParameters(*trial.model, trial.parameters);
  trial.batch = RandomPairs(configuration.options, kSequences, kLength - 1, kLength, 9);
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
      EXPECT_EQ(built - before, model.Memory().Sum());
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

}  // namespace
}  // namespace trireme::test
