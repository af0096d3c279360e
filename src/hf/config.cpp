// Translates config.json into keys of [model], and keys of [model] into config.json.
#include "trireme/hf/config.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <set>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/hf/weights.hpp"

namespace trireme::hf {

namespace {

// The members of a config.json, read by name. It remembers which names were read.
class ConfigKeys {
 public:
  // where: "model/config.json", or a place in it, for messages. Both must outlive this object.
  ConfigKeys(const nlohmann::json& json, const std::string& where)
      : json_(json), where_(where), object_(json, where) {}

  // Whether the member exists and is not null.
  bool Has(const std::string& name) {
    read_.insert(name);
    return json_.contains(name) && !json_.at(name).is_null();
  }
  bool IsNull(const std::string& name) const {  // exists and is null
    return json_.contains(name) && json_.at(name).is_null();
  }
  const nlohmann::json& At(const std::string& name) const { return json_.at(name); }
  std::int64_t Integer(const std::string& name) {
    read_.insert(name);
    return object_.Integer(name, 1);
  }
  std::int64_t IntegerOr(const std::string& name, std::int64_t fallback) {
    return Has(name) ? object_.Integer(name, 1) : fallback;
  }
  double RealOr(const std::string& name, double fallback) {
    return Has(name) ? object_.Real(name, 0) : fallback;
  }
  bool TruthOr(const std::string& name, bool fallback) {
    return Has(name) ? object_.Truth(name) : fallback;
  }
  std::string TextOr(const std::string& name, const std::string& fallback) {
    return Has(name) ? object_.Text(name) : fallback;
  }
  // Throws unless the member's value is one of `computed`. A missing member counts as `fallback`.
  void Demand(const std::string& name, const nlohmann::json& fallback,
              const std::vector<nlohmann::json>& computed) {
    read_.insert(name);
    const bool absent = !json_.contains(name);
    const nlohmann::json& value = absent ? fallback : json_.at(name);
    if (std::find(computed.begin(), computed.end(), value) != computed.end()) return;
    std::vector<std::string> texts;
    for (const nlohmann::json& each : computed) texts.push_back(each.dump());
    const std::string reason = fmt::format("only {} is computed", fmt::join(texts, " or "));
    if (!absent) throw Complain(name, reason);
    throw InputError(fmt::format("{}: {} is missing and counts as {}: {}", where_, name,
                                 deck::Brief(value), reason));
  }

  // The InputError "where: name = value: reason".
  Error Complain(const std::string& name, const std::string& reason,
                 const std::string& hint = {}) const {
    const std::string value = json_.contains(name) ? deck::Brief(json_.at(name)) : "missing";
    return InputError(fmt::format("{}: {} = {}: {}", where_, deck::Shown(name), value, reason),
                      hint);
  }
  // Names of the members that none of the functions above has read.
  std::vector<std::string> Unread() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : json_.items()) {
      if (!read_.contains(name)) names.push_back(name);
    }
    return names;
  }

 private:
  const nlohmann::json& json_;
  const std::string& where_;
  deck::JsonObject object_;
  std::set<std::string> read_;
};

// Keys that do not change what the weights compute, separated by blanks: names, tokens, training,
// generation, caches.
constexpr const char* kKept =
    "_attn_implementation_autoset _commit_hash _name_or_path architectures bad_words_ids "
    "begin_suppress_tokens bos_token_id chunk_size_feed_forward decoder_start_token_id "
    "diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size "
    "eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing id2label initializer_range is_decoder "
    "label2id length_penalty max_length max_window_layers min_length model_type n_ctx "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions "
    "output_hidden_states output_past output_scores pad_token_id predict_special_tokens "
    "prefix problem_type remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate sep_token_id suppress_tokens summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj "
    "task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class "
    "top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 "
    "use_cache";

// Keys that change the computation or the meaning of the weights, each list after its reason. They
// are refused unless their values are null, false, 0, [] or {}.
constexpr std::pair<const char*, const char*> kRefused[] = {
    {"there is no encoder", "add_cross_attention cross_attention_hidden_size is_encoder_decoder"},
    {"a factor that the model does not have",
     "attention_multiplier attn_logit_softcapping embedding_multiplier final_logit_softcapping "
     "logit_scale logits_scaling query_pre_attn_scalar residual_multiplier"},
    {"the model's code lies in the folder, and none of it is run", "auto_map"},
    {"mixtures of experts are not computed",
     "n_routed_experts num_experts num_experts_per_tok num_local_experts"},
    {"all layers have rotary positions", "no_rope_layers"},
    {"all layers have the same heads", "pruned_heads"},
    {"quantised weights are not read", "quantization_config"},
    {"a model of text alone is expected", "text_config vision_config"}};

bool SaysNo(const nlohmann::json& value) {
  const bool empty = (value.is_array() || value.is_object()) && value.empty();
  return value.is_null() || value == false || value == 0 || empty;
}

// Throws InputError if a key of kRefused is in use. Returns the unread keys that are neither in
// kRefused nor in kKept.
std::vector<std::string> CheckOtherKeys(const ConfigKeys& config) {
  const auto lists = [](const char* words, const std::string& name) {
    return std::ranges::count(WordsIn(words), name) > 0;
  };
  std::vector<std::string> unknown;
  for (const std::string& name : config.Unread()) {
    const auto refused = std::ranges::find_if(
        kRefused, [&](const auto& reason) { return lists(reason.second, name); });
    if (refused == std::end(kRefused)) {
      if (!lists(kKept, name)) unknown.push_back(name);
    } else if (!SaysNo(config.At(name))) {
      throw config.Complain(name, refused->first);
    }
  }
  return unknown;
}

// Rotary positions in a config.json: rope_theta with rope_scaling, or, in newer versions,
// rope_parameters.

constexpr const char* kOld = "rope_scaling";
constexpr const char* kNew = "rope_parameters";

double Positive(ConfigKeys& keys, const std::string& name) {
  if (!keys.Has(name)) throw keys.Complain(name, "a number expected");
  return keys.RealOr(name, 0);
}

void ReadYarn(ConfigKeys& keys, std::int64_t positions, nlohmann::json& model) {
  const std::int64_t original = keys.IntegerOr("original_max_position_embeddings", positions);
  const double ratio = static_cast<double>(positions) / static_cast<double>(original);
  model["rope_factor"] = keys.RealOr("factor", ratio);
  model["rope_original_positions"] = original;
  model["rope_beta_fast"] = keys.RealOr("beta_fast", 32);
  model["rope_beta_slow"] = keys.RealOr("beta_slow", 1);
  model["rope_attention_factor"] = keys.RealOr("attention_factor", 0);
  keys.Demand("truncate", true, {true, nullptr});
  keys.Demand("mscale", nullptr, {nullptr});
  keys.Demand("mscale_all_dim", nullptr, {nullptr});
}

// where: "config.json: rope_scaling", for messages. positions: max_position_embeddings.
void ReadScaling(const nlohmann::json& json, const std::string& where, std::int64_t positions,
                 nlohmann::json& model) {
  ConfigKeys keys(json, where);
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) continue;
    throw keys.Complain(name,
                        "angles per type of layer are not computed: all layers have the same");
  }
  const std::string older = keys.TextOr("type", "default");
  const std::string type = keys.TextOr("rope_type", older);
  if (keys.Has("type") && older != type) {
    throw keys.Complain("type", fmt::format("rope_type says \"{}\"", type));
  }
  model["rope_theta"] = keys.RealOr("rope_theta", model.at("rope_theta").get<double>());
  keys.Demand("partial_rotary_factor", 1, {1, nullptr});
  const std::string name = type == "default" ? "none" : type;
  model["rope_scaling"] = name;
  if (name == "linear") {
    model["rope_factor"] = Positive(keys, "factor");
  } else if (name == "llama3") {
    model["rope_factor"] = Positive(keys, "factor");
    model["rope_low_frequency_factor"] = Positive(keys, "low_freq_factor");
    model["rope_high_frequency_factor"] = Positive(keys, "high_freq_factor");
    model["rope_original_positions"] = keys.Integer("original_max_position_embeddings");
  } else if (name == "yarn") {
    ReadYarn(keys, positions, model);
  } else if (name != "none") {
    throw keys.Complain(keys.Has("rope_type") ? "rope_type" : "type",
                        "only default, linear, llama3 and yarn are computed");
  }
  const std::vector<std::string> others = keys.Unread();
  if (others.empty()) return;
  throw keys.Complain(others.front(), fmt::format("not known for the type \"{}\"", type),
                      "Take it out if it does not change the angles.");
}

// Reads rotary positions: theta, the kind of scaling and its numbers. Throws InputError for a kind
// that the model does not have.
void ReadRope(ConfigKeys& config, const std::string& where, nlohmann::json& model) {
  constexpr double kTheta = 10000;
  const std::int64_t positions = config.Integer("max_position_embeddings");
  model["rope_theta"] = config.RealOr("rope_theta", kTheta);
  model["rope_scaling"] = "none";
  config.Demand("partial_rotary_factor", 1, {1, nullptr});
  const bool older = config.Has(kOld), newer = config.Has(kNew);
  nlohmann::json other = model;
  if (newer) ReadScaling(config.At(kNew), where + ": " + kNew, positions, model);
  if (!older) return;
  if (!newer) return ReadScaling(config.At(kOld), where + ": " + kOld, positions, model);
  other["rope_theta"] = model["rope_theta"];
  ReadScaling(config.At(kOld), where + ": " + kOld, positions, other);
  if (other == model) return;
  throw config.Complain(kNew, fmt::format("{} says something else", kOld), "Leave one of them.");
}

// ParseConfig: config.json to keys of [model].

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
  // Both are GELU in its tanh approximation, as in GPT-2.
  config.Demand("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.Demand("scale_attn_weights", true, {true});
  config.Demand("scale_attn_by_inverse_layer_idx", false, {false});
  config.Demand("reorder_and_upcast_attn", false, {false});
  constexpr double kDropout = 0.1;  // default of the published code
  const double residual = config.RealOr("resid_pdrop", kDropout);
  if (residual != config.RealOr("embd_pdrop", kDropout)) {
    throw config.Complain("embd_pdrop",
                          fmt::format("resid_pdrop is {}: one number is both here", residual));
  }
  model["dropout"] = residual;
  model["attention_dropout"] = config.RealOr("attn_pdrop", kDropout);
}

// A layer_types list is accepted if it has "full_attention" for each layer, which is the default.
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
  // null means as many as heads. If the member is missing, families other than Llama have various
  // defaults, so it is required.
  const bool stated = family == Family::kLlama || config.IsNull("num_key_value_heads");
  model["kv_heads"] = stated ? config.IntegerOr("num_key_value_heads", heads)
                             : config.Integer("num_key_value_heads");
  constexpr std::int64_t kQwen3HeadDim = 128;  // default, whatever hidden_size is
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
    static_cast<void>(config.Has("sliding_window"));  // ignored, since the window is off
  } else {
    constexpr std::int64_t kMistralWindow = 4096;  // default
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
  config.model = {
      {"norm_position", "pre"}, {"scale_embedding", false}, {"parametrization", "standard"}};
  if (config.family == Family::kGpt2) {
    ReadGpt2(keys, config.model);
  } else {
    ReadLlama(keys, path, config.family, config.model);
  }
  config.unknown = CheckOtherKeys(keys);
  return config;
}

// FamilyOf and MakeConfig: keys of [model] to config.json.

namespace {

using model::RopeScaling;

// A key of [model], and whether a family of transformers supports the value that the model has.
struct Need {
  const char* key;
  bool met;
};

void Require(const std::vector<Need>& needs, const char* families, const deck::Deck& deck) {
  const auto missed =
      std::find_if(needs.begin(), needs.end(), [](const Need& need) { return !need.met; });
  if (missed == needs.end()) return;
  throw deck.Complain(fmt::format("model.{}", missed->key),
                      fmt::format("no {} model of transformers computes this", families),
                      "export writes GPT-2, Llama, Qwen2, Qwen3 and Marian models: "
                      "doc/hugging_face.md lists their keys.");
}

nlohmann::json RopeJson(const model::Options& o) {
  switch (o.rope_scaling) {
    case RopeScaling::kNone:
      return nullptr;
    case RopeScaling::kLinear:
      return {{"factor", o.rope_factor}, {"rope_type", "linear"}};
    case RopeScaling::kLlama3:
      return {{"factor", o.rope_factor},
              {"high_freq_factor", o.rope_high_frequency_factor},
              {"low_freq_factor", o.rope_low_frequency_factor},
              {"original_max_position_embeddings", o.rope_original_positions},
              {"rope_type", "llama3"}};
    case RopeScaling::kYarn:
      break;
  }
  nlohmann::json yarn = {{"beta_fast", o.rope_beta_fast},
                         {"beta_slow", o.rope_beta_slow},
                         {"factor", o.rope_factor},
                         {"original_max_position_embeddings", o.rope_original_positions},
                         {"rope_type", "yarn"}};
  if (o.rope_attention_factor != 0) yarn["attention_factor"] = o.rope_attention_factor;
  return yarn;
}

nlohmann::json Gpt2Json(const model::Options& o) {
  return {{"activation_function", "gelu_new"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"attn_pdrop", o.attention_dropout},
          {"embd_pdrop", o.dropout},
          {"initializer_range", o.init_deviation},
          {"layer_norm_epsilon", o.norm_epsilon},
          {"n_embd", o.dim},
          {"n_head", o.heads},
          {"n_inner", o.ffn},
          {"n_layer", o.layers},
          {"n_positions", o.max_positions},
          {"reorder_and_upcast_attn", false},
          {"resid_pdrop", o.dropout},
          {"scale_attn_by_inverse_layer_idx", false},
          {"scale_attn_weights", true}};
}

nlohmann::json LlamaJson(Family family, const model::Options& o) {
  const char* const architecture = family == Family::kQwen2   ? "Qwen2ForCausalLM"
                                   : family == Family::kQwen3 ? "Qwen3ForCausalLM"
                                                              : "LlamaForCausalLM";
  nlohmann::json json = {{"architectures", {architecture}},
                         {"attention_dropout", o.attention_dropout},
                         {"head_dim", o.head_dim},
                         {"hidden_act", "silu"},
                         {"hidden_size", o.dim},
                         {"initializer_range", o.init_deviation},
                         {"intermediate_size", o.ffn},
                         {"max_position_embeddings", o.max_positions},
                         {"num_attention_heads", o.heads},
                         {"num_hidden_layers", o.layers},
                         {"num_key_value_heads", o.kv_heads},
                         {"rms_norm_eps", o.norm_epsilon},
                         {"rope_scaling", RopeJson(o)},
                         {"rope_theta", o.rope_theta}};
  if (family != Family::kQwen2) json["attention_bias"] = false;
  if (family == Family::kLlama) json["mlp_bias"] = false;
  if (family != Family::kLlama) json["use_sliding_window"] = false;
  return json;
}

// The padding token shares eos's id, since attention masks mark padding.
nlohmann::json MarianJson(const model::Options& o, std::int64_t eos) {
  const bool relu = o.activation == model::Activation::kRelu;
  return {{"activation_dropout", o.ffn_dropout},
          {"activation_function", relu ? "relu" : "gelu_new"},
          {"architectures", {"MarianMTModel"}},
          {"attention_dropout", o.attention_dropout},
          {"d_model", o.dim},
          {"decoder_attention_heads", o.heads},
          {"decoder_ffn_dim", o.ffn},
          {"decoder_layers", o.layers},
          {"decoder_start_token_id", eos},
          {"decoder_vocab_size", o.vocabulary},
          {"dropout", o.dropout},
          {"encoder_attention_heads", o.heads},
          {"encoder_ffn_dim", o.ffn},
          {"encoder_layers", o.encoder_layers},
          {"forced_eos_token_id", nullptr},
          {"init_std", o.init_deviation},
          {"is_encoder_decoder", true},
          {"max_position_embeddings", o.max_positions},
          {"pad_token_id", eos},
          {"scale_embedding", o.scale_embedding},
          {"share_encoder_decoder_embeddings", true}};
}

void RequireMarian(const model::Options& o, const deck::Deck& deck) {
  constexpr double kEpsilon = 1e-5;  // default of nn.LayerNorm
  Require({{"norm_position", o.norm_position == model::NormPosition::kPost},
           {"norm", o.norm == model::Norm::kLayerNorm},
           {"norm_epsilon", o.norm_epsilon == kEpsilon},
           {"position", o.position == model::Position::kSinusoidal},
           {"dim", o.dim % 2 == 0},
           {"activation", o.activation != model::Activation::kSwiglu},
           {"bias", o.bias},
           {"qkv_bias", o.qkv_bias},
           {"qk_norm", !o.qk_norm},
           {"kv_heads", o.kv_heads == o.heads},
           {"head_dim", o.heads * o.head_dim == o.dim},
           {"shared_vocabulary", o.shared_vocabulary}},
          "encoder-decoder", deck);
}

}  // namespace

Family FamilyOf(const model::Options& o, const deck::Deck& deck) {
  if (o.parametrization != model::Parametrization::kStandard) {
    throw deck.Complain("model.parametrization",
                        "no model of transformers divides logits by a factor of the width",
                        "Only models of model.parametrization = standard can be exported.");
  }
  if (o.Translates()) {
    RequireMarian(o, deck);
    return Family::kMarian;
  }
  Require({{"norm_position", o.norm_position == model::NormPosition::kPre},
           {"scale_embedding", !o.scale_embedding}},
          "decoder", deck);
  if (o.norm == model::Norm::kLayerNorm) {
    Require({{"position", o.position == model::Position::kLearned},
             {"activation", o.activation == model::Activation::kGelu},
             {"bias", o.bias},
             {"qkv_bias", o.qkv_bias},
             {"qk_norm", !o.qk_norm},
             {"kv_heads", o.kv_heads == o.heads},
             {"head_dim", o.heads * o.head_dim == o.dim}},
            "LayerNorm", deck);
    return Family::kGpt2;
  }
  Require({{"position", o.position == model::Position::kRope},
           {"activation", o.activation == model::Activation::kSwiglu},
           {"bias", !o.bias},
           {"qkv_bias", !o.qkv_bias || !o.qk_norm}},
          "RMSNorm", deck);
  return o.qk_norm ? Family::kQwen3 : o.qkv_bias ? Family::kQwen2 : Family::kLlama;
}

nlohmann::json MakeConfig(Family family, const model::Options& o, const std::string& dtype,
                          std::int64_t eos) {
  nlohmann::json json = family == Family::kGpt2     ? Gpt2Json(o)
                        : family == Family::kMarian ? MarianJson(o, eos)
                                                    : LlamaJson(family, o);
  if (eos >= 0) json["bos_token_id"] = json["eos_token_id"] = eos;
  json["model_type"] = NameOf(family);
  json["tie_word_embeddings"] = o.tie_embeddings;
  json["torch_dtype"] = dtype;
  json["use_cache"] = true;
  json["vocab_size"] = o.vocabulary;
  return json;  // in alphabetical order
}

}  // namespace trireme::hf
