#include "initialisers.hpp"
#include "trireme/model/layers.hpp"

namespace trireme::model {

NormLayer::NormLayer(const Placement& placement, const std::string& name)
    : kind_(placement.options.norm == Norm::kLayerNorm ? kernels::NormKind::kLayerNorm
                                                       : kernels::NormKind::kRmsNorm),
      epsilon_(placement.options.norm_epsilon) {
  // With a shard of the rows, a rank's gradient is a part of the sum over all of them.
  const tensor::GradientSum sum =
      placement.tensor.Sharded() ? tensor::GradientSum::kTensor : tensor::GradientSum::kNone;
  weight_ = AddWhole(placement, VectorOf(name + ".weight", placement.options.dim, 1), sum);
  if (placement.options.bias && placement.options.norm == Norm::kLayerNorm) {
    bias_ = AddWhole(placement, BiasOf(name, placement.options.dim), sum);
  }
}

void NormLayer::Allocate(const Pass& pass, Saved& saved) const {
  saved.statistics = pass.Allocate(pass.lives.input, pass.Rows().Size(), 2);
}

void NormLayer::Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const {
  saved.x = x;
  kernels::NormForward(pass.stream, kind_, x, pass.Value(weight_), pass.Value(bias_), epsilon_, y,
                       saved.statistics);
}

void NormLayer::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx,
                              bool accumulate) const {
  saved.dy = dy;
  kernels::NormBackwardInput(pass.stream, kind_, dy, saved.x, pass.Value(weight_), saved.statistics,
                             dx, accumulate);
}

void NormLayer::BackwardWeight(const Pass& pass, const Saved& saved) const {
  kernels::NormBackwardWeight(pass.stream, saved.dy, saved.x, saved.statistics,
                              pass.Gradient(weight_), pass.Gradient(bias_),
                              pass.workspace.reduction);
}

}  // namespace trireme::model
