// Causal self-attention: projections, the query/key steps, attention over the context ring.
#include "trireme/model/attention_layer.hpp"

#include "head_slices.hpp"
#include "initialisers.hpp"
#include "slice_sums.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/kernels/norm.hpp"

namespace trireme::model {

using kernels::Form;

AttentionLayer::AttentionLayer(const ParameterPlace& place, const std::string& name,
                               std::uint32_t layer)
    : head_dim_(place.options.head_dim),
      dropout_(place.options.attention_dropout),
      layer_(layer),
      steps_(MakeQueryKeySteps(place, name)) {
  const Options& o = place.options;
  all_heads_ = o.heads;
  all_kv_heads_ = o.kv_heads;
  const HeadSlices held(o, place.tensor);
  heads_ = held.heads.Size();
  first_head_ = held.heads.begin;
  kv_heads_ = held.kv_heads.Size();
  const std::int64_t queries = o.heads * head_dim_, keys = o.kv_heads * head_dim_;
  qkv_weight_ = AddSlice(place, WeightOf(o, name + ".query", queries, o.dim), held.query_rows);
  for (const char* part : {".key", ".value"}) {
    held.AddKeyValue(place, WeightOf(o, name + part, keys, o.dim, false, true));
  }
  if (o.qkv_bias) {
    qkv_bias_ = AddSlice(place, BiasOf(name + ".query", queries), held.query_rows);
    for (const char* part : {".key", ".value"}) {
      held.AddKeyValue(place, BiasOf(name + part, keys, true));
    }
  }
  output_weight_ =
      AddSlice(place, WeightOf(o, name + ".output", queries, o.dim, true), held.query_rows);
  if (o.bias) output_bias_ = AddWhole(place, BiasOf(name + ".output", o.dim));
}

kernels::AttentionShape AttentionLayer::Shape(const Pass& pass) const {
  return {.sequences = pass.sequences,
          .length = pass.length,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_dim = head_dim_,
          .first_head = first_head_,
          .causal = pass.causal,
          .positions = pass.positions,
          .begins = pass.tokens.begins,
          .key_lengths = pass.tokens.key_lengths};
}

kernels::Dropout AttentionLayer::WeightDropout(const Pass& pass) const {
  return pass.MakeDropout(dropout_, Purpose::kAttentionDropout, layer_);
}

// A linear layer without its weight, as its weight gradient needs it.
kernels::Linear AttentionLayer::Of(LinearSite site) const {
  return {SiteOf(layer_, site), site == LinearSite::kQkv ? Form::kTransposed : Form::kPlain, {}};
}

kernels::Linear AttentionLayer::Input(const Pass& pass) const {
  kernels::Linear linear = Of(LinearSite::kQkv);
  linear.weight = pass.Value(qkv_weight_, 3);
  pass.MakeThin(linear, qkv_weight_);
  return linear;
}

kernels::Linear AttentionLayer::Output(const Pass& pass) const {
  kernels::Linear linear = Of(LinearSite::kOutput);
  linear.weight = pass.Value(output_weight_);
  pass.MakeThin(linear, output_weight_);
  return linear;
}

void AttentionLayer::AddThinWeights(std::vector<ThinWeight>& weights) const {
  weights.push_back({qkv_weight_, 3, Of(LinearSite::kQkv).form});
  weights.push_back({output_weight_, 1, Of(LinearSite::kOutput).form});
}

AttentionLayer::Saved AttentionLayer::MakeSaved() const {
  Saved saved;
  for (const auto& step : steps_) saved.steps.push_back(step->MakeSaved());
  return saved;
}

void AttentionLayer::Allocate(const Pass& pass, Saved& saved) const {
  saved.qkv = pass.Allocate(pass.lives.input, pass.Tokens(), Shape(pass).Width());
  saved.out = pass.Allocate(pass.lives.weight, pass.Tokens(), heads_ * head_dim_);
  saved.lse = pass.AllocateSums(pass.lives.input, pass.Tokens(), heads_);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    steps_[i]->Allocate(pass, Shape(pass), saved.steps[i].get());
  }
}

void AttentionLayer::AllocateBackward(const Pass& pass, Saved& saved) const {
  saved.dqkv = pass.Allocate(pass.lives.backward, pass.Tokens(), Shape(pass).Width());
  saved.dout = pass.Allocate(pass.lives.scratch, pass.Tokens(), heads_ * head_dim_);
}

void AttentionLayer::Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y,
                             RowsDone then) const {
  saved.x = x;
  kernels::LinearForward(pass.stream, Input(pass), x, pass.Value(qkv_bias_, 3), saved.qkv,
                         [](const Part&) {});
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    steps_[i]->Forward(pass, Shape(pass), saved.steps[i].get(), saved.qkv);
  }
  Attend(pass, saved);
  OutputProduct(pass, saved.out, y, then);
}

void AttentionLayer::Attend(const Pass& pass, const Saved& saved) const {
  const CachedPass& cached = pass.cached;
  if (cached.cache != nullptr) {
    const Matrix key_values = saved.qkv.Columns(heads_ * head_dim_, 2 * kv_heads_ * head_dim_);
    kernels::KeepKeyValues(pass.stream, Shape(pass), key_values, cached.rows,
                           cached.cache->Of(layer_));
  }
  if (cached.continues) {
    return kernels::CachedAttention(pass.stream, Shape(pass), saved.qkv, cached.rows,
                                    cached.cache->Of(layer_), saved.out);
  }
  pass.ring->Forward(pass.stream, Shape(pass), saved.qkv, WeightDropout(pass), saved.out, saved.lse,
                     pass.workspace.attention);
}

kernels::AttentionShape AttentionLayer::CacheShape() const {
  return {.heads = heads_, .kv_heads = kv_heads_, .head_dim = head_dim_};
}

void AttentionLayer::OutputProduct(const Pass& pass, const Matrix& out, const Matrix& y,
                                   RowsDone then) const {
  if (!pass.tensor->Canonical()) {
    return kernels::LinearForward(pass.stream, Output(pass), out, {}, y, then);
  }
  SumOverHeads(pass, out, pass.Value(output_weight_), all_heads_, head_dim_, 1, y);
  then({0, y.rows});
}

void AttentionLayer::InputGradient(const Pass& pass, const Matrix& dqkv, const Matrix& dx) const {
  if (!pass.tensor->Canonical()) {
    return kernels::LinearInputGradient(pass.stream, Input(pass), dqkv, dx);
  }
  const Matrix weight = pass.Value(qkv_weight_, 3);
  const std::int64_t first_key = pass.tensor->Slice(all_kv_heads_).begin;
  SumSlices(pass, dx, [&](int slice, const Matrix& sum) {
    const Part heads = pass.tensor->SliceOf(all_heads_, slice);
    const Part keys = pass.tensor->SliceOf(all_kv_heads_, slice);
    const std::int64_t key = heads_ + keys.begin - first_key;  // local, counted in heads
    const Part parts[] = {{heads.begin - first_head_, heads.end - first_head_},
                          {key, key + keys.Size()},
                          {key + kv_heads_, key + kv_heads_ + keys.Size()}};
    bool accumulate = false;
    for (const Part& part : parts) {
      const Part features = Times(part, head_dim_);
      kernels::MatrixMultiply(pass.stream, Form::kPlain,
                              dqkv.Columns(features.begin, features.Size()), Form::kPlain,
                              weight.Rows(features.begin, features.Size()), sum, accumulate);
      accumulate = true;
    }
  });
}

void AttentionLayer::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                                   const Matrix& dx) const {
  saved.dy = dy;
  kernels::LinearInputGradient(pass.stream, Output(pass), dy, saved.dout);
  pass.ring->Backward(pass.stream, Shape(pass), saved.qkv, WeightDropout(pass), saved.out,
                      saved.dout, saved.lse, saved.dqkv, pass.workspace.attention);
  for (std::size_t i = steps_.size(); i-- > 0;) {
    steps_[i]->Backward(pass, Shape(pass), saved.steps[i].get(), saved.dqkv);
  }
  InputGradient(pass, saved.dqkv, dx);
}

void AttentionLayer::BackwardWeight(const Pass& pass, const Saved& saved,
                                    comm::Request& pending) const {
  kernels::LinearWeightGradient(pass.stream, Of(LinearSite::kOutput), saved.out, saved.dy,
                                pass.Gradient(output_weight_));
  pending.Test();
  kernels::LinearWeightGradient(pass.stream, Of(LinearSite::kQkv), saved.x, saved.dqkv,
                                pass.Gradient(qkv_weight_, 3));
  pending.Test();
  if (output_bias_ != kernels::kNoParameter) {
    kernels::ColumnSum(pass.stream, saved.dy, pass.Gradient(output_bias_),
                       pass.workspace.reduction);
  }
  if (qkv_bias_ == kernels::kNoParameter) return;
  if (!steps_.empty()) {
    kernels::ColumnSum(pass.stream, saved.dqkv, pass.Gradient(qkv_bias_, 3),
                       pass.workspace.reduction);
    return;
  }
  // Without steps a key's bias adds the same to all scores of a query, which softmax ignores:
  // its gradient is zero. Computed, it would be rounding noise, which AdamW turns into steps.
  const std::int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  kernels::ColumnSum(pass.stream, saved.dqkv.Columns(0, queries), pass.Gradient(qkv_bias_),
                     pass.workspace.reduction);
  kernels::ColumnSum(pass.stream, saved.dqkv.Columns(queries + keys, keys),
                     pass.Gradient(qkv_bias_ + 2), pass.workspace.reduction);
}

}  // namespace trireme::model
