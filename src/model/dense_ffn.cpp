// DenseFfn: two products around an activation.
#include "dense_ffn.hpp"

#include "initialisers.hpp"
#include "slice_sums.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/kernels/norm.hpp"

namespace trireme::model {

using kernels::Form;

DenseFfn::DenseFfn(const ParameterPlace& place, const std::string& name, std::uint32_t layer)
    : kind_(KindOf(place.options.activation)),
      ffn_(place.options.ffn),
      hidden_(place.tensor.Slice(place.options.ffn)),
      bias_(place.options.bias),
      dropout_(place.options.ffn_dropout),
      layer_(layer) {
  const Options& o = place.options;
  if (Gated()) {
    up_weight_ = AddSlice(place, WeightOf(o, name + ".gate", o.ffn, o.dim), hidden_);
    AddSlice(place, WeightOf(o, name + ".up", o.ffn, o.dim, false, true), hidden_);
  } else {
    up_weight_ = AddSlice(place, WeightOf(o, name + ".up", o.ffn, o.dim), hidden_);
  }
  if (bias_ && Gated()) {
    up_bias_ = AddSlice(place, BiasOf(name + ".gate", o.ffn), hidden_);
    AddSlice(place, BiasOf(name + ".up", o.ffn, true), hidden_);
  } else if (bias_) {
    up_bias_ = AddSlice(place, BiasOf(name + ".up", o.ffn), hidden_);
  }
  down_weight_ = AddSlice(place, WeightOf(o, name + ".down", o.ffn, o.dim, true), hidden_);
  if (bias_) down_bias_ = AddWhole(place, BiasOf(name + ".down", o.dim));
}

kernels::Dropout DenseFfn::HiddenDropout(const Pass& pass) const {
  return pass.MakeDropout(dropout_, Purpose::kFfnDropout, layer_, 0, 0, hidden_.begin);
}

kernels::Linear DenseFfn::Of(LinearSite site) const {
  return {SiteOf(layer_, site), site == LinearSite::kUp ? Form::kTransposed : Form::kPlain, {}};
}

kernels::Linear DenseFfn::Up(const Pass& pass) const {
  kernels::Linear linear = Of(LinearSite::kUp);
  linear.weight = pass.Value(up_weight_, UpParts());
  pass.MakeThin(linear, up_weight_);
  return linear;
}

kernels::Linear DenseFfn::Down(const Pass& pass) const {
  kernels::Linear linear = Of(LinearSite::kDown);
  linear.weight = pass.Value(down_weight_);
  pass.MakeThin(linear, down_weight_);
  return linear;
}

void DenseFfn::AddThinWeights(std::vector<ThinWeight>& weights) const {
  weights.push_back({up_weight_, UpParts(), Of(LinearSite::kUp).form});
  weights.push_back({down_weight_, 1, Of(LinearSite::kDown).form});
}

std::unique_ptr<Ffn::Saved> DenseFfn::MakeSaved() const { return std::make_unique<Saved>(); }

void DenseFfn::Allocate(const Pass& pass, Ffn::Saved& base) const {
  Saved& saved = Mine(base);
  // ReLU keeps its output alone: the input was positive if the output is.
  device::Arena* life = Relu() ? pass.lives.weight : pass.lives.input;
  saved.pre = pass.Allocate(life, pass.Tokens(), UpParts() * hidden_.Size());
  AllocateCheap(pass, base);
}

void DenseFfn::AllocateCheap(const Pass& pass, Ffn::Saved& base) const {
  Saved& saved = Mine(base);
  saved.hidden =
      Relu() ? saved.pre : pass.Allocate(pass.lives.cheap, pass.Tokens(), hidden_.Size());
}

void DenseFfn::AllocateBackward(const Pass& pass, Ffn::Saved& base) const {
  Saved& saved = Mine(base);
  saved.dhidden = pass.Allocate(Gated() ? pass.lives.scratch : pass.lives.backward, pass.Tokens(),
                                hidden_.Size());
  saved.dpre = Gated() ? pass.Allocate(pass.lives.backward, pass.Tokens(), 2 * hidden_.Size())
                       : saved.dhidden;
}

void DenseFfn::ForwardHidden(const Pass& pass, const Matrix& x, Ffn::Saved& base) const {
  Saved& saved = Mine(base);
  saved.x = x;
  const Matrix bias = bias_ ? pass.Value(up_bias_, UpParts()) : Matrix{};
  kernels::LinearActivation(pass.stream, Up(pass), x, bias, kind_, HiddenDropout(pass), saved.pre,
                            saved.hidden);
}

void DenseFfn::ForwardOutput(const Pass& pass, const Ffn::Saved& base, const Matrix& y,
                             RowsDone then) const {
  const Saved& saved = Mine(base);
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
void DenseFfn::InputGradient(const Pass& pass, const Matrix& dpre, const Matrix& dx) const {
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

void DenseFfn::RecomputeCheap(const Pass& pass, Ffn::Saved& base) const {
  Saved& saved = Mine(base);
  if (Relu()) return;
  // The bias is in `pre` already.
  kernels::ActivationForward(pass.stream, kind_, saved.pre, {}, HiddenDropout(pass), saved.hidden);
}

void DenseFfn::BackwardInput(const Pass& pass, const Matrix& dy, Ffn::Saved& base,
                             const Matrix& dx) const {
  Saved& saved = Mine(base);
  saved.dy = dy;
  kernels::LinearActivationGradient(pass.stream, Down(pass), dy, kind_,
                                    Relu() ? saved.hidden : saved.pre, HiddenDropout(pass),
                                    saved.dhidden, saved.dpre);
  InputGradient(pass, saved.dpre, dx);
}

void DenseFfn::BackwardWeight(const Pass& pass, const Ffn::Saved& base,
                              comm::Request& pending) const {
  const Saved& saved = Mine(base);
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
