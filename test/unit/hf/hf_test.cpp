// Model folders of Hugging Face: config.json, elements, names of tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tensor_map.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/schema.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/weights.hpp"

namespace trireme::hf {
namespace {

using testing::HasSubstr;

// Texts of config.json as published models have them.

constexpr const char* kGpt2 = R"({
  "activation_function": "gelu_new",
  "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1,
  "bos_token_id": 50256,
  "embd_pdrop": 0.1,
  "eos_token_id": 50256,
  "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2",
  "n_ctx": 1024,
  "n_embd": 768,
  "n_head": 12,
  "n_layer": 12,
  "n_positions": 1024,
  "resid_pdrop": 0.1,
  "summary_activation": null,
  "summary_first_dropout": 0.1,
  "summary_proj_to_labels": true,
  "summary_type": "cls_index",
  "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257
})";

constexpr const char* kLlama2 = R"({
  "_name_or_path": "meta-llama/Llama-2-7b-hf",
  "architectures": ["LlamaForCausalLM"],
  "bos_token_id": 1,
  "eos_token_id": 2,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "initializer_range": 0.02,
  "intermediate_size": 11008,
  "max_position_embeddings": 4096,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 32,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": null,
  "tie_word_embeddings": false,
  "torch_dtype": "float16",
  "transformers_version": "4.31.0.dev0",
  "use_cache": true,
  "vocab_size": 32000
})";

constexpr const char* kLlama31 = R"({
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 128000,
  "eos_token_id": 128001,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "initializer_range": 0.02,
  "intermediate_size": 14336,
  "max_position_embeddings": 131072,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3"
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.43.0.dev0",
  "use_cache": true,
  "vocab_size": 128256
})";

constexpr const char* kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009],
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "initializer_range": 0.02,
  "intermediate_size": 8192,
  "max_position_embeddings": 131072,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 16,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3"
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0",
  "use_cache": true,
  "vocab_size": 128256
})";

constexpr const char* kMistral = R"({
  "architectures": ["MistralForCausalLM"],
  "attention_dropout": 0.0,
  "bos_token_id": 1,
  "eos_token_id": 2,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "initializer_range": 0.02,
  "intermediate_size": 14336,
  "max_position_embeddings": 32768,
  "model_type": "mistral",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0,
  "sliding_window": null,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.42.0.dev0",
  "use_cache": true,
  "vocab_size": 32768
})";

constexpr const char* kQwen25 = R"({
  "architectures": ["Qwen2ForCausalLM"],
  "attention_dropout": 0.0,
  "bos_token_id": 151643,
  "eos_token_id": 151643,
  "hidden_act": "silu",
  "hidden_size": 896,
  "initializer_range": 0.02,
  "intermediate_size": 4864,
  "max_position_embeddings": 32768,
  "max_window_layers": 24,
  "model_type": "qwen2",
  "num_attention_heads": 14,
  "num_hidden_layers": 24,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0,
  "sliding_window": 32768,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1",
  "use_cache": true,
  "use_mrope": false,
  "use_sliding_window": false,
  "vocab_size": 151936
})";

// As version 5 of transformers writes it.
constexpr const char* kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 151643,
  "dtype": "bfloat16",
  "eos_token_id": 151645,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 1024,
  "initializer_range": 0.02,
  "intermediate_size": 3072,
  "layer_types": ["full_attention", "full_attention"],
  "max_position_embeddings": 40960,
  "max_window_layers": 28,
  "model_type": "qwen3",
  "num_attention_heads": 16,
  "num_hidden_layers": 2,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06,
  "rope_parameters": {
    "attention_factor": 1.5,
    "beta_fast": 30.0,
    "factor": 4.0,
    "original_max_position_embeddings": 10240,
    "rope_theta": 1000000.0,
    "rope_type": "yarn"
  },
  "sliding_window": null,
  "tie_word_embeddings": true,
  "transformers_version": "5.0.0",
  "use_cache": true,
  "use_sliding_window": false,
  "vocab_size": 151936
})";

// Configurations of published models, there and back.

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
  refused("parametrization", [](auto& o) {
    o.parametrization = model::Parametrization::kMup;
    o.mup_base = 64;
  });
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

// Half precision, all values of it, and what is not finite.

// The value by its definition.
double Half(int bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(HfElements, EveryHalfThereAndBack) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7c00) == 0x7c00) {
      EXPECT_TRUE(std::isinf(FromHalf(half)));
      continue;
    }
    ASSERT_EQ(FromHalf(half), Half(bits)) << bits;
    ASSERT_EQ(ToHalf(FromHalf(half)), half);
  }
}

TEST(HfElements, RoundsToTheNearestHalfTiesToEven) {
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const double low = Half(bits), high = Half(bits + 1), middle = (low + high) / 2;
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(ToHalf(static_cast<float>(middle)), even) << bits;
    const auto nearer = [&](float to) { return std::nextafter(static_cast<float>(middle), to); };
    ASSERT_EQ(ToHalf(nearer(-1)), bits);
    ASSERT_EQ(ToHalf(nearer(1e6F)), bits + 1);
    ASSERT_EQ(ToHalf(-nearer(1e6F)), (bits + 1) | 0x8000);
  }
  EXPECT_EQ(ToHalf(65519.9F), 0x7bff);
  EXPECT_EQ(ToHalf(65520), 0x7c00);
  EXPECT_EQ(ToHalf(1e30F), 0x7c00);
}

TEST(HfElements, FindsTheFirstThatIsNotFinite) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  std::vector<float> values(10000, 1.5F), out(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  EXPECT_EQ(Widen(Stored::kF32, values.data(), count, out.data()), kAllFinite);
  EXPECT_EQ(out, values);
  values[7000] = -kInfinite;
  values[6000] = std::nanf("");
  EXPECT_EQ(Widen(Stored::kF32, values.data(), count, out.data()), 6000);
  values.assign(values.size(), 1e5F);
  std::vector<std::uint16_t> halves(values.size());
  EXPECT_EQ(Narrow(Dtype::kFloat32, values.data(), count, Stored::kF16, halves.data()), 0);
  EXPECT_EQ(Narrow(Dtype::kFloat32, values.data(), count, Stored::kBf16, halves.data()),
            kAllFinite);
  std::vector<double> wide(values.size(), 0.1);
  wide[9999] = 1e300;
  EXPECT_EQ(Narrow(Dtype::kFloat64, wide.data(), count, Stored::kF32, out.data()), 9999);
  EXPECT_EQ(out[0], 0.1F);
  const std::vector<std::uint16_t> stored = {0x3f80, 0x7f80, 0x7fc0};  // bf16: 1, infinite, NaN
  EXPECT_EQ(Widen(Stored::kBf16, stored.data(), 3, out.data()), 1);
  EXPECT_EQ(out[0], 1);
}

TEST(HfElements, TransposesWindows) {
  constexpr std::int64_t kRows = 70, kColumns = 45, kWide = 100;
  std::vector<std::uint32_t> in(kColumns * kWide), out(kRows * kWide, 0);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint32_t>(i);
  Transpose(4, {reinterpret_cast<char*>(in.data() + 3), kWide},
            {reinterpret_cast<char*>(out.data() + 5), kWide}, kRows, kColumns);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kWide; ++c) {
      const bool inside = c >= 5 && c < kColumns + 5;
      const auto wanted = inside ? static_cast<std::uint32_t>((c - 5) * kWide + r + 3) : 0;
      ASSERT_EQ(out[static_cast<std::size_t>(r * kWide + c)], wanted);
    }
  }
}

// The map of names holds each parameter once, and plans cut it as transformers does.

model::Options Small(Family family) {
  model::Options o;
  o.vocabulary = 50;
  o.dim = 8;
  o.heads = 4;
  o.kv_heads = family == Family::kGpt2 ? 4 : 2;
  o.head_dim = family == Family::kQwen3 ? 6 : 2;
  o.layers = 3;
  o.ffn = 12;
  o.max_positions = 16;
  if (family == Family::kGpt2) return o;
  o.norm = model::Norm::kRmsNorm;
  o.activation = model::Activation::kSwiglu;
  o.position = model::Position::kRope;
  o.bias = false;
  o.qkv_bias = family == Family::kQwen2;
  o.qk_norm = family == Family::kQwen3;
  return o;
}

class HfTensorMap : public testing::TestWithParam<Family> {};

TEST_P(HfTensorMap, HoldsEachParameterOnce) {
  for (const bool tied : {true, false}) {
    model::Options options = Small(GetParam());
    options.tie_embeddings = tied;
    std::set<std::string> names, parameters;
    std::int64_t elements = 0;
    for (const MappedTensor& tensor : MapTensors(GetParam(), options)) {
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      EXPECT_EQ(tensor.copy, tied && tensor.name == "lm_head.weight");
      std::int64_t rows = 0;
      for (const MappedPart& part : tensor.parts) {
        EXPECT_EQ(part.begin, rows) << part.name;
        rows += part.shape.front();
        EXPECT_EQ(kernels::ElementCount(part.shape), part.shape.front() * tensor.Columns());
        const bool first = parameters.insert(part.name).second;
        EXPECT_NE(first, tensor.copy) << part.name;
      }
      EXPECT_EQ(rows, tensor.Rows()) << tensor.name;
      if (!tensor.copy) elements += tensor.Elements();
    }
    EXPECT_EQ(elements, model::ParameterCount(options));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HfTensorMap,
                         testing::Values(Family::kGpt2, Family::kLlama, Family::kMistral,
                                         Family::kQwen2, Family::kQwen3),
                         [](const auto& family) { return std::string(NameOf(family.param)); });

TEST(HfTensorMapNames, Buffers) {
  EXPECT_TRUE(IsBuffer(Family::kGpt2, "h.3.attn.bias"));
  EXPECT_TRUE(IsBuffer(Family::kGpt2, "transformer.h.3.attn.masked_bias"));
  EXPECT_FALSE(IsBuffer(Family::kGpt2, "h.3.attn.c_attn.bias"));
  EXPECT_TRUE(IsBuffer(Family::kLlama, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsBuffer(Family::kLlama, "model.layers.0.self_attn.q_proj.weight"));
}

// Tensors in the model's order, as many in a file as its size allows; by name within a file.
TEST(HfExportPlan, CutsIntoFiles) {
  const model::Options options = Small(Family::kLlama);
  const Options whole{.path = "out", .dtype = Storage::kBf16, .shard_bytes = 1'000'000};
  const ExportPlan one = PlanAfresh(Family::kLlama, options, whole);
  ASSERT_EQ(one.listing.files.size(), 1);
  EXPECT_FALSE(one.listing.indexed);
  EXPECT_EQ(one.listing.files.front().name, "model.safetensors");
  Options cut = whole;
  cut.shard_bytes = 1000;
  const ExportPlan several = PlanAfresh(Family::kLlama, options, cut);
  ASSERT_GT(several.listing.files.size(), 2);
  EXPECT_TRUE(several.listing.indexed);
  std::size_t tensors = 0;
  for (const ListedFile& file : several.listing.files) {
    std::int64_t bytes = 0;
    std::string before;
    for (const checkpoint::StoredTensor& tensor : file.contents.tensors) {
      EXPECT_EQ(tensor.dtype, "BF16");
      EXPECT_LT(before, tensor.name);
      before = tensor.name;
      bytes += tensor.bytes;
    }
    EXPECT_LE(bytes, cut.shard_bytes);
    tensors += file.contents.tensors.size();
  }
  EXPECT_EQ(tensors, one.listing.files.front().contents.tensors.size());
  EXPECT_EQ(several.listing.files[0].name,
            "model-00001-of-0000" + std::to_string(several.listing.files.size()) + ".safetensors");
  EXPECT_EQ(several.listing.files[0].contents.tensors.front().name, "model.embed_tokens.weight");
}

TEST(HfListing, TextAndBack) {
  const Options options{.path = "out", .dtype = Storage::kFp16, .shard_bytes = 1000};
  const Listing listing = PlanAfresh(Family::kQwen3, Small(Family::kQwen3), options).listing;
  EXPECT_EQ(ToText(FromText(ToText(listing), "listing")), ToText(listing));
  EXPECT_THAT(IndexText(listing), testing::HasSubstr("\"total_size\": "));
}

}  // namespace
}  // namespace trireme::hf
