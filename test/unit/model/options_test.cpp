// Keys of [model] that known families need: biases of queries, keys and values, scaled rotary
// positions, presets; and the angles that follow from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "reference_layers.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/model/options.hpp"

namespace trireme::test {
namespace {

using model::Options;
using model::RopeScaling;
using testing::HasSubstr;

Options OptionsOf(const std::vector<std::string>& keys, const std::string& text = "") {
  static const deck::Schema schema = [] {
    deck::Schema made;
    model::Declare(made);
    return made;
  }();
  deck::Deck deck = deck::Deck::Parse(schema, text, "a.in", keys);
  model::Resolve(deck);
  return model::Read(deck);
}

std::string Refusal(const std::vector<std::string>& keys, const std::string& text = "") {
  try {
    OptionsOf(keys, text);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST(ModelOptions, BiasesOfQueriesFollowTheOthersUnlessTheyAreGiven) {
  EXPECT_TRUE(OptionsOf({}).qkv_bias);
  EXPECT_FALSE(OptionsOf({"model.bias=no"}).qkv_bias);
  EXPECT_TRUE(OptionsOf({"model.bias=no", "model.qkv_bias=yes"}).qkv_bias);
  EXPECT_FALSE(OptionsOf({"model.qkv_bias=no"}).qkv_bias);
  EXPECT_FALSE(OptionsOf({"model.preset=llama_5m"}).qkv_bias);
  const Options qwen2 = OptionsOf({"model.preset=llama_5m", "model.qkv_bias=yes"});
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.bias);
  // dim 128, 2 key/value heads of 32, 4 layers.
  EXPECT_EQ(
      model::ParameterCount(qwen2) - model::ParameterCount(OptionsOf({"model.preset=llama_5m"})),
      4 * (128 + 2 * 2 * 32));
}

TEST(ModelOptions, NormsOfHeadsHaveTwoWeightsABlock) {
  Options options = OptionsOf({"model.preset=llama_5m"});
  const std::int64_t without = model::ParameterCount(options);
  options.qk_norm = true;
  EXPECT_EQ(model::ParameterCount(options), without + 4 * 2 * 32);
  EXPECT_TRUE(OptionsOf({"model.qk_norm=yes"}).qk_norm);
}

// Sizes that Meta publishes: safetensors.index.json of each (tied weights once).
TEST(ModelOptions, PresetsHaveThePublishedNumbersOfParameters) {
  constexpr std::int64_t kVocabulary = 128'256;
  const std::pair<const char*, std::int64_t> published[] = {{"llama3_1b", 1'235'814'400},
                                                            {"llama3_3b", 3'212'749'824},
                                                            {"llama3_8b", 8'030'261'248},
                                                            {"llama3_70b", 70'553'706'496}};
  for (const auto& [name, count] : published) {
    Options options = OptionsOf({std::string("model.preset=") + name});
    options.vocabulary = kVocabulary;
    EXPECT_EQ(model::ParameterCount(options), count) << name;
    EXPECT_EQ(options.rope_scaling, RopeScaling::kLlama3) << name;
    EXPECT_EQ(options.rope_original_positions, 8192) << name;
    EXPECT_EQ(options.max_positions, 131'072) << name;
    EXPECT_EQ(options.norm_epsilon, 1e-5) << name;
    EXPECT_EQ(options.rope_theta, 500'000) << name;
    EXPECT_FALSE(options.qkv_bias) << name;
  }
  EXPECT_EQ(OptionsOf({"model.preset=llama3_3b"}).rope_factor, 32);
  EXPECT_EQ(OptionsOf({"model.preset=llama3_70b"}).rope_factor, 8);
}

// Another scaling than the preset's has none of its numbers.
TEST(ModelOptions, ScalingsNumbersStayWithTheirKind) {
  const Options plain = OptionsOf({"model.preset=llama3_1b", "model.rope_scaling=none"});
  EXPECT_EQ(plain.rope_factor, 0);
  EXPECT_EQ(plain.rope_original_positions, 0);
  EXPECT_EQ(plain.rope_theta, 500'000);
  EXPECT_THAT(Refusal({"model.preset=llama3_1b", "model.rope_scaling=linear"}),
              HasSubstr("needs model.rope_factor"));
  const Options longer = OptionsOf({"model.preset=llama3_1b", "model.rope_factor=16"});
  EXPECT_EQ(longer.rope_factor, 16);
  EXPECT_EQ(longer.rope_original_positions, 8192);
}

TEST(ModelOptions, ScalingsNumbersAreRefusedByLine) {
  const std::string rope = "model.position=rope", yarn = "model.rope_scaling=yarn";
  const std::string factor = "model.rope_factor=4", positions = "model.rope_original_positions=64";
  EXPECT_EQ(Refusal({rope, yarn, factor, positions}), "");
  EXPECT_EQ(Refusal({rope, yarn, factor}),
            "command line: model.rope_scaling = yarn: needs model.rope_original_positions\n"
            "  `trireme --help-deck model` says what it means.");
  EXPECT_THAT(Refusal({rope, yarn, positions}), HasSubstr("yarn: needs model.rope_factor"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=llama3", factor}),
              HasSubstr("llama3: needs model.rope_original_positions"));
  EXPECT_EQ(Refusal({rope, "model.rope_scaling=linear", factor}), "");
  EXPECT_EQ(Refusal({}, "[model]\nposition = rope\nrope_factor = 4\n"),
            "a.in:3: model.rope_factor = 4: is no number of model.rope_scaling = none\n"
            "  Leave it out, or choose the scaling that it belongs to.");
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=linear", factor, positions}),
              HasSubstr("model.rope_original_positions = 64: is no number of"));
  EXPECT_THAT(Refusal({rope, yarn, factor, positions, "model.rope_low_frequency_factor=2"}),
              HasSubstr("model.rope_low_frequency_factor = 2: is no number of"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=llama3", factor, positions,
                       "model.rope_attention_factor=1.5"}),
              HasSubstr("model.rope_attention_factor = 1.5: is no number of"));
  // Defaults that a resolved deck states are no numbers of another kind.
  EXPECT_EQ(Refusal({rope, "model.rope_beta_fast=32", "model.rope_high_frequency_factor=4"}), "");
}

TEST(ModelOptions, ScalingsThatMeanNothingAreRefused) {
  const std::string rope = "model.position=rope", yarn = "model.rope_scaling=yarn";
  const std::string factor = "model.rope_factor=4", positions = "model.rope_original_positions=64";
  EXPECT_EQ(Refusal({"model.rope_scaling=linear", factor}),
            "command line: model.rope_scaling = linear: scales rotary positions, which this model "
            "does not have\n"
            "  What fits: model.position = rope, or model.rope_scaling = none.");
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=linear", "model.rope_factor=0.5"}),
              HasSubstr("model.rope_factor = 0.5: must be 1 or larger"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=llama3", factor, positions,
                       "model.rope_low_frequency_factor=4"}),
              HasSubstr("must lie below model.rope_high_frequency_factor = 4"));
  EXPECT_THAT(Refusal({rope, yarn, factor, positions, "model.rope_beta_slow=32"}),
              HasSubstr("must lie below model.rope_beta_fast = 32"));
  EXPECT_THAT(Refusal({rope, yarn, factor, positions, "model.rope_theta=1"}),
              HasSubstr("must lie above 1"));
  EXPECT_THAT(Refusal({rope, "model.rope_scaling=dynamic"}), HasSubstr("not one of none, linear"));
}

// Numbers of a plain Python program of the published formulas in double precision
// (transformers' modeling_rope_utils.py computes the same in fp32).
struct Golden {
  std::vector<std::string> keys;
  double magnitude;
  std::vector<std::pair<std::size_t, double>> frequencies;  // pair, radians
};
const Golden kGoldens[] = {
    {{"model.preset=llama3_1b"},
     1,
     {{0, 1.0},
      {1, 0.6636012376960885},
      {14, 0.0032114459947525913},
      {15, 0.001290547928209264},
      {16, 0.00042955679655936815},
      {17, 9.70828780262767e-05},
      {18, 1.9461638184831125e-05},
      {31, 9.418306725434909e-08}}},
    {{"model.preset=llama3_8b"},
     1,
     {{28, 0.0032114459947525913},
      {29, 0.002166570763503359},
      {32, 0.0005248461609929547},
      {34, 0.00017850781276799638},
      {36, 7.78465527393245e-05},
      {63, 3.068925988914511e-07}}},
    // Qwen2 beyond 32,768 tokens, as its model card says; the ramp from pair 23 to pair 40.
    {{"model.position=rope", "model.dim=3584", "model.heads=28", "model.rope_theta=1000000",
      "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_positions=32768"},
     1.138629436111989,
     {{0, 1.0},
      {10, 0.1154781984689458},
      {23, 0.006978305848598663},
      {24, 0.005375321490790102},
      {30, 0.0010643609812470017},
      {39, 6.490394320837028e-05},
      {40, 4.445698525097307e-05},
      {63, 3.102344401879299e-07}}},
    {{"model.position=rope", "model.dim=64", "model.heads=1", "model.rope_scaling=yarn",
      "model.rope_factor=16", "model.rope_original_positions=4096"},
     1.2772588722239782,
     {{10, 0.056234132519034905},
      {11, 0.039128569789286714},
      {15, 0.00852684377296741},
      {22, 0.00023938376673600877},
      {23, 8.334508951020775e-05},
      {31, 8.334508951020775e-06}}}};

TEST(RopeAngles, AreThePublishedOnes) {
  constexpr double kRounding = 1e-14;  // relative
  for (const Golden& golden : kGoldens) {
    const Options options = OptionsOf(golden.keys);
    const model::RopeAngles angles = model::RopeAnglesOf(options);
    ASSERT_EQ(std::ssize(angles.frequencies), options.head_dim / 2);
    EXPECT_NEAR(angles.magnitude, golden.magnitude, kRounding);
    for (const auto& [pair, value] : golden.frequencies) {
      EXPECT_NEAR(angles.frequencies.at(pair) / value, 1, kRounding)
          << golden.keys.front() << " " << pair;
    }
  }
}

// Every pair, against the published code's steps.
TEST(RopeAngles, EqualThePlainReference) {
  constexpr double kRounding = 1e-14;
  for (const RopeScaling scaling :
       {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kYarn, RopeScaling::kLlama3}) {
    for (const std::int64_t head_dim : {2, 6, 64, 128}) {
      for (const double theta : {100.0, 10'000.0, 1e6}) {
        for (const std::int64_t positions : {4, 100, 8192}) {
          Options o;
          o.head_dim = head_dim;
          o.rope_theta = theta;
          o.rope_scaling = scaling;
          o.rope_factor = 8;
          o.rope_original_positions = positions;
          const model::RopeAngles got = model::RopeAnglesOf(o);
          const RotaryTurns wanted = TurnsOf(o);
          ASSERT_EQ(got.frequencies.size(), wanted.frequencies.size());
          EXPECT_NEAR(got.magnitude / wanted.magnitude, 1, kRounding);
          for (std::size_t i = 0; i < wanted.frequencies.size(); ++i) {
            EXPECT_NEAR(got.frequencies[i] / wanted.frequencies[i], 1, kRounding)
                << static_cast<int>(scaling) << " " << head_dim << " " << theta << " " << i;
          }
        }
      }
    }
  }
}

TEST(RopeAngles, AGivenAttentionFactorReplacesTheFormula) {
  const Options options =
      OptionsOf({"model.position=rope", "model.rope_scaling=yarn", "model.rope_factor=4",
                 "model.rope_original_positions=64", "model.rope_attention_factor=1.5"});
  EXPECT_EQ(model::RopeAnglesOf(options).magnitude, 1.5);
}

// The bits of the table without scaling are those of the formula that it has always been.
TEST(RopeAngles, PlainTablesAreUnchanged) {
  constexpr std::int64_t kRows = 50, kDim = 10;
  constexpr double kTheta = 10'000;
  Options o;
  o.head_dim = kDim;
  o.rope_theta = kTheta;
  const model::RopeAngles angles = model::RopeAnglesOf(o);
  std::vector<float> values(kRows * kDim);
  kernels::RopeTable(angles.frequencies, angles.magnitude,
                     {values.data(), Dtype::kFloat32, kRows, kDim, kDim});
  for (std::int64_t t = 0; t < kRows; ++t) {
    for (std::int64_t i = 0; i < kDim / 2; ++i) {
      const double angle = static_cast<double>(t) * std::pow(kTheta, -2.0 * static_cast<double>(i) /
                                                                         static_cast<double>(kDim));
      const auto at = static_cast<std::size_t>(t * kDim + i);
      EXPECT_EQ(values[at], static_cast<float>(std::cos(angle)));
      EXPECT_EQ(values[at + kDim / 2], static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace
}  // namespace trireme::test
