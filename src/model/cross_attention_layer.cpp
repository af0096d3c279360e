// Cross-attention: projections of two streams, and attention by one block of keys and values.
#include "trireme/model/cross_attention_layer.hpp"

#include "head_slices.hpp"
#include "initialisers.hpp"
#include "slice_sums.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/kernels/norm.hpp"

namespace trireme::model {

using kernels::Form;

namespace {

// x W^T and x W, without a number: bf16 stays bf16 in fp8 runs.
kernels::Linear Input(const Matrix& weight) {
  return {.form = Form::kTransposed, .weight = weight};
}
kernels::Linear Output(const Matrix& weight) { return {.form = Form::kPlain, .weight = weight}; }

}  // namespace

CrossAttentionLayer::CrossAttentionLayer(const ParameterPlace& place, const std::string& name,
                                         std::uint32_t layer)
    : all_heads_(place.options.heads),
      all_kv_heads_(place.options.kv_heads),
      head_dim_(place.options.head_dim),
      dropout_(place.options.attention_dropout),
      layer_(layer) {
  const Options& o = place.options;
  const HeadSlices held(o, place.tensor);
  heads_ = held.heads.Size();
  first_head_ = held.heads.begin;
  kv_heads_ = held.kv_heads.Size();
  const std::int64_t queries = o.heads * head_dim_, keys = o.kv_heads * head_dim_;
  query_weight_ = AddSlice(place, WeightOf(o, name + ".query", queries, o.dim), held.query_rows);
  key_weight_ = held.AddKeyValue(place, WeightOf(o, name + ".key", keys, o.dim));
  held.AddKeyValue(place, WeightOf(o, name + ".value", keys, o.dim, false, true));
  if (o.qkv_bias) {
    query_bias_ = AddSlice(place, BiasOf(name + ".query", queries), held.query_rows);
    key_bias_ = held.AddKeyValue(place, BiasOf(name + ".key", keys));
    held.AddKeyValue(place, BiasOf(name + ".value", keys, true));
  }
  output_weight_ =
      AddSlice(place, WeightOf(o, name + ".output", queries, o.dim, true), held.query_rows);
  if (o.bias) output_bias_ = AddWhole(place, BiasOf(name + ".output", o.dim));
}

kernels::AttentionShape CrossAttentionLayer::Shape(const Pass& pass) const {
  return {.sequences = pass.sequences,
          .length = pass.length,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_dim = head_dim_,
          .first_head = first_head_,
          .causal = false,
          .positions = pass.positions,
          .key_lengths = pass.source.key_lengths};
}

kernels::KeyValueBlock CrossAttentionLayer::Block(const Pass& pass, const Saved& saved) const {
  return {PositionsOf(pass.source.length, 0, 1), saved.key_values};
}

kernels::Dropout CrossAttentionLayer::WeightDropout(const Pass& pass) const {
  return pass.MakeDropout(dropout_, Purpose::kCrossDropout, layer_);
}

void CrossAttentionLayer::Allocate(const Pass& pass, Saved& saved) const {
  const std::int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  saved.query = pass.Allocate(pass.lives.input, pass.Tokens(), queries);
  if (!pass.cached.continues) {
    saved.key_values = pass.Allocate(pass.lives.input, pass.SourceTokens(), 2 * keys);
  }
  saved.out = pass.Allocate(pass.lives.weight, pass.Tokens(), queries);
  saved.lse = pass.AllocateSums(pass.lives.input, pass.Tokens(), heads_);
}

void CrossAttentionLayer::AllocateBackward(const Pass& pass, Saved& saved) const {
  const std::int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  saved.dquery = pass.Allocate(pass.lives.backward, pass.Tokens(), queries);
  saved.dkey_values = pass.Allocate(pass.lives.backward, pass.SourceTokens(), 2 * keys);
  saved.dout = pass.Allocate(pass.lives.scratch, pass.Tokens(), queries);
}

void CrossAttentionLayer::AddThinWeights(std::vector<ThinWeight>& weights) const {
  weights.push_back({query_weight_, 1, Form::kTransposed});
  weights.push_back({output_weight_, 1, Form::kPlain});
}

kernels::Linear CrossAttentionLayer::Thin(const Pass& pass, kernels::Linear linear,
                                          ParameterId weight) const {
  pass.MakeThin(linear, weight);
  return linear;
}

// Keys and values of texts that are being written come from the cache: a query sees the positions
// up to its source text's last.
void CrossAttentionLayer::Attend(const Pass& pass, const Matrix& memory, Saved& saved) const {
  const CachedPass& cached = pass.cached;
  const kernels::AttentionShape shape = Shape(pass);
  if (cached.continues) {
    return kernels::CachedAttention(pass.stream, shape, saved.query, cached.source_rows,
                                    cached.cache->OfSource(layer_), saved.out);
  }
  kernels::LinearForward(pass.stream, Input(pass.Value(key_weight_, 2)), memory,
                         pass.Value(key_bias_, 2), saved.key_values, [](const Part&) {});
  if (cached.cache != nullptr) {
    kernels::AttentionShape source = shape;
    source.length = pass.source.length;
    kernels::KeepKeyValues(pass.stream, source, saved.key_values, cached.rows,
                           cached.cache->OfSource(layer_));
  }
  kernels::AttentionPartStart(pass.stream, saved.out, saved.lse);
  kernels::AttentionPartForward(pass.stream, shape, {0, kernels::AttentionPartTasks(shape)},
                                saved.query, Block(pass, saved), WeightDropout(pass), saved.out,
                                saved.lse, pass.workspace.attention);
}

void CrossAttentionLayer::Forward(const Pass& pass, const Matrix& x, const Matrix& memory,
                                  Saved& saved, const Matrix& y, RowsDone then) const {
  saved.x = x;
  saved.memory = memory;
  kernels::LinearForward(pass.stream, Thin(pass, Input(pass.Value(query_weight_)), query_weight_),
                         x, pass.Value(query_bias_), saved.query, [](const Part&) {});
  Attend(pass, memory, saved);
  if (!pass.tensor->Canonical()) {
    return kernels::LinearForward(pass.stream,
                                  Thin(pass, Output(pass.Value(output_weight_)), output_weight_),
                                  saved.out, {}, y, then);
  }
  SumOverHeads(pass, saved.out, pass.Value(output_weight_), all_heads_, head_dim_, 1, y);
  then({0, y.rows});
}

void CrossAttentionLayer::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                                        const Matrix& dx, const Matrix& dmemory) const {
  saved.dy = dy;
  kernels::LinearInputGradient(pass.stream, Output(pass.Value(output_weight_)), dy, saved.dout);
  const kernels::AttentionShape shape = Shape(pass);
  kernels::AttentionPartStartBackward(pass.stream, shape, saved.dquery);
  kernels::AttentionPartBackward(pass.stream, shape, {0, kernels::AttentionPartTasks(shape)},
                                 saved.query, Block(pass, saved), WeightDropout(pass), saved.out,
                                 saved.dout, saved.lse, saved.dquery, saved.dkey_values,
                                 pass.workspace.attention);
  if (pass.tensor->Canonical()) {
    SumOverHeads(pass, saved.dquery, pass.Value(query_weight_), all_heads_, head_dim_, 1, dx);
    return SumOverHeads(pass, saved.dkey_values, pass.Value(key_weight_, 2), all_kv_heads_,
                        head_dim_, 2, dmemory);
  }
  kernels::LinearInputGradient(pass.stream, Input(pass.Value(query_weight_)), saved.dquery, dx);
  kernels::LinearInputGradient(pass.stream, Input(pass.Value(key_weight_, 2)), saved.dkey_values,
                               dmemory);
}

void CrossAttentionLayer::BackwardWeight(const Pass& pass, const Saved& saved,
                                         comm::Request& pending) const {
  kernels::LinearWeightGradient(pass.stream, Output({}), saved.out, saved.dy,
                                pass.Gradient(output_weight_));
  pending.Test();
  kernels::LinearWeightGradient(pass.stream, Input({}), saved.x, saved.dquery,
                                pass.Gradient(query_weight_));
  kernels::LinearWeightGradient(pass.stream, Input({}), saved.memory, saved.dkey_values,
                                pass.Gradient(key_weight_, 2));
  pending.Test();
  if (output_bias_ != kernels::kNoParameter) {
    kernels::ColumnSum(pass.stream, saved.dy, pass.Gradient(output_bias_),
                       pass.workspace.reduction);
  }
  if (query_bias_ == kernels::kNoParameter) return;
  // The gradient of a key's bias is zero, as in AttentionLayer.
  const std::int64_t keys = kv_heads_ * head_dim_;
  kernels::ColumnSum(pass.stream, saved.dquery, pass.Gradient(query_bias_),
                     pass.workspace.reduction);
  kernels::ColumnSum(pass.stream, saved.dkey_values.Columns(keys, keys),
                     pass.Gradient(key_bias_ + 1), pass.workspace.reduction);
}

}  // namespace trireme::model
