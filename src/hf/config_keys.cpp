// Reading members of a config.json, and the lists of those that are kept or refused.
#include "config_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "trireme/deck/shown.hpp"

namespace trireme::hf {

namespace {

// Keys that do not change what the weights compute: names, tokens, training, generation, caches.
constexpr std::array<std::string_view, 66> kKept = {"_attn_implementation_autoset",
                                                    "_commit_hash",
                                                    "_name_or_path",
                                                    "architectures",
                                                    "bad_words_ids",
                                                    "begin_suppress_tokens",
                                                    "bos_token_id",
                                                    "chunk_size_feed_forward",
                                                    "decoder_start_token_id",
                                                    "diversity_penalty",
                                                    "do_sample",
                                                    "dtype",
                                                    "early_stopping",
                                                    "encoder_no_repeat_ngram_size",
                                                    "eos_token_id",
                                                    "exponential_decay_length_penalty",
                                                    "finetuning_task",
                                                    "forced_bos_token_id",
                                                    "forced_eos_token_id",
                                                    "gradient_checkpointing",
                                                    "id2label",
                                                    "initializer_range",
                                                    "is_decoder",
                                                    "label2id",
                                                    "length_penalty",
                                                    "max_length",
                                                    "max_window_layers",
                                                    "min_length",
                                                    "model_type",
                                                    "n_ctx",
                                                    "no_repeat_ngram_size",
                                                    "num_beam_groups",
                                                    "num_beams",
                                                    "num_return_sequences",
                                                    "output_attentions",
                                                    "output_hidden_states",
                                                    "output_past",
                                                    "output_scores",
                                                    "pad_token_id",
                                                    "predict_special_tokens",
                                                    "prefix",
                                                    "problem_type",
                                                    "remove_invalid_values",
                                                    "repetition_penalty",
                                                    "return_dict",
                                                    "return_dict_in_generate",
                                                    "sep_token_id",
                                                    "suppress_tokens",
                                                    "summary_activation",
                                                    "summary_first_dropout",
                                                    "summary_proj_to_labels",
                                                    "summary_type",
                                                    "summary_use_proj",
                                                    "task_specific_params",
                                                    "temperature",
                                                    "tf_legacy_loss",
                                                    "tie_encoder_decoder",
                                                    "tokenizer_class",
                                                    "top_k",
                                                    "top_p",
                                                    "torch_dtype",
                                                    "torchscript",
                                                    "transformers_version",
                                                    "typical_p",
                                                    "use_bfloat16",
                                                    "use_cache"};

// Keys that change the function, or the meaning of the weights, and why they are refused unless
// they say no.
const std::map<std::string, const char*>& Refused() {
  constexpr const char* kExperts = "mixtures of experts are not computed";
  constexpr const char* kScaled = "a factor that the model does not have";
  constexpr const char* kCode = "the model's code lies in the folder, and none of it is run";
  static const std::map<std::string, const char*> refused = {
      {"add_cross_attention", "there is no encoder"},
      {"attention_multiplier", kScaled},
      {"attn_logit_softcapping", kScaled},
      {"auto_map", kCode},
      {"cross_attention_hidden_size", "there is no encoder"},
      {"embedding_multiplier", kScaled},
      {"final_logit_softcapping", kScaled},
      {"is_encoder_decoder", "there is no encoder"},
      {"logit_scale", kScaled},
      {"logits_scaling", kScaled},
      {"n_routed_experts", kExperts},
      {"no_rope_layers", "all layers have rotary positions"},
      {"num_experts", kExperts},
      {"num_experts_per_tok", kExperts},
      {"num_local_experts", kExperts},
      {"pruned_heads", "all layers have the same heads"},
      {"quantization_config", "quantised weights are not read"},
      {"query_pre_attn_scalar", kScaled},
      {"residual_multiplier", kScaled},
      {"text_config", "a model of text alone is expected"},
      {"vision_config", "a model of text alone is expected"},
  };
  return refused;
}

bool SaysNo(const nlohmann::json& value) {
  const bool empty = (value.is_array() || value.is_object()) && value.empty();
  return value.is_null() || value == false || value == 0 || empty;
}

}  // namespace

ConfigKeys::ConfigKeys(const nlohmann::json& json, const std::string& where)
    : json_(json), where_(where), object_(json, where) {}

bool ConfigKeys::Has(const std::string& name) {
  read_.insert(name);
  return json_.contains(name) && !json_.at(name).is_null();
}

std::int64_t ConfigKeys::Integer(const std::string& name) {
  read_.insert(name);
  return object_.Integer(name, 1);
}

std::int64_t ConfigKeys::IntegerOr(const std::string& name, std::int64_t fallback) {
  return Has(name) ? object_.Integer(name, 1) : fallback;
}

double ConfigKeys::RealOr(const std::string& name, double fallback) {
  return Has(name) ? object_.Real(name, 0) : fallback;
}

bool ConfigKeys::TruthOr(const std::string& name, bool fallback) {
  return Has(name) ? object_.Truth(name) : fallback;
}

std::string ConfigKeys::TextOr(const std::string& name, const std::string& fallback) {
  return Has(name) ? object_.Text(name) : fallback;
}

void ConfigKeys::Demand(const std::string& name, const nlohmann::json& fallback,
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

Error ConfigKeys::Complain(const std::string& name, const std::string& reason,
                           const std::string& hint) const {
  const std::string value = json_.contains(name) ? deck::Brief(json_.at(name)) : "missing";
  return InputError(fmt::format("{}: {} = {}: {}", where_, deck::Shown(name), value, reason),
                    hint);
}

std::vector<std::string> ConfigKeys::Unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : json_.items()) {
    if (!read_.contains(name)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> CheckOtherKeys(const ConfigKeys& config) {
  std::vector<std::string> unknown;
  for (const std::string& name : config.Unread()) {
    const auto refused = Refused().find(name);
    if (refused != Refused().end()) {
      if (!SaysNo(config.At(name))) throw config.Complain(name, refused->second);
      continue;
    }
    if (std::find(kKept.begin(), kKept.end(), name) == kKept.end()) unknown.push_back(name);
  }
  return unknown;
}

}  // namespace trireme::hf
