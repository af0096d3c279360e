// QueryKeyNorm: the norm's kernels on the columns of one head after the other.
#include "query_key_norm.hpp"

#include <utility>

#include "initialisers.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/norm.hpp"

namespace trireme::model {

namespace {

// Heads with queries or keys.
std::int64_t Heads(const kernels::AttentionShape& shape) { return shape.heads + shape.kv_heads; }

Matrix OfHead(const kernels::AttentionShape& shape, const Matrix& m, std::int64_t head) {
  return m.Columns(head * shape.head_dim, shape.head_dim);
}

}  // namespace

QueryKeyNorm::QueryKeyNorm(const ParameterPlace& place, const std::string& name)
    : epsilon_(place.options.norm_epsilon) {
  const auto add = [&](const char* part) {
    kernels::Parameter parameter = VectorOf(name + part, place.options.head_dim, 1);
    parameter.early = true;
    return AddWhole(place, std::move(parameter), kernels::GradientSum::kTensor);
  };
  query_weight_ = add(".query_norm.weight");
  key_weight_ = add(".key_norm.weight");
}

std::unique_ptr<QueryKeyStep::Saved> QueryKeyNorm::MakeSaved() const {
  return std::make_unique<Saved>();
}

void QueryKeyNorm::Allocate(const Pass& pass, const kernels::AttentionShape& shape,
                            QueryKeyStep::Saved* base) const {
  auto& saved = static_cast<Saved&>(*base);
  saved.x = pass.Allocate(pass.lives.input, pass.Tokens(), Heads(shape) * shape.head_dim);
  saved.statistics = pass.AllocateSums(pass.lives.input, Heads(shape) * pass.Tokens(), 2);
}

void QueryKeyNorm::Forward(const Pass& pass, const kernels::AttentionShape& shape,
                           QueryKeyStep::Saved* base, const Matrix& qkv) const {
  const auto& saved = static_cast<Saved&>(*base);
  kernels::Copy(pass.stream, qkv.Columns(0, saved.x.columns), saved.x);
  const Matrix query = pass.Value(query_weight_), key = pass.Value(key_weight_);
  for (std::int64_t head = 0; head < Heads(shape); ++head) {
    kernels::NormForward(pass.stream, kernels::NormKind::kRmsNorm, OfHead(shape, saved.x, head),
                         head < shape.heads ? query : key, {}, epsilon_, OfHead(shape, qkv, head),
                         saved.statistics.Rows(head * qkv.rows, qkv.rows));
  }
}

void QueryKeyNorm::Backward(const Pass& pass, const kernels::AttentionShape& shape,
                            QueryKeyStep::Saved* base, const Matrix& dqkv) const {
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

}  // namespace trireme::model
