// Presets of model.preset: keys of known models and their values.
#include "presets.hpp"

namespace trireme::model {

namespace {

// The JSC course's Transformer (Vaswani et al. 2017 layers) for WikiText-2, here with a causal
// mask.
PresetValues Jsc() {
  return {{"dim", "128"},
          {"heads", "4"},
          {"layers", "2"},
          {"ffn", "2048"},
          {"norm", "layernorm"},
          {"norm_position", "post"},
          {"activation", "relu"},
          {"position", "sinusoidal"},
          {"bias", "yes"},
          {"tie_embeddings", "no"},
          {"scale_embedding", "yes"},
          {"dropout", "0.1"},
          {"attention_dropout", "0.1"},
          {"ffn_dropout", "0.1"},
          {"init", "xavier"}};
}

// GPT-2 (Radford et al. 2019): widths of table 2; dropout as in the published code.
PresetValues Gpt2(int dim, int heads, int layers) {
  return {{"dim", std::to_string(dim)},
          {"heads", std::to_string(heads)},
          {"layers", std::to_string(layers)},
          {"ffn", std::to_string(4 * dim)},
          {"max_positions", "1024"},
          {"norm", "layernorm"},
          {"norm_position", "pre"},
          {"activation", "gelu"},
          {"position", "learned"},
          {"bias", "yes"},
          {"tie_embeddings", "yes"},
          {"dropout", "0.1"},
          {"attention_dropout", "0.1"},
          {"init", "gpt2"}};
}

// Llama (Touvron et al. 2023) shrunk to course sizes: RMSNorm, SwiGLU, rotary positions, no biases.
PresetValues Llama(int dim, int heads, int kv_heads, int layers, int ffn) {
  return {{"dim", std::to_string(dim)},
          {"heads", std::to_string(heads)},
          {"kv_heads", std::to_string(kv_heads)},
          {"layers", std::to_string(layers)},
          {"ffn", std::to_string(ffn)},
          {"max_positions", "2048"},
          {"norm", "rmsnorm"},
          {"norm_position", "pre"},
          {"activation", "swiglu"},
          {"position", "rope"},
          {"bias", "no"},
          {"tie_embeddings", "yes"},
          {"init", "gpt2"}};
}

// Llama 3 (Grattafiori et al. 2024, table 3; 3.2's model cards for the two smaller ones). Rotary
// scaling of versions 3.1 and 3.2: contexts of 131,072 tokens after training on 8,192.
PresetValues Llama3(int dim, int heads, int layers, int ffn, const char* factor, bool tied) {
  constexpr int kHeadDim = 128, kSmallest = 2048;
  return {{"dim", std::to_string(dim)},
          {"heads", std::to_string(heads)},
          {"kv_heads", "8"},
          {"head_dim", std::to_string(dim == kSmallest ? kHeadDim / 2 : kHeadDim)},
          {"layers", std::to_string(layers)},
          {"ffn", std::to_string(ffn)},
          {"max_positions", "131072"},
          {"rope_theta", "500000"},
          {"rope_scaling", "llama3"},
          {"rope_factor", factor},
          {"rope_original_positions", "8192"},
          {"rope_low_frequency_factor", "1"},
          {"rope_high_frequency_factor", "4"},
          {"norm_epsilon", "1e-5"},
          {"norm", "rmsnorm"},
          {"norm_position", "pre"},
          {"activation", "swiglu"},
          {"position", "rope"},
          {"bias", "no"},
          {"tie_embeddings", tied ? "yes" : "no"},
          {"init", "gpt2"}};
}

}  // namespace

const std::vector<std::pair<std::string, PresetValues>>& Presets() {
  static const std::vector<std::pair<std::string, PresetValues>> presets = {
      {"jsc", Jsc()},
      {"gpt2_124m", Gpt2(768, 12, 12)},
      {"gpt2_355m", Gpt2(1024, 16, 24)},
      {"gpt2_774m", Gpt2(1280, 20, 36)},
      {"gpt2_1558m", Gpt2(1600, 25, 48)},
      {"llama_5m", Llama(128, 4, 2, 4, 384)},
      {"llama_15m", Llama(288, 6, 6, 6, 768)},
      {"llama_42m", Llama(512, 8, 8, 8, 1376)},
      {"llama_110m", Llama(768, 12, 12, 12, 2048)},
      {"llama3_1b", Llama3(2048, 32, 16, 8192, "32", true)},
      {"llama3_3b", Llama3(3072, 24, 28, 8192, "32", true)},
      {"llama3_8b", Llama3(4096, 32, 32, 14336, "8", false)},
      {"llama3_70b", Llama3(8192, 64, 80, 28672, "8", false)}};
  return presets;
}

}  // namespace trireme::model
