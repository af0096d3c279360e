// The reference earns the right to judge: finite differences, properties, published models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "configurations.hpp"
#include "documents.hpp"
#include "reference.hpp"

namespace trireme::test {
namespace {

// Properties that the reference must have whatever its gradients say: causality, masking, dropout
// that does not know the batch, and losses that can be computed by hand.

constexpr std::int64_t kSequences = 3, kLength = 7;
constexpr std::uint32_t kSeed = 11;

class ReferenceProperty : public testing::TestWithParam<Configuration> {
 protected:
  const model::Options& Options() const { return GetParam().options; }
  const Parameters parameters_ = RandomParameters(GetParam().options, 3);
  const data::Entry batch_ = RandomBatch(GetParam().options.vocabulary, kSequences, kLength, 0, 5);

  ReferenceResult Run(const data::Entry& batch, bool training = true, bool causal = true) const {
    return RunReference(Options(), parameters_, batch, kSeed,
                        {GetParam().label_smoothing, GetParam().z_loss}, training, causal);
  }
  // Whether the logits of sequence b, positions [0, end), are the same bits.
  bool SameLogits(const ReferenceResult& a, const ReferenceResult& b, std::int64_t sequence,
                  std::int64_t end) const {
    const std::int64_t first = sequence * kLength * Options().vocabulary;
    const std::int64_t count = end * Options().vocabulary;
    return std::equal(a.logits.begin() + first, a.logits.begin() + first + count,
                      b.logits.begin() + first);
  }
};

TEST_P(ReferenceProperty, NoPredictionSeesAFutureToken) {
  const ReferenceResult before = Run(batch_);
  const ReferenceResult open = Run(batch_, true, false);
  for (std::int64_t t = 1; t < kLength; ++t) {
    data::Entry changed = batch_;
    std::int32_t& token = changed.inputs[static_cast<std::size_t>(kLength + t)];
    token = static_cast<std::int32_t>((token + 1) % Options().vocabulary);
    const ReferenceResult after = Run(changed);
    EXPECT_TRUE(SameLogits(before, after, 1, t)) << "position " << t;
    // A window may drop both words.
    EXPECT_TRUE(Options().word_dropout > 0 || !SameLogits(before, after, 1, t + 1)) << t;
    EXPECT_TRUE(SameLogits(before, after, 0, kLength)) << "another sequence";
    EXPECT_TRUE(SameLogits(before, after, 2, kLength)) << "another sequence";
    if (t == kLength - 1 && Options().attention_dropout + Options().word_dropout == 0) {
      EXPECT_FALSE(SameLogits(open, Run(changed, true, false), 1, t))
          << "without the causal mask the change must show: else this test sees nothing";
    }
  }
}

TEST_P(ReferenceProperty, MaskedTargetsGiveNothing) {
  data::Entry odd = batch_, even = batch_, none = batch_;
  for (std::size_t i = 0; i < batch_.targets.size(); ++i) {
    (i % 2 == 0 ? odd : even).targets[i] = data::kMasked;
    none.targets[i] = data::kMasked;
  }
  const ReferenceResult all = Run(batch_), a = Run(odd), b = Run(even), zero = Run(none);
  EXPECT_EQ(a.valid + b.valid, all.valid);
  EXPECT_NEAR(a.loss_sum + b.loss_sum, all.loss_sum, 1e-12 * all.loss_sum);
  EXPECT_EQ(zero.valid, 0);
  EXPECT_EQ(zero.loss_sum, 0);
  for (const auto& [name, gradient] : all.gradients) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(a.gradients.at(name)[i] + b.gradients.at(name)[i], gradient[i], 1e-10) << name;
      ASSERT_EQ(zero.gradients.at(name)[i], 0) << name;
    }
  }
}

TEST_P(ReferenceProperty, WhatStandsBehindAShortWindowDoesNotMatter) {
  const data::Entry padded = RandomBatch(Options().vocabulary, kSequences, kLength, 3, 5);
  data::Entry other = padded;
  other.inputs.back() = 7;
  const ReferenceResult a = Run(padded), b = Run(other);
  EXPECT_EQ(a.valid, kSequences * kLength - 3);
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  EXPECT_EQ(a.gradients, b.gradients);
}

TEST_P(ReferenceProperty, ASequenceIsTheSameInAnyBatch) {
  const ReferenceResult together = Run(batch_);
  double loss = 0;
  for (std::int64_t b = 0; b < kSequences; ++b) {
    data::Entry alone;
    alone.sequences = 1;
    alone.length = alone.valid = kLength;
    const auto slice = [&](const std::vector<std::int32_t>& v) {
      return std::vector<std::int32_t>(v.begin() + b * kLength, v.begin() + (b + 1) * kLength);
    };
    alone.inputs = slice(batch_.inputs);
    alone.targets = slice(batch_.targets);
    alone.ordinals = {batch_.ordinals[static_cast<std::size_t>(b)]};
    alone.step = batch_.step;
    const ReferenceResult result = Run(alone);
    const auto first = together.logits.begin() + b * kLength * Options().vocabulary;
    EXPECT_TRUE(std::equal(result.logits.begin(), result.logits.end(), first)) << b;
    loss += result.loss_sum;
  }
  EXPECT_NEAR(loss, together.loss_sum, 1e-12 * loss);
}

TEST_P(ReferenceProperty, ADocumentIsAWindowOfItsOwn) {
  data::Entry together = batch_;
  together.begins = RandomBegins(kSequences, kLength, 2, 13);
  const ReferenceResult whole = Run(together, false);
  double loss = 0;
  Parameters sum;
  const auto rows = static_cast<std::size_t>(kSequences * kLength);
  for (std::size_t first = 0, end = 0; first < rows; first = end) {
    for (end = first + 1; end < rows && end % kLength != 0; ++end) {
      if (together.begins[end] != together.begins[first]) break;
    }
    data::Entry alone;
    alone.sequences = 1;
    alone.length = alone.valid = static_cast<std::int64_t>(end - first);
    alone.inputs.assign(batch_.inputs.begin() + static_cast<std::ptrdiff_t>(first),
                        batch_.inputs.begin() + static_cast<std::ptrdiff_t>(end));
    alone.targets.assign(batch_.targets.begin() + static_cast<std::ptrdiff_t>(first),
                         batch_.targets.begin() + static_cast<std::ptrdiff_t>(end));
    alone.ordinals = {1};
    const ReferenceResult result = Run(alone, false);
    loss += result.loss_sum;
    for (const auto& [name, gradient] : result.gradients) {
      sum[name].resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) sum[name][i] += gradient[i];
    }
  }
  EXPECT_NEAR(whole.loss_sum, loss, 1e-12 * loss);
  for (const auto& [name, gradient] : whole.gradients) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(gradient[i], sum[name][i], 1e-10) << name;
    }
  }
  EXPECT_GT(std::abs(Run(batch_, false).loss_sum - loss), 1e-3) << "the mask acts";
}

TEST_P(ReferenceProperty, DropoutIsForTraining) {
  const model::Options& o = Options();
  const bool drops = o.dropout + o.attention_dropout + o.ffn_dropout + o.word_dropout +
                         o.layer_dropout + o.weight_dropout +
                         static_cast<double>(o.sampled_softmax) >
                     0;
  model::Options without = o;
  without.dropout = without.attention_dropout = without.ffn_dropout = 0;
  without.word_dropout = without.layer_dropout = without.weight_dropout = 0;
  without.sampled_softmax = 0;
  const ReferenceResult evaluated = Run(batch_, false);
  const ReferenceResult plain = RunReference(without, parameters_, batch_, kSeed,
                                             {GetParam().label_smoothing, GetParam().z_loss}, true);
  EXPECT_EQ(evaluated.loss_sum, plain.loss_sum);
  EXPECT_EQ(evaluated.gradients, plain.gradients);
  EXPECT_EQ(Run(batch_).loss_sum != plain.loss_sum, drops);
}

INSTANTIATE_TEST_SUITE_P(Table, ReferenceProperty, testing::ValuesIn(AllConfigurations()),
                         [](const auto& info) { return info.param.name; });

TEST(ReferenceDropout, KeepsItsShareAndItsMean) {
  const DropoutSite site = {0.3, MakeKey(1, Purpose::kFfnDropout, 2)};
  const Array ones(64, 1000, std::vector<double>(64000, 1.0));
  const std::vector<std::uint64_t> ordinals = {1, 2, 3, std::uint64_t{1} << 32};
  const Array dropped = Dropout(site, ordinals, 16, ones);
  double kept = 0;
  const double scale = 65536.0 / (65536 - std::lround(0.3 * 65536));
  for (const double value : dropped.values) {
    ASSERT_TRUE(value == 0 || value == scale) << value;
    kept += value != 0;
  }
  // Binomial deviation of the share: sqrt(0.3 0.7 / 64000) = 0.0018; four of them.
  EXPECT_NEAR(kept / 64000, 0.7, 0.0073);
}

TEST(ReferenceLoss, OfUniformLogitsIsTheLogarithmOfTheVocabulary) {
  for (const double smoothing : {0.0, 0.2}) {
    const LossResult loss = CrossEntropy(Array(3, 50), {4, -1, 49}, smoothing);
    EXPECT_EQ(loss.valid, 2);
    EXPECT_NEAR(loss.sum, 2 * std::log(50.0), 1e-13);
    EXPECT_NEAR(loss.gradient(0, 4), 0.02 - (1 - smoothing) - smoothing / 50, 1e-15);
    EXPECT_NEAR(loss.gradient(0, 5), 0.02 - smoothing / 50, 1e-15);
    EXPECT_EQ(loss.gradient(1, 5), 0);
  }
}

TEST(ReferenceLoss, StaysFiniteForLargeLogits) {
  const LossResult loss = CrossEntropy(Array(1, 3, {1e4, 0, -1e4}), {1}, 0);
  EXPECT_DOUBLE_EQ(loss.sum, 1e4);
}

TEST(ReferenceModel, NamesAMissingOrMisshapenParameter) {
  const model::Options options = SmallOptions();
  const data::Entry batch = RandomBatch(options.vocabulary, 1, 2, 0, 5);
  Parameters parameters = RandomParameters(options, 3);
  parameters["norm.weight"].pop_back();
  EXPECT_THROW(RunReference(options, parameters, batch, 0, 0, false), std::invalid_argument);
  parameters.erase("norm.weight");
  EXPECT_THROW(RunReference(options, parameters, batch, 0, 0, false), std::out_of_range);
}

// Every gradient of the reference against finite differences of its loss, one parameter tensor at a
// time.

constexpr std::int64_t kMaskedTail = 2;
// Fourth-order stencil: truncation ~ h^4, rounding ~ 1e-16 loss / h; both stay below 1e-9 here.
constexpr double kStep = 2e-4;
constexpr int kHalvings = 4;  // of the step, if it crossed a ReLU's kink
constexpr double kTolerance = 1e-7;
// A key bias without rotation shifts all scores of a query alike: its true gradient is zero.
constexpr double kZero = 1e-9;

class ReferenceGradient : public testing::TestWithParam<Configuration> {};

double Norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

// Half along the gradient, so that the derivative is not small beside the gradient; half random, so
// that a missing or wrong component shows.
std::vector<double> Direction(const std::vector<double>& gradient, std::uint32_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<double> direction;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    direction.push_back(static_cast<double>(engine() >> 11) * 0x1p-52 - 1);
  }
  const double random_norm = Norm(direction), gradient_norm = Norm(gradient);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    direction[i] /= random_norm;
    if (gradient_norm > kZero) direction[i] += gradient[i] / gradient_norm;
  }
  return direction;
}

// d loss / d (tensor along direction), or nothing if the stencil crosses a kink.
std::optional<double> FiniteDifference(const Configuration& configuration,
                                       const Parameters& parameters, const data::Entry& batch,
                                       const ReferenceResult& middle, const std::string& name,
                                       const std::vector<double>& direction, double step) {
  const double points[] = {-2, -1, 1, 2};
  const double factors[] = {1.0 / 12, -8.0 / 12, 8.0 / 12, -1.0 / 12};
  double derivative = 0;
  Parameters moved = parameters;
  for (int k = 0; k < 4; ++k) {
    for (std::size_t i = 0; i < direction.size(); ++i) {
      moved[name][i] = parameters.at(name)[i] + points[k] * step * direction[i];
    }
    const ReferenceResult result =
        RunReference(configuration.options, moved, batch, kSeed,
                     {configuration.label_smoothing, configuration.z_loss}, true);
    if (result.relu_on != middle.relu_on) return std::nullopt;
    derivative += factors[k] * result.objective / step;
  }
  return derivative;
}

TEST_P(ReferenceGradient, IsTheDerivativeOfTheLoss) {
  const Configuration& configuration = GetParam();
  const model::Options& options = configuration.options;
  const Parameters parameters = RandomParameters(options, 3);
  const data::Entry batch = RandomBatch(options.vocabulary, kSequences, kLength, kMaskedTail, 5);
  const ReferenceResult result =
      RunReference(options, parameters, batch, kSeed,
                   {configuration.label_smoothing, configuration.z_loss}, true);
  ASSERT_EQ(result.valid, kSequences * kLength - kMaskedTail);
  ASSERT_EQ(result.gradients.size(), parameters.size());
  std::uint32_t seed = 100;
  for (const auto& [name, gradient] : result.gradients) {
    const std::vector<double> direction = Direction(gradient, ++seed);
    double expected = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];
    std::optional<double> found;
    double step = kStep;
    for (int k = 0; k <= kHalvings && !found; ++k, step /= 2) {
      found = FiniteDifference(configuration, parameters, batch, result, name, direction, step);
    }
    ASSERT_TRUE(found) << name << ": every step crosses a kink of ReLU";
    const bool vanishes =
        name.ends_with("attention.key.bias") && options.position != model::Position::kRope;
    if (vanishes) {
      EXPECT_LT(Norm(gradient), kZero) << name;
      EXPECT_LT(std::abs(*found), 1e2 * kZero) << name;
    } else {
      EXPECT_GT(Norm(gradient), 1e-3) << name << " hardly takes part: the test says nothing";
      EXPECT_LT(std::abs(*found - expected) / std::abs(expected), kTolerance)
          << name << ": gradient " << expected << ", finite difference " << *found;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ReferenceGradient, testing::ValuesIn(AllConfigurations()),
                         [](const auto& info) { return info.param.name; });

// The reference against other people's models in fp64: GPT-2 and Llama of Hugging Face
// Transformers 4.44 and a post-norm model of Flax 0.8 layers (Vaswani et al. 2017), differentiated
// by JAX 0.4.30. Only here is the forward pass checked by code that is not ours.

// Relative: arguments of the sines reach 1e5 and round differently.
constexpr double kPublishedTolerance = 1e-10;

struct Published {
  Configuration configuration;
  double loss, gradient_norm, last_logit;
  double token_norm, key_norm, up_norm;  // of the gradients of three tensors
};
void PrintTo(const Published& published, std::ostream* stream) {
  *stream << published.configuration.name;
}

// Element k of tensor p (in the order of ParameterShapes) is 0.35 sin(0.37 (k + 1)^2 + 1.3 (p +
// 1)), plus 1 for the weights of norms: numbers that any language can make.
Parameters ChirpParameters(const model::Options& options) {
  Parameters parameters;
  double p = 0;
  for (const auto& [name, extents] : ParameterShapes(options)) {
    p += 1;
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count *= extent;
    for (std::int64_t i = 1; i <= count; ++i) {
      const double k = static_cast<double>(i);
      parameters[name].push_back(0.35 * std::sin(0.37 * k * k + 1.3 * p) +
                                 (name.ends_with("norm.weight") ? 1 : 0));
    }
  }
  return parameters;
}

data::Entry QuadraticBatch() {
  data::Entry batch;
  batch.sequences = 3;
  batch.length = 7;
  for (std::int32_t i = 0; i < 21; ++i) {
    batch.inputs.push_back((7 * i * i + 3 * i) % 23);
    batch.targets.push_back(i < 19 ? (5 * i * i + i + 2) % 23 : data::kMasked);
  }
  batch.ordinals = {0, 1, 2};
  batch.valid = 19;
  return batch;
}

double NormOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

class ReferencePublished : public testing::TestWithParam<Published> {};

TEST_P(ReferencePublished, Agrees) {
  const Published& want = GetParam();
  const model::Options& options = want.configuration.options;
  const ReferenceResult got =
      RunReference(options, ChirpParameters(options), QuadraticBatch(), 0, 0, true);
  double square = 0;
  for (const auto& [name, gradient] : got.gradients) square += std::pow(NormOf(gradient), 2);
  const auto norm = [&](const char* name) { return NormOf(got.gradients.at(name)); };
  EXPECT_NEAR(got.loss_sum / want.loss, 1, kPublishedTolerance);
  EXPECT_NEAR(got.logits.back() / want.last_logit, 1, kPublishedTolerance);
  EXPECT_NEAR(std::sqrt(square) / want.gradient_norm, 1, kPublishedTolerance);
  EXPECT_NEAR(norm("embedding.token.weight") / want.token_norm, 1, kPublishedTolerance);
  EXPECT_NEAR(norm("blocks.1.attention.key.weight") / want.key_norm, 1, kPublishedTolerance);
  EXPECT_NEAR(norm("blocks.0.ffn.up.weight") / want.up_norm, 1, kPublishedTolerance);
}

const Published kPublished[] = {
    {MakeConfiguration("Gpt2", 0, [](model::Options&) {}), 71.720393584515406, 76.805584198362084,
     -0.592128006084598, 22.553552517576595, 3.256033269993289, 25.860325282946039},
    {MakeConfiguration("Llama", 0,
                       [](model::Options& o) {
                         o.dim = 16;
                         o.heads = 4;
                         o.kv_heads = 2;
                         o.norm = model::Norm::kRmsNorm;
                         o.activation = model::Activation::kSwiglu;
                         o.position = model::Position::kRope;
                         o.bias = o.qkv_bias = o.tie_embeddings = false;
                       }),
     70.663086145887362, 79.295254903402736, 1.197041799870388, 41.309217941300574,
     4.035888526105643, 17.930394413260533},
    {MakeConfiguration("Vaswani", 0,
                       [](model::Options& o) {
                         o.norm_position = model::NormPosition::kPost;
                         o.activation = model::Activation::kRelu;
                         o.position = model::Position::kSinusoidal;
                         o.scale_embedding = true;
                       }),
     67.277956301915040, 40.124255738129463, 1.195579311700249, 21.997866504277333,
     1.587363889322022, 9.988562459870719},
};

INSTANTIATE_TEST_SUITE_P(Table, ReferencePublished, testing::ValuesIn(kPublished),
                         [](const auto& info) { return info.param.configuration.name; });

}  // namespace
}  // namespace trireme::test
