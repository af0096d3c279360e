// The reference against other people's models in fp64: GPT-2 and Llama of Hugging Face
// Transformers 4.44 and a post-norm model of Flax 0.8 layers (Vaswani et al. 2017), differentiated
// by JAX 0.4.30. Only here is the forward pass checked by code that is not ours.
#include <gtest/gtest.h>

#include <cmath>

#include "configurations.hpp"
#include "reference_model.hpp"

namespace trireme::test {
namespace {

// Relative: arguments of the sines reach 1e5 and round differently.
constexpr double kTolerance = 1e-10;

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
  EXPECT_NEAR(got.loss_sum / want.loss, 1, kTolerance);
  EXPECT_NEAR(got.logits.back() / want.last_logit, 1, kTolerance);
  EXPECT_NEAR(std::sqrt(square) / want.gradient_norm, 1, kTolerance);
  EXPECT_NEAR(norm("embedding.token.weight") / want.token_norm, 1, kTolerance);
  EXPECT_NEAR(norm("blocks.1.attention.key.weight") / want.key_norm, 1, kTolerance);
  EXPECT_NEAR(norm("blocks.0.ffn.up.weight") / want.up_norm, 1, kTolerance);
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
