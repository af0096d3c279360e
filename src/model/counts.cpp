// Numbers that follow from the options: parameters, floating-point operations, costs of parts.
#include <algorithm>

#include "trireme/model/options.hpp"

namespace trireme::model {

namespace {

// Elements of the matrices of queries and output, of keys and values, and of a block without
// cross-attention.
std::int64_t QueryMatrices(const Options& o) { return o.dim * o.head_dim * 2 * o.heads; }
std::int64_t KeyMatrices(const Options& o) { return o.dim * o.head_dim * 2 * o.kv_heads; }
std::int64_t BlockMatrices(const Options& o) {
  const std::int64_t up = o.activation == Activation::kSwiglu ? 2 : 1;
  return QueryMatrices(o) + KeyMatrices(o) + (up + 1) * o.dim * o.ffn;
}
// Blocks with cross-attention.
std::int64_t CrossBlocks(const Options& o) { return o.Translates() ? o.layers : 0; }

// Operations of a query of a block that sees `keys` keys, forward and backward.
double AttentionFlops(const Options& o, double keys) {
  return 12 * static_cast<double>(o.heads * o.head_dim) * keys;
}

}  // namespace

std::int64_t ParameterCount(const Options& o) {
  const bool norm_bias = o.bias && o.norm == Norm::kLayerNorm;
  const std::int64_t norm = o.dim * (norm_bias ? 2 : 1);
  const std::int64_t up = o.activation == Activation::kSwiglu ? 2 : 1;
  const std::int64_t biases = o.bias ? 2 * o.dim + up * o.ffn : 0;
  const std::int64_t projections = o.qkv_bias ? o.head_dim * (o.heads + 2 * o.kv_heads) : 0;
  const std::int64_t of_heads = projections + (o.qk_norm ? 2 * o.head_dim : 0);
  std::int64_t count = o.Blocks() * (BlockMatrices(o) + biases + of_heads + 2 * norm);
  count += CrossBlocks(o) *
           (QueryMatrices(o) + KeyMatrices(o) + projections + (o.bias ? o.dim : 0) + norm);
  count += o.vocabulary * o.dim * (o.tie_embeddings ? 1 : 2) + o.SourceVocabulary() * o.dim;
  const std::int64_t stacks = o.Translates() ? 2 : 1;
  if (o.position == Position::kLearned) count += stacks * o.max_positions * o.dim;
  if (o.norm_position == NormPosition::kPre) count += stacks * norm;
  return count;
}

PartCosts CostsPerToken(const Options& o, std::int64_t sequence_length) {
  // Reading and writing a few rows costs about as much as this many operations per element.
  constexpr double kEmbeddingWork = 100;
  const double blocks = static_cast<double>(o.Blocks()), dim = static_cast<double>(o.dim);
  PartCosts costs;
  costs.head = 6 * static_cast<double>(o.vocabulary) * dim;
  costs.block = (FlopsPerToken(o, sequence_length) - costs.head) / blocks;
  // The forward pass, a third of it all, once more.
  if (o.recompute == Recompute::kFull) costs.block *= 4.0 / 3;
  costs.embedding = kEmbeddingWork * dim * (o.Translates() ? 2 : 1);
  return costs;
}

double FlopsPerToken(const Options& o, std::int64_t sequence_length) {
  if (o.Translates()) {
    return PairFlops(o, sequence_length, sequence_length) / static_cast<double>(sequence_length);
  }
  const double matrices = static_cast<double>(o.layers * BlockMatrices(o) + o.vocabulary * o.dim);
  const double attention = static_cast<double>(o.layers * o.heads * o.head_dim) *
                           static_cast<double>(sequence_length + 1);
  return 6 * matrices + 6 * attention;
}

double FlopsPerTokenOf(const Options& o, double mean_keys) {
  const double matrices = static_cast<double>(o.layers * BlockMatrices(o) + o.vocabulary * o.dim);
  return 6 * matrices + static_cast<double>(o.layers) * AttentionFlops(o, mean_keys);
}

double PairFlops(const Options& o, std::int64_t source_length, std::int64_t target_length) {
  const auto s = static_cast<double>(source_length), t = static_cast<double>(target_length);
  const auto encoders = static_cast<double>(o.encoder_layers),
             decoders = static_cast<double>(o.layers),
             block = static_cast<double>(BlockMatrices(o));
  const double source = 6 * (encoders * block + decoders * static_cast<double>(KeyMatrices(o)));
  const double target = 6 * (decoders * (block + static_cast<double>(QueryMatrices(o))) +
                             static_cast<double>(o.vocabulary * o.dim));
  return s * (source + encoders * AttentionFlops(o, s)) +
         t * (target + decoders * (AttentionFlops(o, (t + 1) / 2) + AttentionFlops(o, s)));
}

}  // namespace trireme::model
