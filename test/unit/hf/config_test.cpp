// Configurations of published models, there and back.
#include "trireme/hf/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "config_samples.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/schema.hpp"

namespace trireme::hf {
namespace {

using testing::HasSubstr;

deck::Schema ModelSchema() {
  deck::Schema schema;
  model::Declare(schema);
  return schema;
}

std::string AsDeck(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Options of a deck with a configuration's keys.
model::Options OptionsOf(const nlohmann::json& model) {
  const deck::Schema schema = ModelSchema();
  std::string text = "[model]\n";
  for (const auto& [name, value] : model.items()) text += name + " = " + AsDeck(value) + "\n";
  deck::Deck deck = deck::Deck::Parse(schema, text, "deck", {});
  model::Resolve(deck);
  model::Options options = model::Read(deck);
  options.vocabulary = options.asked_vocabulary;
  return options;
}

Family FamilyFor(const model::Options& options) {
  const deck::Schema schema = ModelSchema();
  return FamilyOf(options, deck::Deck::Parse(schema, "", "deck", {}));
}

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "nothing was thrown";
}

// The configuration that is written for a read one means the same.
void ExpectBack(const char* text, Family family) {
  const Config config = ParseConfig(text, "config.json");
  const model::Options options = OptionsOf(config.model);
  EXPECT_EQ(FamilyFor(options), family);
  const std::string written = MakeConfig(family, options, "float32", 7).dump();
  Config again = ParseConfig(written, "config.json");
  EXPECT_EQ(again.model, config.model) << written;
  EXPECT_THAT(again.unknown, testing::IsEmpty());
}

TEST(HfConfig, Gpt2) {
  const Config config = ParseConfig(kGpt2, "config.json");
  EXPECT_EQ(config.family, Family::kGpt2);
  EXPECT_THAT(config.unknown, testing::IsEmpty());
  const model::Options o = OptionsOf(config.model);
  EXPECT_EQ(o.vocabulary, 50257);
  EXPECT_EQ(o.dim, 768);
  EXPECT_EQ(o.ffn, 3072);
  EXPECT_EQ(o.head_dim, 64);
  EXPECT_EQ(o.max_positions, 1024);
  EXPECT_EQ(o.dropout, 0.1);
  EXPECT_EQ(o.attention_dropout, 0.1);
  EXPECT_TRUE(o.tie_embeddings && o.bias && o.qkv_bias);
  // Parameters of the published weights.
  EXPECT_EQ(model::ParameterCount(o), 124439808);
  ExpectBack(kGpt2, Family::kGpt2);
}

TEST(HfConfig, Llama2) {
  const Config config = ParseConfig(kLlama2, "config.json");
  EXPECT_EQ(config.family, Family::kLlama);
  EXPECT_THAT(config.unknown, testing::IsEmpty());
  const model::Options o = OptionsOf(config.model);
  EXPECT_EQ(model::ParameterCount(o), 6738415616);
  EXPECT_EQ(o.rope_theta, 10000);
  EXPECT_EQ(o.norm_epsilon, 1e-5);
  EXPECT_FALSE(o.tie_embeddings || o.bias || o.qkv_bias || o.qk_norm);
  ExpectBack(kLlama2, Family::kLlama);
}

TEST(HfConfig, Llama3WithScaledRotation) {
  const model::Options eight = OptionsOf(ParseConfig(kLlama31, "config.json").model);
  EXPECT_EQ(model::ParameterCount(eight), 8030261248);
  EXPECT_EQ(eight.kv_heads, 8);
  EXPECT_EQ(eight.rope_theta, 500000);
  EXPECT_EQ(eight.rope_scaling, model::RopeScaling::kLlama3);
  EXPECT_EQ(eight.rope_factor, 8);
  EXPECT_EQ(eight.rope_original_positions, 8192);
  ExpectBack(kLlama31, Family::kLlama);
  const model::Options one = OptionsOf(ParseConfig(kLlama32, "config.json").model);
  EXPECT_EQ(model::ParameterCount(one), 1235814400);
  EXPECT_EQ(one.rope_factor, 32);
  EXPECT_TRUE(one.tie_embeddings);
  ExpectBack(kLlama32, Family::kLlama);
}

// Mistral without a window computes a Llama model.
TEST(HfConfig, Mistral) {
  const Config config = ParseConfig(kMistral, "config.json");
  EXPECT_EQ(config.family, Family::kMistral);
  EXPECT_EQ(model::ParameterCount(OptionsOf(config.model)), 7248023552);
  ExpectBack(kMistral, Family::kLlama);
}

TEST(HfConfig, Qwen) {
  const Config two = ParseConfig(kQwen25, "config.json");
  EXPECT_EQ(two.family, Family::kQwen2);
  EXPECT_THAT(two.unknown, testing::ElementsAre("use_mrope"));
  const model::Options o = OptionsOf(two.model);
  EXPECT_EQ(model::ParameterCount(o), 494032768);
  EXPECT_TRUE(o.qkv_bias && !o.bias);
  ExpectBack(kQwen25, Family::kQwen2);
  const Config three = ParseConfig(kQwen3, "config.json");
  EXPECT_EQ(three.family, Family::kQwen3);
  EXPECT_THAT(three.unknown, testing::IsEmpty());
  const model::Options q = OptionsOf(three.model);
  EXPECT_EQ(q.head_dim, 128);
  EXPECT_EQ(q.rope_scaling, model::RopeScaling::kYarn);
  EXPECT_EQ(q.rope_theta, 1e6);
  EXPECT_EQ(q.rope_original_positions, 10240);
  EXPECT_EQ(q.rope_attention_factor, 1.5);
  EXPECT_EQ(q.rope_beta_fast, 30);
  EXPECT_EQ(q.rope_beta_slow, 1);
  EXPECT_TRUE(q.qk_norm && !q.qkv_bias);
  ExpectBack(kQwen3, Family::kQwen3);
}

TEST(HfConfig, DefaultsOfMissingKeys) {
  nlohmann::json config = nlohmann::json::parse(kQwen3);
  config.erase("head_dim");
  config.erase("rope_parameters");
  config.erase("tie_word_embeddings");
  const nlohmann::json model = ParseConfig(config.dump(), "config.json").model;
  EXPECT_EQ(model.at("head_dim"), 128);  // Qwen3's own, whatever the width
  EXPECT_EQ(model.at("rope_theta"), 10000);
  EXPECT_EQ(model.at("tie_embeddings"), false);
}

TEST(HfConfig, YarnFactorFromPositions) {
  nlohmann::json config = nlohmann::json::parse(kLlama2);
  config["rope_scaling"] = {{"type", "yarn"}, {"original_max_position_embeddings", 1024}};
  const nlohmann::json model = ParseConfig(config.dump(), "config.json").model;
  EXPECT_EQ(model.at("rope_factor"), 4);
}

TEST(HfConfig, RefusesBadText) {
  EXPECT_THAT(MessageOf([] { ParseConfig("{", "a/config.json"); }), HasSubstr("a/config.json: "));
  EXPECT_THAT(MessageOf([] { ParseConfig("[]", "config.json"); }), HasSubstr("an object expected"));
  EXPECT_THAT(MessageOf([] { ParseConfig("{}", "config.json"); }),
              HasSubstr("model_type = missing"));
  nlohmann::json both = nlohmann::json::parse(kQwen3);
  both["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2}};
  EXPECT_THAT(MessageOf([&] { ParseConfig(both.dump(), "config.json"); }),
              HasSubstr("rope_parameters = an object: rope_scaling says something else"));
  nlohmann::json odd = nlohmann::json::parse(kQwen3);
  odd["rope_parameters"]["type"] = "linear";
  EXPECT_THAT(MessageOf([&] { ParseConfig(odd.dump(), "config.json"); }),
              HasSubstr("type = \"linear\": rope_type says \"yarn\""));
}

TEST(HfConfig, NamesTheKeyThatNoFamilyHas) {
  const auto refused = [](const char* key, const std::function<void(model::Options&)>& change,
                          const char* text = kLlama2) {
    model::Options options = OptionsOf(ParseConfig(text, "config.json").model);
    change(options);
    EXPECT_THAT(MessageOf([&] { FamilyFor(options); }), HasSubstr(std::string("model.") + key));
  };
  refused("norm_position", [](auto& o) { o.norm_position = model::NormPosition::kPost; });
  refused("scale_embedding", [](auto& o) { o.scale_embedding = true; });
  refused("position", [](auto& o) { o.position = model::Position::kSinusoidal; });
  refused("activation", [](auto& o) { o.activation = model::Activation::kRelu; });
  refused("bias", [](auto& o) { o.bias = true; });
  refused("qkv_bias", [](auto& o) { o.qkv_bias = o.qk_norm = true; });
  refused(
      "activation", [](auto& o) { o.activation = model::Activation::kSwiglu; }, kGpt2);
  refused(
      "kv_heads", [](auto& o) { o.kv_heads = 4; }, kGpt2);
  refused(
      "head_dim", [](auto& o) { o.head_dim = 32; }, kGpt2);
  refused(
      "qk_norm", [](auto& o) { o.qk_norm = true; }, kGpt2);
}

}  // namespace
}  // namespace trireme::hf
