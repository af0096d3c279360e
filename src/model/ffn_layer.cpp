#include "initialisers.hpp"
#include "slice_sums.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/model/layers.hpp"

namespace trireme::model {

using kernels::ActivationKind;
using kernels::Form;

namespace {

ActivationKind KindOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return ActivationKind::kRelu;
    case Activation::kGelu:
      return ActivationKind::kGelu;
    default:
      return ActivationKind::kSwiglu;
  }
}

}  // namespace

FfnLayer::FfnLayer(const Placement& placement, const std::string& name, std::uint32_t layer)
    : kind_(KindOf(placement.options.activation)),
      ffn_(placement.options.ffn),
      hidden_(placement.tensor.Slice(placement.options.ffn)),
      bias_(placement.options.bias),
      dropout_(placement.options.ffn_dropout),
      layer_(layer) {
  const Options& o = placement.options;
  if (Gated()) {
    up_weight_ = AddSlice(placement, WeightOf(o, name + ".gate", o.ffn, o.dim), hidden_);
    AddSlice(placement, WeightOf(o, name + ".up", o.ffn, o.dim, false, true), hidden_);
  } else {
    up_weight_ = AddSlice(placement, WeightOf(o, name + ".up", o.ffn, o.dim), hidden_);
  }
  if (bias_ && Gated()) {
    up_bias_ = AddSlice(placement, BiasOf(name + ".gate", o.ffn), hidden_);
    AddSlice(placement, BiasOf(name + ".up", o.ffn, true), hidden_);
  } else if (bias_) {
    up_bias_ = AddSlice(placement, BiasOf(name + ".up", o.ffn), hidden_);
  }
  down_weight_ = AddSlice(placement, WeightOf(o, name + ".down", o.ffn, o.dim, true), hidden_);
  if (bias_) down_bias_ = AddWhole(placement, BiasOf(name + ".down", o.dim));
}

kernels::Dropout FfnLayer::HiddenDropout(const Pass& pass) const {
  return pass.MakeDropout(dropout_, Purpose::kFfnDropout, layer_, 0, 0, hidden_.begin);
}

kernels::Linear FfnLayer::Of(LinearSite site) const {
  return {SiteOf(layer_, site), site == LinearSite::kUp ? Form::kTransposed : Form::kPlain, {}};
}

kernels::Linear FfnLayer::Up(const Pass& pass) const {
  kernels::Linear linear = Of(LinearSite::kUp);
  linear.weight = pass.Value(up_weight_, UpParts());
  return linear;
}

kernels::Linear FfnLayer::Down(const Pass& pass) const {
  kernels::Linear linear = Of(LinearSite::kDown);
  linear.weight = pass.Value(down_weight_);
  return linear;
}

void FfnLayer::Allocate(const Pass& pass, Saved& saved) const {
  // ReLU's output is all that is kept: it says where the input was positive.
  device::Arena* life = Relu() ? pass.lives.weight : pass.lives.input;
  saved.pre = pass.Allocate(life, pass.Tokens(), UpParts() * hidden_.Size());
  AllocateCheap(pass, saved);
}

void FfnLayer::AllocateCheap(const Pass& pass, Saved& saved) const {
  saved.hidden =
      Relu() ? saved.pre : pass.Allocate(pass.lives.cheap, pass.Tokens(), hidden_.Size());
}

void FfnLayer::AllocateBackward(const Pass& pass, Saved& saved) const {
  saved.dhidden = pass.Allocate(Gated() ? pass.lives.scratch : pass.lives.backward, pass.Tokens(),
                                hidden_.Size());
  saved.dpre = Gated() ? pass.Allocate(pass.lives.backward, pass.Tokens(), 2 * hidden_.Size())
                       : saved.dhidden;
}

void FfnLayer::ForwardHidden(const Pass& pass, const Matrix& x, Saved& saved) const {
  saved.x = x;
  const Matrix bias = bias_ ? pass.Value(up_bias_, UpParts()) : Matrix{};
  kernels::LinearActivation(pass.stream, Up(pass), x, bias, kind_, HiddenDropout(pass), saved.pre,
                            saved.hidden);
}

void FfnLayer::ForwardOutput(const Pass& pass, const Saved& saved, const Matrix& y,
                             RowsDone then) const {
  if (!pass.tensor->Canonical()) {
    return kernels::LinearForward(pass.stream, Down(pass), saved.hidden, {}, y, then);
  }
  const Matrix weight = pass.Value(down_weight_);
  SumSlices(pass, y, [&](int slice, const Matrix& sum) {
    const Part part = pass.tensor->SliceOf(ffn_, slice);
    const std::int64_t begin = part.begin - hidden_.begin;
    kernels::MatrixMultiply(pass.stream, Form::kPlain, saved.hidden.Columns(begin, part.Size()),
                            Form::kPlain, weight.Rows(begin, part.Size()), sum, false);
  });
  then({0, y.rows});
}

// dx = dpre W_up; canonical slices of gate and up apart.
void FfnLayer::InputGradient(const Pass& pass, const Matrix& dpre, const Matrix& dx) const {
  if (!pass.tensor->Canonical()) {
    return kernels::LinearInputGradient(pass.stream, Up(pass), dpre, dx);
  }
  const Matrix weight = pass.Value(up_weight_, UpParts());
  SumSlices(pass, dx, [&](int slice, const Matrix& sum) {
    const Part features = pass.tensor->SliceOf(ffn_, slice);
    for (int part = 0; part < UpParts(); ++part) {
      const std::int64_t begin = part * hidden_.Size() + features.begin - hidden_.begin;
      kernels::MatrixMultiply(pass.stream, Form::kPlain, dpre.Columns(begin, features.Size()),
                              Form::kPlain, weight.Rows(begin, features.Size()), sum, part > 0);
    }
  });
}

void FfnLayer::RecomputeHidden(const Pass& pass, Saved& saved) const {
  if (Relu()) return;
  // The bias is in `pre` already.
  kernels::ActivationForward(pass.stream, kind_, saved.pre, {}, HiddenDropout(pass), saved.hidden);
}

void FfnLayer::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                             const Matrix& dx) const {
  saved.dy = dy;
  kernels::LinearActivationGradient(pass.stream, Down(pass), dy, kind_,
                                    Relu() ? saved.hidden : saved.pre, HiddenDropout(pass),
                                    saved.dhidden, saved.dpre);
  InputGradient(pass, saved.dpre, dx);
}

void FfnLayer::BackwardWeight(const Pass& pass, const Saved& saved, comm::Request& pending) const {
  kernels::LinearWeightGradient(pass.stream, Of(LinearSite::kDown), saved.hidden, saved.dy,
                                pass.Gradient(down_weight_));
  pending.Test();
  kernels::LinearWeightGradient(pass.stream, Of(LinearSite::kUp), saved.x, saved.dpre,
                                pass.Gradient(up_weight_, UpParts()));
  pending.Test();
  if (!bias_) return;
  kernels::ColumnSum(pass.stream, saved.dy, pass.Gradient(down_bias_), pass.workspace.reduction);
  kernels::ColumnSum(pass.stream, saved.dpre, pass.Gradient(up_bias_, UpParts()),
                     pass.workspace.reduction);
}

}  // namespace trireme::model
