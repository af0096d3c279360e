// A table of small odd architectures that together take every choice of the model.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "trireme/model/options.hpp"

namespace trireme::test {

struct Configuration {
  std::string name;
  model::Options options;
  double label_smoothing = 0;
  double z_loss = 0;
};

inline void PrintTo(const Configuration& configuration, std::ostream* stream) {
  *stream << configuration.name;
}

// heads * head_dim = dim and no dropout; the configurations change what they are about.
inline model::Options SmallOptions() {
  model::Options options;
  options.preset = "none";
  options.vocabulary = 23;
  options.dim = 12;
  options.heads = 3;
  options.kv_heads = 3;
  options.head_dim = 4;
  options.layers = 2;
  options.ffn = 17;
  options.max_positions = 9;
  return options;
}

inline Configuration MakeConfiguration(const std::string& name, double label_smoothing,
                                       void (*change)(model::Options&)) {
  Configuration configuration{name, SmallOptions(), label_smoothing};
  change(configuration.options);
  return configuration;
}

// Every pair (norm, place of the norm) x activation x position, each with the remaining choices
// varied.
inline std::vector<Configuration> AllProducts() {
  std::vector<Configuration> table;
  int number = 0;
  for (const auto norm : {model::Norm::kLayerNorm, model::Norm::kRmsNorm}) {
    for (const auto place : {model::NormPosition::kPre, model::NormPosition::kPost}) {
      for (const auto activation :
           {model::Activation::kRelu, model::Activation::kGelu, model::Activation::kSwiglu}) {
        for (const auto position :
             {model::Position::kSinusoidal, model::Position::kLearned, model::Position::kRope}) {
          Configuration entry{"Product" + std::to_string(number), SmallOptions(),
                              number % 4 == 1 ? 0.1 : 0.0};
          entry.options.norm = norm;
          entry.options.norm_position = place;
          entry.options.activation = activation;
          entry.options.position = position;
          entry.options.kv_heads = number % 2 == 0 ? 1 : 3;
          entry.options.bias = number % 3 != 0;
          entry.options.qkv_bias = number % 7 < 3 ? !entry.options.bias : entry.options.bias;
          entry.options.qk_norm = number % 5 == 2;
          entry.options.tie_embeddings = number / 2 % 2 == 0;
          entry.options.scale_embedding = number % 5 < 2;
          entry.options.dropout = number % 3 == 1 ? 0.2 : 0;
          entry.options.attention_dropout = number % 3 == 2 ? 0.3 : 0;
          entry.options.ffn_dropout = number % 4 == 3 ? 0.25 : 0;
          table.push_back(entry);
          ++number;
        }
      }
    }
  }
  return table;
}

inline std::vector<Configuration> AllConfigurations() {
  using model::Options;
  std::vector<Configuration> table = AllProducts();
  table.push_back(MakeConfiguration("EveryDropout", 0.1, [](Options& o) {
    o.dropout = 0.15;
    o.attention_dropout = 0.25;
    o.ffn_dropout = 0.35;
  }));
  table.push_back(MakeConfiguration("EveryDropoutLlama", 0, [](Options& o) {
    o.norm = model::Norm::kRmsNorm;
    o.activation = model::Activation::kSwiglu;
    o.position = model::Position::kRope;
    o.kv_heads = 1;
    o.bias = o.qkv_bias = o.tie_embeddings = false;
    o.dropout = o.attention_dropout = o.ffn_dropout = 0.5;
  }));
  // Whole words and branches, before and after a norm, alone and with dropout of elements. No
  // branch is dropped for all sequences, in which case its weights would have no gradient.
  table.push_back(MakeConfiguration("WordAndLayerDropout", 0.1, [](Options& o) {
    o.word_dropout = 0.4;
    o.layer_dropout = 0.2;
  }));
  table.push_back(MakeConfiguration("WordAndLayerDropoutPostNorm", 0, [](Options& o) {
    o.norm_position = model::NormPosition::kPost;
    o.position = model::Position::kSinusoidal;
    o.scale_embedding = true;
    o.word_dropout = 0.3;
    o.layer_dropout = 0.25;
    o.dropout = 0.2;
  }));
  table.push_back(MakeConfiguration("WeightDropout", 0, [](Options& o) {
    o.weight_dropout = 0.3;
    o.kv_heads = 1;
  }));
  table.push_back(MakeConfiguration("WeightDropoutLlama", 0.1, [](Options& o) {
    o.norm = model::Norm::kRmsNorm;
    o.activation = model::Activation::kSwiglu;
    o.position = model::Position::kRope;
    o.bias = o.qkv_bias = o.tie_embeddings = false;
    o.weight_dropout = 0.2;
    o.dropout = 0.1;
    o.qk_norm = true;
  }));
  // Attention wider than the residual stream, two query heads a key head, features across two
  // counters.
  table.push_back(MakeConfiguration("WideGroupedHeads", 0, [](Options& o) {
    o.heads = 4;
    o.kv_heads = 2;
    o.head_dim = 10;
    o.position = model::Position::kRope;
    o.rope_theta = 100;
    o.attention_dropout = 0.4;
  }));
  // Qwen 2 and Qwen 3: biases of queries, keys and values alone; norms of heads.
  table.push_back(MakeConfiguration("Qwen2", 0, [](Options& o) {
    o.norm = model::Norm::kRmsNorm;
    o.activation = model::Activation::kSwiglu;
    o.position = model::Position::kRope;
    o.kv_heads = 1;
    o.bias = o.tie_embeddings = false;
  }));
  table.push_back(MakeConfiguration("Qwen3", 0, [](Options& o) {
    o.norm = model::Norm::kRmsNorm;
    o.activation = model::Activation::kSwiglu;
    o.position = model::Position::kRope;
    o.heads = 4;
    o.kv_heads = 2;
    o.head_dim = 6;
    o.bias = o.qkv_bias = o.tie_embeddings = false;
    o.qk_norm = true;
  }));
  // Scaled rotations whose three kinds of pairs all occur.
  table.push_back(MakeConfiguration("LinearRotation", 0, [](Options& o) {
    o.position = model::Position::kRope;
    o.rope_scaling = model::RopeScaling::kLinear;
    o.rope_factor = 4;
  }));
  table.push_back(MakeConfiguration("YarnRotation", 0, [](Options& o) {
    o.position = model::Position::kRope;
    o.head_dim = 12;
    o.rope_theta = 50;
    o.rope_scaling = model::RopeScaling::kYarn;
    o.rope_factor = 4;
    o.rope_original_positions = 40;
    o.rope_beta_fast = 4;
    o.qk_norm = true;
  }));
  table.push_back(MakeConfiguration("Llama3Rotation", 0, [](Options& o) {
    o.position = model::Position::kRope;
    o.head_dim = 12;
    o.rope_theta = 50;
    o.rope_scaling = model::RopeScaling::kLlama3;
    o.rope_factor = 8;
    o.rope_original_positions = 40;
  }));
  table.push_back(
      MakeConfiguration("SampledSoftmax", 0, [](Options& o) { o.sampled_softmax = 9; }));
  table.push_back(MakeConfiguration("SampledSoftmaxOfAnUntiedHead", 0, [](Options& o) {
    o.sampled_softmax = 4;
    o.dropout = 0.2;
    o.tie_embeddings = false;
  }));
  for (const bool sampled : {false, true}) {
    table.push_back(MakeConfiguration(sampled ? "ZLossOfASample" : "ZLoss", sampled ? 0 : 0.1,
                                      [](Options& o) { o.tie_embeddings = false; }));
    table.back().options.sampled_softmax = sampled ? 9 : 0;
    table.back().z_loss = 0.2;
  }
  table.push_back(MakeConfiguration("Mup", 0.1, [](Options& o) {
    o.parametrization = model::Parametrization::kMup;
    o.mup_base = 5;
    o.mup_base_head_dim = 3;
    o.position = model::Position::kRope;
    o.kv_heads = 1;
  }));
  table.push_back(MakeConfiguration("MupOfAnUntiedHeadAfterNorms", 0, [](Options& o) {
    o.parametrization = model::Parametrization::kMup;
    o.mup_base = 4;
    o.norm_position = model::NormPosition::kPost;
    o.tie_embeddings = false;
    o.dropout = 0.2;
  }));
  table.push_back(MakeConfiguration("OneLayerOneHead", 0, [](Options& o) {
    o.layers = o.heads = o.kv_heads = 1;
    o.head_dim = 5;
    o.position = model::Position::kSinusoidal;
  }));
  return table;
}

}  // namespace trireme::test
