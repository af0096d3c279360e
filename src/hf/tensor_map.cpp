// The map of tensors of each family.
#include "tensor_map.hpp"

#include <fmt/format.h>

#include <utility>

namespace trireme::hf {

namespace {

using model::Options;

// The tensor of one parameter, stored as it is.
MappedTensor Alone(const std::string& name, const std::string& parameter,
                   const tensor::Shape& shape) {
  return {.name = name, .shape = shape, .parts = {{parameter, shape, 0}}};
}

// A linear layer's weight and, if it has one, its bias. parameter: "blocks.0.ffn.up"
void AddLinear(std::vector<MappedTensor>& map, const std::string& name,
               const std::string& parameter, std::int64_t rows, std::int64_t columns, bool bias) {
  map.push_back(Alone(name + ".weight", parameter + ".weight", {rows, columns}));
  if (bias) map.push_back(Alone(name + ".bias", parameter + ".bias", {rows}));
}

void AddNorm(std::vector<MappedTensor>& map, const std::string& name, const std::string& parameter,
             std::int64_t dim, bool bias) {
  map.push_back(Alone(name + ".weight", parameter + ".weight", {dim}));
  if (bias) map.push_back(Alone(name + ".bias", parameter + ".bias", {dim}));
}

// GPT-2's Conv1D: the weight is stored as [inputs, outputs]; several layers may be one.
void AddConv(std::vector<MappedTensor>& map, const std::string& name,
             const std::vector<std::string>& parameters, std::int64_t rows, std::int64_t columns) {
  const std::int64_t all = rows * std::ssize(parameters);
  MappedTensor weight{.name = name + ".weight", .shape = {columns, all}, .transposed = true};
  MappedTensor bias{.name = name + ".bias", .shape = {all}};
  for (const std::string& parameter : parameters) {
    const std::int64_t begin = rows * std::ssize(weight.parts);
    weight.parts.push_back({parameter + ".weight", {rows, columns}, begin});
    bias.parts.push_back({parameter + ".bias", {rows}, begin});
  }
  map.push_back(std::move(weight));
  map.push_back(std::move(bias));
}

void AddGpt2Block(std::vector<MappedTensor>& map, std::int64_t layer, const Options& o) {
  const std::string from = fmt::format("transformer.h.{}.", layer);
  const std::string to = fmt::format("blocks.{}.", layer);
  const std::string attention = to + "attention.";
  AddNorm(map, from + "ln_1", to + "attention.norm", o.dim, true);
  AddConv(map, from + "attn.c_attn", {attention + "query", attention + "key", attention + "value"},
          o.dim, o.dim);
  AddConv(map, from + "attn.c_proj", {attention + "output"}, o.dim, o.dim);
  AddNorm(map, from + "ln_2", to + "ffn.norm", o.dim, true);
  AddConv(map, from + "mlp.c_fc", {to + "ffn.up"}, o.ffn, o.dim);
  AddConv(map, from + "mlp.c_proj", {to + "ffn.down"}, o.dim, o.ffn);
}

void AddLlamaBlock(std::vector<MappedTensor>& map, std::int64_t layer, const Options& o) {
  const std::string from = fmt::format("model.layers.{}.", layer);
  const std::string to = fmt::format("blocks.{}.", layer);
  const std::int64_t queries = o.heads * o.head_dim, keys = o.kv_heads * o.head_dim;
  AddNorm(map, from + "input_layernorm", to + "attention.norm", o.dim, false);
  const std::vector<std::pair<const char*, const char*>> projections = {
      {"q_proj", "query"}, {"k_proj", "key"}, {"v_proj", "value"}};
  const auto rows = [&](const char* name) { return name[0] == 'q' ? queries : keys; };
  for (const auto& [theirs, ours] : projections) {
    AddLinear(map, from + "self_attn." + theirs, to + "attention." + ours, rows(ours), o.dim,
              false);
  }
  for (const auto& [theirs, ours] : projections) {
    if (!o.qkv_bias) break;
    map.push_back(Alone(from + "self_attn." + theirs + ".bias", to + "attention." + ours + ".bias",
                        {rows(ours)}));
  }
  if (o.qk_norm) {
    AddNorm(map, from + "self_attn.q_norm", to + "attention.query_norm", o.head_dim, false);
    AddNorm(map, from + "self_attn.k_norm", to + "attention.key_norm", o.head_dim, false);
  }
  AddLinear(map, from + "self_attn.o_proj", to + "attention.output", o.dim, queries, false);
  AddNorm(map, from + "post_attention_layernorm", to + "ffn.norm", o.dim, false);
  AddLinear(map, from + "mlp.gate_proj", to + "ffn.gate", o.ffn, o.dim, false);
  AddLinear(map, from + "mlp.up_proj", to + "ffn.up", o.ffn, o.dim, false);
  AddLinear(map, from + "mlp.down_proj", to + "ffn.down", o.dim, o.ffn, false);
}

bool Ends(const std::string& name, const char* with) { return name.ends_with(with); }

}  // namespace

std::vector<MappedTensor> MapTensors(Family family, const Options& o) {
  const bool gpt2 = family == Family::kGpt2;
  const tensor::Shape table = {o.vocabulary, o.dim};
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
  if (family != Family::kGpt2) return Ends(name, ".rotary_emb.inv_freq");
  return Ends(name, ".attn.bias") || Ends(name, ".attn.masked_bias");
}

}  // namespace trireme::hf
