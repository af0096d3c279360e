// Self-attention (projections, query/key steps, attention over the context ring), cross-attention.
#include "trireme/model/attention_layer.hpp"

#include "trireme/base/partition.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/model/inference.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

// Number of query heads plus key heads.
static std::int64_t Heads(const kernels::AttentionShape& shape) {
  return shape.heads + shape.kv_heads;
}

static Matrix OfHead(const kernels::AttentionShape& shape, const Matrix& m, std::int64_t head) {
  return m.Columns(head * shape.head_dim, shape.head_dim);
}

// RMSNorm of each head's queries and keys (Henry et al. 2020, arXiv:2010.04245; as in Qwen 3).

// q_h = norm(q_h) * query weight and k_h = norm(k_h) * key weight for each head h; all heads share
// the two weights. A rank adds up the weights' gradients over its heads, then they are summed over
// the tensor group. This holds for shared key heads, too: each rank has other query heads.
class QueryKeyNorm : public QueryKeyStep {
 public:
  QueryKeyNorm(const ParameterPlace& place, const std::string& name)
      : epsilon_(place.options.norm_epsilon) {
    const auto add = [&](const char* part) {
      kernels::Parameter parameter = VectorOf(name + part, place.options.head_dim, 1);
      parameter.early = true;
      return AddWhole(place, std::move(parameter), kernels::GradientSum::kTensor);
    };
    query_weight_ = add(".query_norm.weight");
    key_weight_ = add(".key_norm.weight");
  }

  std::unique_ptr<QueryKeyStep::Saved> MakeSaved() const override {
    return std::make_unique<Saved>();
  }
  void Allocate(const Pass& pass, const kernels::AttentionShape& shape,
                QueryKeyStep::Saved* base) const override {
    auto& saved = static_cast<Saved&>(*base);
    saved.x = pass.Allocate(pass.lives.input, pass.Tokens(), Heads(shape) * shape.head_dim);
    saved.statistics = pass.AllocateSums(pass.lives.input, Heads(shape) * pass.Tokens(), 2);
  }
  void Forward(const Pass& pass, const kernels::AttentionShape& shape, QueryKeyStep::Saved* base,
               const Matrix& qkv) const override {
    const auto& saved = static_cast<Saved&>(*base);
    kernels::Copy(pass.stream, qkv.Columns(0, saved.x.columns), saved.x);
    const Matrix query = pass.Value(query_weight_), key = pass.Value(key_weight_);
    for (std::int64_t head = 0; head < Heads(shape); ++head) {
      kernels::NormForward(pass.stream, kernels::NormKind::kRmsNorm, OfHead(shape, saved.x, head),
                           head < shape.heads ? query : key, {}, epsilon_, OfHead(shape, qkv, head),
                           saved.statistics.Rows(head * qkv.rows, qkv.rows));
    }
  }
  void Backward(const Pass& pass, const kernels::AttentionShape& shape, QueryKeyStep::Saved* base,
                const Matrix& dqkv) const override {
    const auto& saved = static_cast<Saved&>(*base);
    for (std::int64_t head = 0; head < Heads(shape); ++head) {
      const ParameterId weight = head < shape.heads ? query_weight_ : key_weight_;
      const Matrix d = OfHead(shape, dqkv, head);
      kernels::NormBackward(pass.stream,
                            {.kind = kernels::NormKind::kRmsNorm,
                             .dy = d,
                             .x = OfHead(shape, saved.x, head),
                             .weight = pass.Value(weight),
                             .statistics = saved.statistics.Rows(head * dqkv.rows, dqkv.rows),
                             .dx = d,
                             .dweight = pass.Gradient(weight),
                             .scratch = pass.workspace.reduction});
    }
  }

 private:
  struct Saved : QueryKeyStep::Saved {
    Matrix x;           // [tokens, (heads + kv_heads) head_dim]: queries and keys before the norm
    Matrix statistics;  // [(heads + kv_heads) tokens, 2], head by head
  };

  double epsilon_;
  ParameterId query_weight_, key_weight_;  // [head_dim]
};

// Rotary positions (Su et al. 2021).

// Rotates each pair of a head's features by the angle of its position, from pass.rope. The backward
// pass rotates the gradient back, so nothing is kept.
class Rotation : public QueryKeyStep {
 public:
  void Forward(const Pass& pass, const kernels::AttentionShape& shape, Saved* /*saved*/,
               const Matrix& qkv) const override {
    kernels::Rope(pass.stream, shape, pass.rope, false, qkv);
  }
  void Backward(const Pass& pass, const kernels::AttentionShape& shape, Saved* /*saved*/,
                const Matrix& dqkv) const override {
    kernels::Rope(pass.stream, shape, pass.rope, true, dqkv);
  }
};

// The heads that a tensor rank holds, and sums over them.

inline Part Times(const Part& part, std::int64_t factor) {
  return {part.begin * factor, part.end * factor};
}

// The heads of this rank, and the rows of the weights that belong to them.
struct HeadSlices {
  HeadSlices(const Options& o, const parallel::TensorGroup& tensor)
      : heads(tensor.Slice(o.heads)), query_rows(Times(heads, o.head_dim)) {
    if (o.kv_heads >= tensor.Size()) {
      kv_heads = tensor.Slice(o.kv_heads);
    } else {
      copies = tensor.Size() / static_cast<int>(o.kv_heads);
      const std::int64_t head = tensor.Rank() / copies;
      kv_heads = {head, head + 1};
    }
    key_rows = Times(kv_heads, o.head_dim);
  }
  // Registers this rank's rows of a weight or bias of keys or values.
  kernels::ParameterId AddKeyValue(const ParameterPlace& place,
                                   kernels::Parameter parameter) const {
    const auto sum = copies > 1 ? kernels::GradientSum::kKeyValue : kernels::GradientSum::kNone;
    return AddSlice(place, std::move(parameter), key_rows, copies, sum);
  }

  Part heads;
  Part kv_heads;   // this rank's slice, or the one head its queries use
  int copies = 1;  // tensor ranks that hold each of these heads
  Part query_rows, key_rows;
};

// y = in * weight, summed by canonical slices. in: [rows, parts heads head_dim], weight: [parts
// heads head_dim, dim], with this rank's heads. parts: 2 for keys, then values; else 1. all: number
// of heads of all ranks.
inline void SumOverHeads(const Pass& pass, const Matrix& in, const Matrix& weight, std::int64_t all,
                         std::int64_t head_dim, int parts, const Matrix& y) {
  const Part own = pass.tensor->Slice(all);
  SumSlices(pass, y, [&](int slice, const Matrix& sum) {
    const Part heads = pass.tensor->SliceOf(all, slice);
    for (int part = 0; part < parts; ++part) {
      const std::int64_t begin = heads.begin - own.begin + part * own.Size();
      const Part features = Times({begin, begin + heads.Size()}, head_dim);
      kernels::MatrixMultiply(pass.stream, kernels::Form::kPlain,
                              in.Columns(features.begin, features.Size()), kernels::Form::kPlain,
                              weight.Rows(features.begin, features.Size()), sum, part > 0);
    }
  });
}

// Makes the steps between the projection of queries and keys and the attention.

std::vector<std::unique_ptr<QueryKeyStep>> MakeQueryKeySteps(const ParameterPlace& place,
                                                             const std::string& name) {
  std::vector<std::unique_ptr<QueryKeyStep>> steps;
  if (place.options.qk_norm) {
    steps.push_back(std::make_unique<QueryKeyNorm>(place, name));
  }
  if (place.options.position == Position::kRope) steps.push_back(std::make_unique<Rotation>());
  return steps;
}

using kernels::Form;

AttentionLayer::AttentionLayer(const ParameterPlace& place, const std::string& name,
                               std::uint32_t layer)
    : dim_(place.options.dim),
      head_dim_(place.options.head_dim),
      divisor_(place.options.ScoreDivisor()),
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
          .key_lengths = pass.tokens.key_lengths,
          .divisor = divisor_};
}

kernels::Dropout AttentionLayer::WeightDropout(const Pass& pass) const {
  return pass.MakeDropout(dropout_, Purpose::kAttentionDropout, layer_);
}

// A linear layer without its weight; enough for the weight gradient.
kernels::Linear AttentionLayer::Of(LinearSite site, const Saved* saved) const {
  const bool input = site == LinearSite::kQkv;
  kernels::Linear linear{SiteOf(layer_, site), input ? Form::kTransposed : Form::kPlain, {}};
  if (saved != nullptr) {
    linear.transposes = input ? &saved->qkv_transposes : &saved->output_transposes;
  }
  return linear;
}

kernels::Linear AttentionLayer::Input(const Pass& pass, const Saved& saved) const {
  kernels::Linear linear = Of(LinearSite::kQkv, &saved);
  linear.weight = pass.Weight(qkv_weight_, 3);
  return pass.Thin(linear);
}

kernels::Linear AttentionLayer::Output(const Pass& pass, const Saved& saved) const {
  kernels::Linear linear = Of(LinearSite::kOutput, &saved);
  linear.weight = pass.Weight(output_weight_);
  return pass.Thin(linear);
}

void AttentionLayer::AddLayers(const kernels::Registry& registry,
                               std::vector<kernels::Linear>& layers) const {
  layers.push_back(Of(LinearSite::kQkv));
  layers.back().weight = registry.Value(qkv_weight_, 3);
  layers.push_back(Of(LinearSite::kOutput));
  layers.back().weight = registry.Value(output_weight_);
}

std::unique_ptr<SubLayer::Saved> AttentionLayer::MakeSaved() const {
  auto saved = std::make_unique<Saved>();
  for (const auto& step : steps_) saved->steps.push_back(step->MakeSaved());
  return saved;
}

void AttentionLayer::Allocate(const Pass& pass, SubLayer::Saved& base) const {
  Saved& saved = Mine(base);
  saved.qkv = pass.Allocate(pass.lives.input, pass.Tokens(), Shape(pass).Width());
  saved.out = pass.Allocate(pass.lives.weight, pass.Tokens(), heads_ * head_dim_);
  saved.lse = pass.AllocateSums(pass.lives.input, pass.Tokens(), heads_);
  saved.qkv_transposes.x = pass.AllocateTranspose(pass.Tokens(), dim_);
  saved.output_transposes.x = pass.AllocateTranspose(pass.Tokens(), heads_ * head_dim_);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    steps_[i]->Allocate(pass, Shape(pass), saved.steps[i].get());
  }
}

void AttentionLayer::AllocateBackward(const Pass& pass, SubLayer::Saved& base) const {
  Saved& saved = Mine(base);
  saved.dqkv = pass.Allocate(pass.lives.backward, pass.Tokens(), Shape(pass).Width());
  saved.qkv_transposes.dy = pass.AllocateTranspose(pass.Tokens(), Shape(pass).Width());
  saved.output_transposes.dy = pass.AllocateTranspose(pass.Tokens(), dim_);
  saved.dout = pass.Allocate(pass.lives.scratch, pass.Tokens(), heads_ * head_dim_);
}

void AttentionLayer::Forward(const Pass& pass, const Matrix& x, SubLayer::Saved& base,
                             const Matrix& y, RowsDone then) const {
  Saved& saved = Mine(base);
  saved.x = x;
  kernels::LinearForward(pass.stream, Input(pass, saved), x, pass.Value(qkv_bias_, 3), saved.qkv,
                         [](const Part&) {});
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    steps_[i]->Forward(pass, Shape(pass), saved.steps[i].get(), saved.qkv);
  }
  Attend(pass, saved);
  if (pass.tensor->Canonical()) {
    SumOverHeads(pass, saved.out, pass.Weight(output_weight_), all_heads_, head_dim_, 1, y);
    then({0, y.rows});
  } else {
    kernels::LinearForward(pass.stream, Output(pass, saved), saved.out, {}, y, then);
  }
  pass.Progress();
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

void AttentionLayer::InputGradient(const Pass& pass, const Saved& saved, const Matrix& dx) const {
  const Matrix& dqkv = saved.dqkv;
  if (!pass.tensor->Canonical()) {
    return kernels::LinearInputGradient(pass.stream, Input(pass, saved), dqkv, dx);
  }
  const Matrix weight = pass.Weight(qkv_weight_, 3);
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

void AttentionLayer::BackwardInput(const Pass& pass, const Matrix& dy, SubLayer::Saved& base,
                                   const Matrix& dx) const {
  Saved& saved = Mine(base);
  saved.dy = dy;
  kernels::LinearInputGradient(pass.stream, Output(pass, saved), dy, saved.dout);
  pass.ring->Backward(pass.stream, Shape(pass), saved.qkv, WeightDropout(pass), saved.out,
                      saved.dout, saved.lse, saved.dqkv, pass.workspace.attention);
  for (std::size_t i = steps_.size(); i-- > 0;) {
    steps_[i]->Backward(pass, Shape(pass), saved.steps[i].get(), saved.dqkv);
  }
  InputGradient(pass, saved, dx);
}

kernels::BiasGradients AttentionLayer::InputBiasGradients(const Pass& pass) const {
  if (qkv_bias_ == kernels::kNoParameter || !steps_.empty()) {
    return pass.BiasGradients(qkv_bias_, 3, false);
  }
  // Without query/key steps, a key's bias adds the same to all scores of a query, which softmax
  // ignores: its gradient is zero. Computed, it would be rounding noise that AdamW turns into
  // steps.
  kernels::BiasGradients biases = pass.BiasGradients(qkv_bias_, 1, false);
  biases.parts[1] = {(heads_ + kv_heads_) * head_dim_, pass.Gradient(qkv_bias_ + 2)};
  return biases;
}

void AttentionLayer::BackwardWeight(const Pass& pass, const SubLayer::Saved& base,
                                    comm::Request& pending) const {
  const Saved& saved = Mine(base);
  const kernels::BiasGradients output_bias = pass.BiasGradients(output_bias_, 1, true);
  const kernels::BiasGradients input_bias = InputBiasGradients(pass);
  kernels::Linear output = Of(LinearSite::kOutput, &saved), input = Of(LinearSite::kQkv, &saved);
  output.biases = &output_bias;
  input.biases = &input_bias;
  kernels::LinearWeightGradient(pass.stream, output, saved.out, saved.dy,
                                pass.Gradient(output_weight_));
  pending.Test();
  kernels::LinearWeightGradient(pass.stream, input, saved.x, saved.dqkv,
                                pass.Gradient(qkv_weight_, 3));
  pending.Test();
}

// Cross-attention: projections of two streams, and attention by one block of keys and values.

using kernels::Form;

namespace {

// Products x W^T and x W; without a layer number, so that fp8 runs compute them in bf16.
kernels::Linear Input(const Matrix& weight) {
  return {.form = Form::kTransposed, .weight = weight};
}
kernels::Linear Output(const Matrix& weight) { return {.form = Form::kPlain, .weight = weight}; }

}  // namespace

CrossAttentionLayer::CrossAttentionLayer(const ParameterPlace& place, const std::string& name,
                                         std::uint32_t layer)
    : dim_(place.options.dim),
      all_heads_(place.options.heads),
      all_kv_heads_(place.options.kv_heads),
      head_dim_(place.options.head_dim),
      divisor_(place.options.ScoreDivisor()),
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
          .key_lengths = pass.source.key_lengths,
          .divisor = divisor_};
}

kernels::KeyValueBlock CrossAttentionLayer::Block(const Pass& pass, const Saved& saved) const {
  return {PositionsOf(pass.source.length, 0, 1), saved.key_values};
}

kernels::Dropout CrossAttentionLayer::WeightDropout(const Pass& pass) const {
  return pass.MakeDropout(dropout_, Purpose::kCrossDropout, layer_);
}

void CrossAttentionLayer::Allocate(const Pass& pass, SubLayer::Saved& base) const {
  Saved& saved = Mine(base);
  const std::int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  saved.query = pass.Allocate(pass.lives.input, pass.Tokens(), queries);
  if (!pass.cached.continues) {
    saved.key_values = pass.Allocate(pass.lives.input, pass.SourceTokens(), 2 * keys);
  }
  saved.out = pass.Allocate(pass.lives.weight, pass.Tokens(), queries);
  saved.lse = pass.AllocateSums(pass.lives.input, pass.Tokens(), heads_);
  if (!pass.tensor->Sharded() || pass.cached.continues) return;
  saved.full_memory = pass.Allocate(pass.lives.scratch, pass.SourceTokens(), dim_);
}

void CrossAttentionLayer::AllocateBackward(const Pass& pass, SubLayer::Saved& base) const {
  Saved& saved = Mine(base);
  const std::int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  saved.dquery = pass.Allocate(pass.lives.backward, pass.Tokens(), queries);
  saved.dkey_values = pass.Allocate(pass.lives.backward, pass.SourceTokens(), 2 * keys);
  saved.dout = pass.Allocate(pass.lives.scratch, pass.Tokens(), queries);
  saved.dfull_memory = pass.Allocate(pass.lives.scratch, pass.SourceTokens(), dim_);
  if (!pass.tensor->Sharded()) return;
  saved.whole_memory = pass.Allocate(pass.lives.backward, pass.SourceTokens(), dim_);
  saved.dmemory = pass.Allocate(pass.lives.scratch, pass.SourceRows().Size(), dim_);
}

void CrossAttentionLayer::AddLayers(const kernels::Registry& registry,
                                    std::vector<kernels::Linear>& layers) const {
  layers.push_back(Input(registry.Value(query_weight_)));
  layers.push_back(Output(registry.Value(output_weight_)));
}

// For texts being continued, the keys and values of their source texts come from the cache.
void CrossAttentionLayer::Attend(const Pass& pass, Saved& saved) const {
  const CachedPass& cached = pass.cached;
  const kernels::AttentionShape shape = Shape(pass);
  if (cached.continues) {
    return kernels::CachedAttention(pass.stream, shape, saved.query, cached.source_rows,
                                    cached.cache->OfSource(layer_), saved.out);
  }
  kernels::LinearForward(pass.stream, Input(pass.Weight(key_weight_, 2)), saved.memory,
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

void CrossAttentionLayer::Forward(const Pass& pass, const Matrix& x, SubLayer::Saved& base,
                                  const Matrix& y, RowsDone then) const {
  Saved& saved = Mine(base);
  saved.x = x;
  saved.memory = pass.tensor->Sharded() ? saved.full_memory : pass.source.memory;
  if (!pass.cached.continues) pass.tensor->Gather(pass.source.memory, saved.memory);
  kernels::LinearForward(pass.stream, pass.Thin(Input(pass.Weight(query_weight_))), x,
                         pass.Value(query_bias_), saved.query, [](const Part&) {});
  Attend(pass, saved);
  if (pass.tensor->Canonical()) {
    SumOverHeads(pass, saved.out, pass.Weight(output_weight_), all_heads_, head_dim_, 1, y);
    then({0, y.rows});
  } else {
    kernels::LinearForward(pass.stream, pass.Thin(Output(pass.Weight(output_weight_))), saved.out,
                           {}, y, then);
  }
  pass.Progress();
}

void CrossAttentionLayer::BackwardInput(const Pass& pass, const Matrix& dy, SubLayer::Saved& base,
                                        const Matrix& dx) const {
  Saved& saved = Mine(base);
  const bool sharded = pass.tensor->Sharded();
  const Matrix dmemory = sharded ? saved.dmemory : saved.dfull_memory;
  saved.dy = dy;
  saved.memory = sharded ? saved.whole_memory : pass.source.memory;
  comm::Request gather = pass.tensor->StartGather(pass.source.memory, saved.memory);
  kernels::LinearInputGradient(pass.stream, Output(pass.Weight(output_weight_)), dy, saved.dout);
  const kernels::AttentionShape shape = Shape(pass);
  kernels::AttentionPartStartBackward(pass.stream, shape, saved.dquery, pass.workspace.attention);
  kernels::AttentionPartBackward(pass.stream, shape, {0, kernels::AttentionPartTasks(shape)},
                                 saved.query, Block(pass, saved), WeightDropout(pass), saved.out,
                                 saved.dout, saved.lse, saved.dquery, saved.dkey_values,
                                 pass.workspace.attention);
  if (pass.tensor->Canonical()) {
    SumOverHeads(pass, saved.dquery, pass.Weight(query_weight_), all_heads_, head_dim_, 1, dx);
    SumOverHeads(pass, saved.dkey_values, pass.Weight(key_weight_, 2), all_kv_heads_, head_dim_, 2,
                 saved.dfull_memory);
  } else {
    kernels::LinearInputGradient(pass.stream, Input(pass.Weight(query_weight_)), saved.dquery, dx);
    kernels::LinearInputGradient(pass.stream, Input(pass.Weight(key_weight_, 2)), saved.dkey_values,
                                 saved.dfull_memory);
  }
  pass.tensor->Reduce(saved.dfull_memory, dmemory);
  kernels::Add(pass.stream, dmemory, pass.source.dmemory);
  gather.Wait();
}

void CrossAttentionLayer::BackwardWeight(const Pass& pass, const SubLayer::Saved& base,
                                         comm::Request& pending) const {
  const Saved& saved = Mine(base);
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
