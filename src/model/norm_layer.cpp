// NormLayer: parameters, forward and backward pass.
#include "trireme/model/norm_layer.hpp"

namespace trireme::model {

NormLayer::NormLayer(const ParameterPlace& place, const std::string& name, bool early)
    : kind_(place.options.norm == Norm::kLayerNorm ? kernels::NormKind::kLayerNorm
                                                   : kernels::NormKind::kRmsNorm),
      epsilon_(place.options.norm_epsilon) {
  // If the rows are sharded, a rank's gradient is one term of the sum over the tensor group; in
  // canonical arithmetic Backward sums it already.
  const parallel::TensorGroup& tensor = place.tensor;
  const kernels::GradientSum sum = tensor.Sharded() && !tensor.Canonical()
                                       ? kernels::GradientSum::kTensor
                                       : kernels::GradientSum::kNone;
  const auto add = [&](kernels::Parameter parameter) {
    parameter.early = early;
    return AddWhole(place, std::move(parameter), sum);
  };
  weight_ = add(VectorOf(name + ".weight", place.options.dim, 1));
  if (place.options.bias && place.options.norm == Norm::kLayerNorm) {
    bias_ = add(BiasOf(name, place.options.dim));
  }
}

void NormLayer::Allocate(const Pass& pass, Saved& saved) const {
  saved.statistics = pass.AllocateSums(pass.lives.input, pass.Rows().Size(), 2);
}

void NormLayer::Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const {
  saved.x = x;
  kernels::NormForward(pass.stream, kind_, x, pass.Value(weight_), pass.Value(bias_), epsilon_, y,
                       saved.statistics);
}

void NormLayer::Forward(const Pass& pass, const device::Stream& stream, const Residual& residual,
                        const Saved& saved, const Matrix& y, const Part& rows) const {
  const auto of = [&rows](const Matrix& m) { return m.Rows(rows.begin, rows.Size()); };
  kernels::ResidualNormForward(stream, kind_, of(residual.x), of(residual.branch), residual.bias,
                               residual.dropout.From(rows.begin), of(saved.x), pass.Value(weight_),
                               pass.Value(bias_), epsilon_, of(y), of(saved.statistics));
}

void NormLayer::Backward(const Pass& pass, const Saved& saved,
                         kernels::NormBackwardPass backward) const {
  backward.kind = kind_;
  backward.x = saved.x;
  backward.weight = pass.Value(weight_);
  backward.statistics = saved.statistics;
  backward.scratch = pass.workspace.reduction;
  if (pass.tensor->Canonical()) {
    if (!backward.more.Empty()) kernels::Add(pass.stream, backward.more, backward.dy);
    backward.more = {};
    CanonicalBackwardWeight(pass, saved, backward.dy);
  } else {
    backward.dweight = pass.Gradient(weight_);
    backward.dbias = pass.Gradient(bias_);
  }
  kernels::NormBackward(pass.stream, backward);
}

// The rows of all tensor ranks are cut into one part per canonical slice, whatever the layout. Each
// part's gradient is computed alone, and the fixed tree adds them up.
void NormLayer::CanonicalBackwardWeight(const Pass& pass, const Saved& saved,
                                        const Matrix& dy) const {
  const parallel::TensorGroup& tensor = *pass.tensor;
  const Matrix& parts = pass.workspace.norm_parts;
  const std::int64_t dim = parts.columns / 2, begin = pass.Rows().begin;
  const int all = tensor.AllSlices(), own = tensor.Sharded() ? tensor.Slices() : all;
  const int first = tensor.Sharded() ? tensor.FirstSlice() : 0;
  kernels::Clear(pass.stream, parts);
  for (int slice = first; slice < first + own; ++slice) {
    const Part rows = PartOf(pass.Tokens(), slice, all);
    const Matrix part = parts.Rows(slice, 1);
    const auto rows_of = [&](const Matrix& m) { return m.Rows(rows.begin - begin, rows.Size()); };
    kernels::NormBackwardWeight(pass.stream, rows_of(dy), rows_of(saved.x),
                                rows_of(saved.statistics), part.Columns(0, dim),
                                bias_ == kernels::kNoParameter ? Matrix{} : part.Columns(dim, dim),
                                pass.workspace.reduction);
  }
  if (tensor.Sharded()) {
    tensor.Transfers().AllGatherInPlace(
        parts.dtype, parts.data, comm::Counts::Cut(all * parts.columns, own * parts.columns));
  }
  parallel::TreeSum(pass.stream, parts.dtype, parts.data, all, parts.columns);
  kernels::Add(pass.stream, parts.Rows(0, 1).Columns(0, dim), pass.Gradient(weight_));
  if (bias_ == kernels::kNoParameter) return;
  kernels::Add(pass.stream, parts.Rows(0, 1).Columns(dim, dim), pass.Gradient(bias_));
}

}  // namespace trireme::model
