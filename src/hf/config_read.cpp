// ParseConfig: a config.json becomes keys of [model].
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <filesystem>

#include "config_keys.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/listing.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::hf {

namespace {

constexpr std::array<const char*, 6> kFamilies = {"gpt2",  "llama", "mistral",
                                                  "qwen2", "qwen3", "marian"};
constexpr std::int64_t kMostConfigBytes = std::int64_t{1} << 20;

void ReadGpt2(ConfigKeys& config, nlohmann::json& model) {
  const std::int64_t dim = config.Integer("n_embd"), heads = config.Integer("n_head");
  if (dim % heads != 0) {
    throw config.Complain("n_head", fmt::format("does not divide n_embd = {}", dim));
  }
  model["vocabulary"] = config.Integer("vocab_size");
  model["dim"] = dim;
  model["heads"] = model["kv_heads"] = heads;
  model["head_dim"] = dim / heads;
  model["layers"] = config.Integer("n_layer");
  model["ffn"] = config.IntegerOr("n_inner", 4 * dim);
  model["max_positions"] = config.Integer("n_positions");
  model["norm_epsilon"] = config.RealOr("layer_norm_epsilon", 1e-5);
  model["norm"] = "layernorm";
  model["activation"] = "gelu";
  model["position"] = "learned";
  model["bias"] = model["qkv_bias"] = true;
  model["qk_norm"] = false;
  model["tie_embeddings"] = config.TruthOr("tie_word_embeddings", true);
  // Both are GPT-2's form with the hyperbolic tangent.
  config.Demand("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.Demand("scale_attn_weights", true, {true});
  config.Demand("scale_attn_by_inverse_layer_idx", false, {false});
  config.Demand("reorder_and_upcast_attn", false, {false});
  constexpr double kDropout = 0.1;  // of the published code
  const double residual = config.RealOr("resid_pdrop", kDropout);
  if (residual != config.RealOr("embd_pdrop", kDropout)) {
    throw config.Complain("embd_pdrop",
                          fmt::format("resid_pdrop is {}: one number is both here", residual));
  }
  model["dropout"] = residual;
  model["attention_dropout"] = config.RealOr("attn_pdrop", kDropout);
}

// A list of "full_attention" alone, one a layer, says what is so without it.
void CheckLayerTypes(ConfigKeys& config, std::int64_t layers) {
  if (!config.Has("layer_types")) return;
  const nlohmann::json& types = config.At("layer_types");
  if (!types.is_array() || std::ssize(types) != layers) {
    throw config.Complain("layer_types",
                          fmt::format("a list of {} types expected, one a layer", layers));
  }
  for (const nlohmann::json& type : types) {
    if (type == "full_attention") continue;
    throw config.Complain("layer_types", fmt::format("only \"full_attention\" is computed, not {}",
                                                     deck::Brief(type)));
  }
}

void ReadLlama(ConfigKeys& config, const std::string& where, Family family, nlohmann::json& model) {
  const bool qwen = family == Family::kQwen2 || family == Family::kQwen3;
  const std::int64_t dim = config.Integer("hidden_size");
  const std::int64_t heads = config.Integer("num_attention_heads");
  model["vocabulary"] = config.Integer("vocab_size");
  model["dim"] = dim;
  model["heads"] = heads;
  // null says as many as heads. Without it the families other than Llama have defaults of their
  // own.
  const bool stated = family == Family::kLlama || config.IsNull("num_key_value_heads");
  model["kv_heads"] = stated ? config.IntegerOr("num_key_value_heads", heads)
                             : config.Integer("num_key_value_heads");
  constexpr std::int64_t kQwen3HeadDim = 128;  // unless stated, whatever the width
  const std::int64_t head_dim =
      config.IntegerOr("head_dim", family == Family::kQwen3 ? kQwen3HeadDim
                                   : dim % heads == 0       ? dim / heads
                                                            : 0);
  if (head_dim == 0) {
    throw config.Complain("num_attention_heads",
                          fmt::format("does not divide hidden_size = {}", dim));
  }
  model["head_dim"] = head_dim;
  model["layers"] = config.Integer("num_hidden_layers");
  model["ffn"] = config.Integer("intermediate_size");
  model["max_positions"] = config.Integer("max_position_embeddings");
  model["norm_epsilon"] = config.RealOr("rms_norm_eps", 1e-6);
  model["norm"] = "rmsnorm";
  model["activation"] = "swiglu";
  model["position"] = "rope";
  model["bias"] = false;
  model["qkv_bias"] = family == Family::kQwen2;
  model["qk_norm"] = family == Family::kQwen3;
  model["tie_embeddings"] = config.TruthOr("tie_word_embeddings", false);
  model["attention_dropout"] = config.RealOr("attention_dropout", 0);
  config.Demand("hidden_act", "silu", {"silu", "swish"});
  if (family != Family::kQwen2) config.Demand("attention_bias", false, {false});
  config.Demand("mlp_bias", false, {false});
  config.Demand("pretraining_tp", 1, {1, nullptr});
  CheckLayerTypes(config, model.at("layers").get<std::int64_t>());
  if (qwen) {
    config.Demand("use_sliding_window", false, {false});
    static_cast<void>(config.Has("sliding_window"));  // of no effect then
  } else {
    constexpr std::int64_t kMistralWindow = 4096;  // unless stated
    const nlohmann::json fallback =
        family == Family::kMistral ? nlohmann::json(kMistralWindow) : nlohmann::json();
    config.Demand("sliding_window", fallback, {nullptr});
  }
  ReadRope(config, where, model);
}

Family ReadFamily(ConfigKeys& config) {
  const std::string type = config.TextOr("model_type", "");
  for (std::size_t i = 0; i < kFamilies.size(); ++i) {
    const auto family = static_cast<Family>(i);
    if (type == kFamilies.at(i) && family != Family::kMarian) return family;
  }
  throw config.Complain("model_type", "only gpt2, llama, mistral, qwen2 and qwen3 are read");
}

}  // namespace

const char* NameOf(Family family) { return kFamilies.at(static_cast<std::size_t>(family)); }

std::string ReadConfigText(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    if (std::filesystem::exists(folder, ignored)) {
      RefuseForeignFile(folder);
      throw InputError(folder + ": is a file", "Let hf.path name the folder that holds it.");
    }
    throw InputError(fmt::format("{}: no such folder", folder), "Check hf.path.");
  }
  const std::string path = folder + "/" + kConfigFile;
  if (!std::filesystem::exists(path, ignored)) {
    throw NotAModel(folder, fmt::format("has no {}", kConfigFile));
  }
  RefuseForeignFile(path);
  return ReadText(path, kMostConfigBytes);
}

Config ParseConfig(const std::string& text, const std::string& path) {
  const nlohmann::json json = deck::ParseJson(text, path, kMostConfigBytes);
  ConfigKeys keys(json, path);
  Config config;
  config.family = ReadFamily(keys);
  config.model = {{"norm_position", "pre"}, {"scale_embedding", false}};
  if (config.family == Family::kGpt2) {
    ReadGpt2(keys, config.model);
  } else {
    ReadLlama(keys, path, config.family, config.model);
  }
  config.unknown = CheckOtherKeys(keys);
  return config;
}

}  // namespace trireme::hf
