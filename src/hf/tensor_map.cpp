// The map from tensors to parameters, for each family.
#include "tensor_map.hpp"

#include <fmt/format.h>
#include <utility>

namespace trireme::hf {

namespace {

// A tensor that is one parameter, stored unchanged.
MappedTensor Alone(const std::string& name, const std::string& parameter,
                   const kernels::Shape& shape) {
  return {.name = name, .shape = shape, .parts = {{parameter, shape, 0}}};
}

// A tensor that is one parameter [rows, columns], stored transposed.
MappedTensor Across(const std::string& name, const std::string& parameter, std::int64_t rows,
                    std::int64_t columns) {
  return {.name = name,
          .shape = {columns, rows},
          .transposed = true,
          .parts = {{parameter, {rows, columns}, 0}}};
}

void AddNorm(std::vector<MappedTensor>& map, const std::string& name, const std::string& parameter,
             std::int64_t dim, bool bias) {
  map.push_back(Alone(name + ".weight", parameter + ".weight", {dim}));
  if (bias) map.push_back(Alone(name + ".bias", parameter + ".bias", {dim}));
}

// Adds a Conv1D layer of GPT-2, whose weight is [inputs, outputs]. It consists of one or several
// parameters [outputs, inputs], which are stored transposed side by side.
void AddConv(std::vector<MappedTensor>& map, const std::string& name,
             const std::vector<std::string>& parameters, std::int64_t outputs,
             std::int64_t inputs) {
  const std::int64_t all = outputs * std::ssize(parameters);
  MappedTensor weight{.name = name + ".weight", .shape = {inputs, all}, .transposed = true};
  MappedTensor bias{.name = name + ".bias", .shape = {all}};
  for (const std::string& parameter : parameters) {
    const std::int64_t begin = outputs * std::ssize(weight.parts);
    weight.parts.push_back({parameter + ".weight", {outputs, inputs}, begin});
    bias.parts.push_back({parameter + ".bias", {outputs}, begin});
  }
  map.push_back(std::move(weight));
  map.push_back(std::move(bias));
}

// Adds a Conv1D layer of GPT-2 whose parameter has the same layout here: [inputs, outputs].
void AddConvAlike(std::vector<MappedTensor>& map, const std::string& name,
                  const std::string& parameter, std::int64_t inputs, std::int64_t outputs) {
  map.push_back(Alone(name + ".weight", parameter + ".weight", {inputs, outputs}));
  map.push_back(Alone(name + ".bias", parameter + ".bias", {outputs}));
}

void AddGpt2Block(std::vector<MappedTensor>& map, std::int64_t layer, const model::Options& o) {
  const std::string from = fmt::format("transformer.h.{}.", layer);
  const std::string to = fmt::format("blocks.{}.", layer);
  const std::string attention = to + "attention.";
  AddNorm(map, from + "ln_1", to + "attention.norm", o.dim, true);
  AddConv(map, from + "attn.c_attn", {attention + "query", attention + "key", attention + "value"},
          o.dim, o.dim);
  AddConvAlike(map, from + "attn.c_proj", attention + "output", o.dim, o.dim);
  AddNorm(map, from + "ln_2", to + "ffn.norm", o.dim, true);
  AddConv(map, from + "mlp.c_fc", {to + "ffn.up"}, o.ffn, o.dim);
  AddConvAlike(map, from + "mlp.c_proj", to + "ffn.down", o.ffn, o.dim);
}

void AddLlamaBlock(std::vector<MappedTensor>& map, std::int64_t layer, const model::Options& o) {
  const std::string from = fmt::format("model.layers.{}.", layer);
  const std::string to = fmt::format("blocks.{}.", layer);
  const std::int64_t queries = o.heads * o.head_dim, keys = o.kv_heads * o.head_dim;
  AddNorm(map, from + "input_layernorm", to + "attention.norm", o.dim, false);
  if (o.qk_norm) {
    AddNorm(map, from + "self_attn.q_norm", to + "attention.query_norm", o.head_dim, false);
    AddNorm(map, from + "self_attn.k_norm", to + "attention.key_norm", o.head_dim, false);
  }
  const std::vector<std::pair<const char*, const char*>> projections = {
      {"q_proj", "query"}, {"k_proj", "key"}, {"v_proj", "value"}};
  const auto rows = [&](const char* name) { return name[0] == 'q' ? queries : keys; };
  for (const auto& [theirs, ours] : projections) {
    map.push_back(Alone(from + "self_attn." + theirs + ".weight",
                        to + "attention." + ours + ".weight", {rows(ours), o.dim}));
  }
  for (const auto& [theirs, ours] : projections) {
    if (!o.qkv_bias) break;
    map.push_back(Alone(from + "self_attn." + theirs + ".bias", to + "attention." + ours + ".bias",
                        {rows(ours)}));
  }
  map.push_back(
      Across(from + "self_attn.o_proj.weight", to + "attention.output.weight", queries, o.dim));
  AddNorm(map, from + "post_attention_layernorm", to + "ffn.norm", o.dim, false);
  map.push_back(Alone(from + "mlp.gate_proj.weight", to + "ffn.gate.weight", {o.ffn, o.dim}));
  map.push_back(Alone(from + "mlp.up_proj.weight", to + "ffn.up.weight", {o.ffn, o.dim}));
  map.push_back(Across(from + "mlp.down_proj.weight", to + "ffn.down.weight", o.ffn, o.dim));
}

MappedTensor Halved(MappedTensor tensor) {
  tensor.halves = true;
  return tensor;
}

void AddMarianAttention(std::vector<MappedTensor>& map, const std::string& from,
                        const std::string& to, std::int64_t dim) {
  const std::vector<std::pair<const char*, const char*>> projections = {
      {"q_proj", "query"}, {"k_proj", "key"}, {"v_proj", "value"}};
  for (const auto& [theirs, ours] : projections) {
    const std::string parameter = to + "." + ours;
    map.push_back(
        Halved(Alone(from + "." + theirs + ".weight", parameter + ".weight", {dim, dim})));
    map.push_back(Alone(from + "." + theirs + ".bias", parameter + ".bias", {dim}));
  }
  map.push_back(Halved(Across(from + ".out_proj.weight", to + ".output.weight", dim, dim)));
  map.push_back(Halved(Alone(from + ".out_proj.bias", to + ".output.bias", {dim})));
}

void AddMarianNorm(std::vector<MappedTensor>& map, const std::string& from, const std::string& to,
                   std::int64_t dim) {
  for (const char* const kind : {".weight", ".bias"}) {
    map.push_back(Halved(Alone(from + kind, to + kind, {dim})));
  }
}

void AddMarianBlock(std::vector<MappedTensor>& map, std::int64_t block, const model::Options& o) {
  const bool decodes = block >= o.encoder_layers;
  const std::string from = fmt::format("model.{}.layers.{}.", decodes ? "decoder" : "encoder",
                                       decodes ? block - o.encoder_layers : block);
  const std::string to = fmt::format("blocks.{}.", block);
  AddMarianAttention(map, from + "self_attn", to + "attention", o.dim);
  AddMarianNorm(map, from + "self_attn_layer_norm", to + "attention.norm", o.dim);
  if (decodes) {
    AddMarianAttention(map, from + "encoder_attn", to + "cross", o.dim);
    AddMarianNorm(map, from + "encoder_attn_layer_norm", to + "cross.norm", o.dim);
  }
  map.push_back(Halved(Alone(from + "fc1.weight", to + "ffn.up.weight", {o.ffn, o.dim})));
  map.push_back(Alone(from + "fc1.bias", to + "ffn.up.bias", {o.ffn}));
  map.push_back(Halved(Across(from + "fc2.weight", to + "ffn.down.weight", o.ffn, o.dim)));
  map.push_back(Halved(Alone(from + "fc2.bias", to + "ffn.down.bias", {o.dim})));
  AddMarianNorm(map, from + "final_layer_norm", to + "ffn.norm", o.dim);
}

// Leaves out position tables and logit biases, which transformers computes or sets to zero.
std::vector<MappedTensor> MapMarian(const model::Options& o) {
  const kernels::Shape table = {o.vocabulary, o.dim};
  std::vector<MappedTensor> map = {
      Halved(Alone("model.shared.weight", "embedding.token.weight", table))};
  for (std::int64_t block = 0; block < o.Blocks(); ++block) AddMarianBlock(map, block, o);
  const bool tied = o.tie_embeddings;
  // transformers stores tied embeddings once; untied ones again for each of the two stacks.
  for (const char* const stack : {"encoder", "decoder"}) {
    if (tied) break;
    map.push_back(Halved(Alone(fmt::format("model.{}.embed_tokens.weight", stack),
                               "embedding.token.weight", table)));
  }
  map.push_back(
      Halved(Alone("lm_head.weight", tied ? "embedding.token.weight" : "head.weight", table)));
  map.back().copy = tied;
  return map;
}

}  // namespace

std::vector<MappedTensor> MapTensors(Family family, const model::Options& o) {
  if (family == Family::kMarian) return MapMarian(o);
  const bool gpt2 = family == Family::kGpt2;
  const kernels::Shape table = {o.vocabulary, o.dim};
  const char* const embedding = gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  std::vector<MappedTensor> map = {Alone(embedding, "embedding.token.weight", table)};
  if (gpt2) {
    map.push_back(
        Alone("transformer.wpe.weight", "embedding.position.weight", {o.max_positions, o.dim}));
  }
  for (std::int64_t layer = 0; layer < o.layers; ++layer) {
    if (gpt2) {
      AddGpt2Block(map, layer, o);
    } else {
      AddLlamaBlock(map, layer, o);
    }
  }
  AddNorm(map, gpt2 ? "transformer.ln_f" : "model.norm", "norm", o.dim, gpt2);
  const bool tied = o.tie_embeddings;
  map.push_back(Alone("lm_head.weight", tied ? "embedding.token.weight" : "head.weight", table));
  map.back().copy = tied;
  return map;
}

std::string OptionalPrefix(Family family) { return family == Family::kGpt2 ? "transformer." : ""; }

bool IsBuffer(Family family, const std::string& name) {
  if (family != Family::kGpt2) return name.ends_with(".rotary_emb.inv_freq");
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace trireme::hf
