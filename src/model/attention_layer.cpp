#include "initialisers.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/model/layers.hpp"

namespace trireme::model {

using kernels::Form;

AttentionLayer::AttentionLayer(const Options& options, tensor::Registry& registry,
                               const std::string& name, std::uint32_t layer)
    : options_(options), layer_(layer) {
  const std::int64_t queries = options.heads * options.head_dim;
  const std::int64_t keys = options.kv_heads * options.head_dim;
  qkv_weight_ = registry.Add(WeightOf(options, name + ".query", queries, options.dim));
  registry.Add(WeightOf(options, name + ".key", keys, options.dim, false, true));
  registry.Add(WeightOf(options, name + ".value", keys, options.dim, false, true));
  if (options.bias) {
    qkv_bias_ = registry.Add(BiasOf(name + ".query", queries));
    registry.Add(BiasOf(name + ".key", keys, true));
    registry.Add(BiasOf(name + ".value", keys, true));
  }
  output_weight_ = registry.Add(WeightOf(options, name + ".output", queries, options.dim, true));
  if (options.bias) output_bias_ = registry.Add(BiasOf(name + ".output", options.dim));
}

kernels::AttentionShape AttentionLayer::Shape(const Pass& pass) const {
  return {.sequences = pass.sequences,
          .length = pass.length,
          .heads = options_.heads,
          .kv_heads = options_.kv_heads,
          .head_dim = options_.head_dim,
          .first_head = 0,
          .causal = pass.causal};
}

kernels::Dropout AttentionLayer::WeightDropout(const Pass& pass) const {
  return pass.MakeDropout(options_.attention_dropout, Purpose::kAttentionDropout, layer_);
}

void AttentionLayer::Allocate(const Pass& pass, Saved& saved) const {
  saved.qkv = pass.Allocate(pass.Tokens(), Shape(pass).Width());
  saved.out = pass.Allocate(pass.Tokens(), options_.heads * options_.head_dim);
  saved.lse = pass.Allocate(pass.Tokens(), options_.heads);
}

void AttentionLayer::AllocateBackward(const Pass& pass, Saved& saved) const {
  saved.dout = pass.Allocate(pass.Tokens(), options_.heads * options_.head_dim);
  saved.dqkv = pass.Allocate(pass.Tokens(), Shape(pass).Width());
}

void AttentionLayer::Forward(const Pass& pass, const Matrix& x, const Matrix& rope, Saved& saved,
                             const Matrix& y) const {
  saved.x = x;
  kernels::MatrixMultiply(pass.stream, Form::kPlain, x, Form::kTransposed,
                          pass.Value(qkv_weight_, 3), saved.qkv, false);
  if (options_.bias) kernels::AddBias(pass.stream, saved.qkv, pass.Value(qkv_bias_, 3));
  if (!rope.Empty()) kernels::Rope(pass.stream, Shape(pass), rope, false, saved.qkv);
  kernels::AttentionForward(pass.stream, Shape(pass), saved.qkv, WeightDropout(pass), saved.out,
                            saved.lse, pass.workspace.attention);
  kernels::MatrixMultiply(pass.stream, Form::kPlain, saved.out, Form::kPlain,
                          pass.Value(output_weight_), y, false);
}

void AttentionLayer::BackwardInput(const Pass& pass, const Matrix& dy, const Matrix& rope,
                                   Saved& saved, const Matrix& dx) const {
  saved.dy = dy;
  kernels::MatrixMultiply(pass.stream, Form::kPlain, dy, Form::kTransposed,
                          pass.Value(output_weight_), saved.dout, false);
  kernels::AttentionBackward(pass.stream, Shape(pass), saved.qkv, WeightDropout(pass), saved.out,
                             saved.dout, saved.lse, saved.dqkv, pass.workspace.attention);
  if (!rope.Empty()) kernels::Rope(pass.stream, Shape(pass), rope, true, saved.dqkv);
  kernels::MatrixMultiply(pass.stream, Form::kPlain, saved.dqkv, Form::kPlain,
                          pass.Value(qkv_weight_, 3), dx, false);
}

void AttentionLayer::BackwardWeight(const Pass& pass, const Saved& saved) const {
  kernels::MatrixMultiply(pass.stream, Form::kTransposed, saved.out, Form::kPlain, saved.dy,
                          pass.Gradient(output_weight_), true);
  kernels::MatrixMultiply(pass.stream, Form::kTransposed, saved.dqkv, Form::kPlain, saved.x,
                          pass.Gradient(qkv_weight_, 3), true);
  if (!options_.bias) return;
  kernels::ColumnSum(pass.stream, saved.dy, pass.Gradient(output_bias_), pass.workspace.reduction);
  if (options_.position == Position::kRope) {
    kernels::ColumnSum(pass.stream, saved.dqkv, pass.Gradient(qkv_bias_, 3),
                       pass.workspace.reduction);
    return;
  }
  // Without rotation a key's bias adds the same to all scores of a query, which softmax ignores:
  // its gradient is zero. Computed, it would be rounding noise, which AdamW turns into steps.
  const std::int64_t queries = options_.heads * options_.head_dim;
  const std::int64_t keys = options_.kv_heads * options_.head_dim;
  kernels::ColumnSum(pass.stream, saved.dqkv.Columns(0, queries), pass.Gradient(qkv_bias_),
                     pass.workspace.reduction);
  kernels::ColumnSum(pass.stream, saved.dqkv.Columns(queries + keys, keys),
                     pass.Gradient(qkv_bias_ + 2), pass.workspace.reduction);
}

}  // namespace trireme::model
