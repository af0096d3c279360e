#include "initialisers.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/model/layers.hpp"

namespace trireme::model {

using kernels::ActivationKind;
using kernels::Form;

FfnLayer::FfnLayer(const Options& options, tensor::Registry& registry, const std::string& name,
                   std::uint32_t layer)
    : options_(options), layer_(layer) {
  const bool gated = options.activation == Activation::kSwiglu;
  if (gated) {
    up_weight_ = registry.Add(WeightOf(options, name + ".gate", options.ffn, options.dim));
    registry.Add(WeightOf(options, name + ".up", options.ffn, options.dim, false, true));
  } else {
    up_weight_ = registry.Add(WeightOf(options, name + ".up", options.ffn, options.dim));
  }
  if (options.bias && gated) {
    up_bias_ = registry.Add(BiasOf(name + ".gate", options.ffn));
    registry.Add(BiasOf(name + ".up", options.ffn, true));
  } else if (options.bias) {
    up_bias_ = registry.Add(BiasOf(name + ".up", options.ffn));
  }
  down_weight_ = registry.Add(WeightOf(options, name + ".down", options.ffn, options.dim, true));
  if (options.bias) down_bias_ = registry.Add(BiasOf(name + ".down", options.dim));
}

ActivationKind FfnLayer::Kind() const {
  switch (options_.activation) {
    case Activation::kRelu:
      return ActivationKind::kRelu;
    case Activation::kGelu:
      return ActivationKind::kGelu;
    default:
      return ActivationKind::kSwiglu;
  }
}

void FfnLayer::Allocate(const Pass& pass, Saved& saved) const {
  saved.pre = pass.Allocate(pass.Tokens(), UpParts() * options_.ffn);
  saved.hidden =
      Kind() == ActivationKind::kRelu ? saved.pre : pass.Allocate(pass.Tokens(), options_.ffn);
}

void FfnLayer::AllocateBackward(const Pass& pass, Saved& saved) const {
  saved.dhidden = pass.Allocate(pass.Tokens(), options_.ffn);
  saved.dpre = Kind() == ActivationKind::kSwiglu ? pass.Allocate(pass.Tokens(), 2 * options_.ffn)
                                                 : saved.dhidden;
}

void FfnLayer::Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const {
  saved.x = x;
  kernels::MatrixMultiply(pass.stream, Form::kPlain, x, Form::kTransposed,
                          pass.Value(up_weight_, UpParts()), saved.pre, false);
  kernels::ActivationForward(
      pass.stream, Kind(), saved.pre, options_.bias ? pass.Value(up_bias_, UpParts()) : Matrix{},
      pass.MakeDropout(options_.ffn_dropout, Purpose::kFfnDropout, layer_), saved.hidden);
  kernels::MatrixMultiply(pass.stream, Form::kPlain, saved.hidden, Form::kPlain,
                          pass.Value(down_weight_), y, false);
}

void FfnLayer::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                             const Matrix& dx) const {
  saved.dy = dy;
  kernels::MatrixMultiply(pass.stream, Form::kPlain, dy, Form::kTransposed,
                          pass.Value(down_weight_), saved.dhidden, false);
  kernels::ActivationBackward(pass.stream, Kind(),
                              Kind() == ActivationKind::kRelu ? saved.hidden : saved.pre,
                              pass.MakeDropout(options_.ffn_dropout, Purpose::kFfnDropout, layer_),
                              saved.dhidden, saved.dpre);
  kernels::MatrixMultiply(pass.stream, Form::kPlain, saved.dpre, Form::kPlain,
                          pass.Value(up_weight_, UpParts()), dx, false);
}

void FfnLayer::BackwardWeight(const Pass& pass, const Saved& saved) const {
  kernels::MatrixMultiply(pass.stream, Form::kTransposed, saved.hidden, Form::kPlain, saved.dy,
                          pass.Gradient(down_weight_), true);
  kernels::MatrixMultiply(pass.stream, Form::kTransposed, saved.dpre, Form::kPlain, saved.x,
                          pass.Gradient(up_weight_, UpParts()), true);
  if (!options_.bias) return;
  kernels::ColumnSum(pass.stream, saved.dy, pass.Gradient(down_bias_), pass.workspace.reduction);
  kernels::ColumnSum(pass.stream, saved.dpre, pass.Gradient(up_bias_, UpParts()),
                     pass.workspace.reduction);
}

}  // namespace trireme::model
