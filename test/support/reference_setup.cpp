// Names, shapes and random values of parameters and batches for the plain reference.
#include <random>

#include "reference_model.hpp"

namespace trireme::test {

std::vector<std::pair<std::string, std::vector<std::int64_t>>> ParameterShapes(
    const model::Options& options) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
  const std::int64_t dim = options.dim, ffn = options.ffn;
  const std::int64_t query = options.heads * options.head_dim;
  const std::int64_t kv = options.kv_heads * options.head_dim;
  const auto norm = [&](const std::string& name) {
    shapes.push_back({name + ".weight", {dim}});
    if (options.bias && options.norm == model::Norm::kLayerNorm) {
      shapes.push_back({name + ".bias", {dim}});
    }
  };
  const auto linear = [&](const std::string& name, std::int64_t rows, std::int64_t outputs,
                          bool bias) {
    shapes.push_back({name + ".weight", {rows, dim}});
    if (bias) shapes.push_back({name + ".bias", {outputs}});
  };
  shapes.push_back({"embedding.token.weight", {options.vocabulary, dim}});
  if (options.position == model::Position::kLearned) {
    shapes.push_back({"embedding.position.weight", {options.max_positions, dim}});
  }
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer) + ".";
    norm(block + "attention.norm");
    linear(block + "attention.query", query, query, options.qkv_bias);
    linear(block + "attention.key", kv, kv, options.qkv_bias);
    linear(block + "attention.value", kv, kv, options.qkv_bias);
    if (options.qk_norm) {
      shapes.push_back({block + "attention.query_norm.weight", {options.head_dim}});
      shapes.push_back({block + "attention.key_norm.weight", {options.head_dim}});
    }
    linear(block + "attention.output", query, dim, options.bias);
    norm(block + "ffn.norm");
    if (options.activation == model::Activation::kSwiglu) {
      linear(block + "ffn.gate", ffn, ffn, options.bias);
    }
    linear(block + "ffn.up", ffn, ffn, options.bias);
    linear(block + "ffn.down", ffn, dim, options.bias);
  }
  if (options.norm_position == model::NormPosition::kPre) norm("norm");
  if (!options.tie_embeddings) shapes.push_back({"head.weight", {options.vocabulary, dim}});
  return shapes;
}

Parameters RandomParameters(const model::Options& options, std::uint32_t seed, double scale) {
  std::mt19937_64 engine(seed);
  Parameters parameters;
  for (const auto& [name, extents] : ParameterShapes(options)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count *= extent;
    const bool norm_weight = name.ends_with("norm.weight");
    std::vector<double>& values = parameters[name];
    for (std::int64_t i = 0; i < count; ++i) {
      const double uniform = static_cast<double>(engine() >> 11) * 0x1p-52 - 1;  // [-1, 1)
      values.push_back(norm_weight ? 1 + 0.3 * uniform : scale * uniform);
    }
  }
  return parameters;
}

data::Entry RandomBatch(std::int64_t vocabulary, std::int64_t sequences, std::int64_t length,
                        std::int64_t masked, std::uint32_t seed) {
  std::mt19937_64 engine(seed);
  data::Entry batch;
  batch.sequences = sequences;
  batch.length = length;
  const std::int64_t tokens = sequences * length;
  const auto draw = [&] {
    return static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(vocabulary));
  };
  for (std::int64_t i = 0; i < tokens; ++i) {
    const bool real = i < tokens - masked;
    const std::int32_t input = draw(), target = draw();
    batch.inputs.push_back(real ? input : 0);
    batch.targets.push_back(real ? target : data::kMasked);
  }
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::uint64_t ordinal = 5 + 1001 * static_cast<std::uint64_t>(b);
    batch.ordinals.push_back(b + 1 < sequences ? ordinal : ordinal + (std::uint64_t{3} << 32));
  }
  batch.valid = tokens - masked;
  return batch;
}

}  // namespace trireme::test
