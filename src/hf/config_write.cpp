// FamilyOf and MakeConfig: keys of [model] become a config.json.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/hf/config.hpp"

namespace trireme::hf {

namespace {

using model::RopeScaling;

// A key that a family computes with one value only.
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

// Padding has eos's id, which masks of attention tell from it.
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
  constexpr double kEpsilon = 1e-5;  // of nn.LayerNorm
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
