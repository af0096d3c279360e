#include "trireme/model/layers.hpp"

namespace trireme::model {

NormLayer::NormLayer(const Options& options, tensor::Registry& registry, const std::string& name)
    : kind_(options.norm == Norm::kLayerNorm ? kernels::NormKind::kLayerNorm
                                             : kernels::NormKind::kRmsNorm),
      epsilon_(options.norm_epsilon) {
  const tensor::Initialiser one{tensor::InitialiserKind::kConstant, 1.0};
  const tensor::Initialiser zero{tensor::InitialiserKind::kConstant, 0.0};
  weight_ = registry.Add({.name = name + ".weight", .shape = {options.dim}, .initialiser = one});
  if (options.bias && options.norm == Norm::kLayerNorm) {
    bias_ = registry.Add({.name = name + ".bias", .shape = {options.dim}, .initialiser = zero});
  }
}

void NormLayer::Allocate(const Pass& pass, Saved& saved) const {
  saved.statistics = pass.Allocate(pass.Tokens(), 2);
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
