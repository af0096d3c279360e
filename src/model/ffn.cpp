// The kinds of feed-forward layers.
#include "trireme/model/ffn.hpp"

#include "trireme/kernels/linear.hpp"

namespace trireme::model {

// DenseFfn: two products around an activation, or SwiGLU with its gate.

// y = dropout(act(x W_up^T + b)) W_down. A tensor rank holds a slice of the hidden features.
class DenseFfn : public Ffn {
 public:
  DenseFfn(const ParameterPlace& place, const std::string& name, std::uint32_t layer)
      : kind_(KindOf(place.options.activation)),
        ffn_(place.options.ffn),
        hidden_(place.tensor.Slice(place.options.ffn)),
        bias_(place.options.bias),
        dropout_(place.options.ffn_dropout),
        layer_(layer),
        dim_(place.options.dim) {
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

  std::unique_ptr<Ffn::Saved> MakeSaved() const override { return std::make_unique<Saved>(); }
  void Allocate(const Pass& pass, Ffn::Saved& base) const override {
    Saved& saved = Mine(base);
    // ReLU keeps only its output, which is positive exactly if the input was (and was not dropped).
    device::Arena* life = Relu() ? pass.lives.weight : pass.lives.input;
    saved.pre = pass.Allocate(life, pass.Tokens(), UpParts() * hidden_.Size());
    // `hidden` gets no transpose: recomputing a pre-norm block does not run its product.
    saved.up_transposes.x = pass.AllocateTranspose(pass.Tokens(), dim_);
    AllocateCheap(pass, base);
  }
  void AllocateCheap(const Pass& pass, Ffn::Saved& base) const override {
    Saved& saved = Mine(base);
    saved.hidden =
        Relu() ? saved.pre : pass.Allocate(pass.lives.cheap, pass.Tokens(), hidden_.Size());
  }
  void AllocateBackward(const Pass& pass, Ffn::Saved& base) const override {
    Saved& saved = Mine(base);
    saved.dhidden = pass.Allocate(Gated() ? pass.lives.scratch : pass.lives.backward, pass.Tokens(),
                                  hidden_.Size());
    saved.dpre = Gated() ? pass.Allocate(pass.lives.backward, pass.Tokens(), 2 * hidden_.Size())
                         : saved.dhidden;
    saved.up_transposes.dy = pass.AllocateTranspose(pass.Tokens(), UpParts() * hidden_.Size());
    saved.down_transposes.dy = pass.AllocateTranspose(pass.Tokens(), dim_);
  }
  void ForwardHidden(const Pass& pass, const Matrix& x, Ffn::Saved& base) const override {
    Saved& saved = Mine(base);
    saved.x = x;
    const Matrix bias = bias_ ? pass.Value(up_bias_, UpParts()) : Matrix{};
    kernels::LinearActivation(pass.stream, Up(pass, saved), x, bias, kind_, HiddenDropout(pass),
                              saved.pre, saved.hidden);
  }
  void ForwardOutput(const Pass& pass, const Ffn::Saved& base, const Matrix& y,
                     RowsDone then) const override {
    const Saved& saved = Mine(base);
    if (!pass.tensor->Canonical()) {
      return kernels::LinearForward(pass.stream, Down(pass, saved), saved.hidden, {}, y, then);
    }
    const Matrix weight = pass.Weight(down_weight_);
    SumSlices(pass, y, [&](int slice, const Matrix& sum) {
      const Part part = pass.tensor->SliceOf(ffn_, slice);
      const std::int64_t begin = part.begin - hidden_.begin;
      kernels::MatrixMultiply(pass.stream, Form::kPlain, saved.hidden.Columns(begin, part.Size()),
                              Form::kPlain, weight.Rows(begin, part.Size()), sum, false);
    });
    then({0, y.rows});
  }
  void RecomputeCheap(const Pass& pass, Ffn::Saved& base) const override {
    Saved& saved = Mine(base);
    if (Relu()) return;
    // `pre` includes the bias already.
    kernels::ActivationForward(pass.stream, kind_, saved.pre, {}, HiddenDropout(pass),
                               saved.hidden);
  }
  void BackwardInput(const Pass& pass, const Matrix& dy, Ffn::Saved& base,
                     const Matrix& dx) const override {
    Saved& saved = Mine(base);
    saved.dy = dy;
    kernels::LinearActivationGradient(pass.stream, Down(pass, saved), dy, kind_,
                                      Relu() ? saved.hidden : saved.pre, HiddenDropout(pass),
                                      saved.dhidden, saved.dpre);
    InputGradient(pass, saved, dx);
  }
  void BackwardWeight(const Pass& pass, const Ffn::Saved& base,
                      comm::Request& pending) const override {
    const Saved& saved = Mine(base);
    const kernels::BiasGradients down_bias = pass.BiasGradients(down_bias_, 1, true);
    const kernels::BiasGradients up_bias = pass.BiasGradients(up_bias_, UpParts(), false);
    kernels::Linear down = Of(LinearSite::kDown, &saved), up = Of(LinearSite::kUp, &saved);
    down.biases = &down_bias;
    up.biases = &up_bias;
    kernels::LinearWeightGradient(pass.stream, down, saved.hidden, saved.dy,
                                  pass.Gradient(down_weight_));
    pending.Test();
    kernels::LinearWeightGradient(pass.stream, up, saved.x, saved.dpre,
                                  pass.Gradient(up_weight_, UpParts()));
    pending.Test();
  }
  ParameterId OutputBias() const override { return down_bias_; }
  void AddLayers(const kernels::Registry& registry,
                 std::vector<kernels::Linear>& layers) const override {
    layers.push_back(Of(LinearSite::kUp));
    layers.back().weight = registry.Value(up_weight_, UpParts());
    layers.push_back(Of(LinearSite::kDown));
    layers.back().weight = registry.Value(down_weight_);
  }

 private:
  struct Saved : Ffn::Saved {
    Matrix pre;      // [tokens, ffn] before the activation (ReLU: the same memory as hidden);
                     // SwiGLU: [tokens, 2 ffn], gate then up
    Matrix hidden;   // [tokens, ffn], after activation and dropout; cheap
    Matrix dhidden;  // [tokens, ffn]
    Matrix dpre;     // like pre (the memory of dhidden unless the activation is SwiGLU)
    kernels::Fp8Transposes up_transposes, down_transposes;
  };
  static Saved& Mine(Ffn::Saved& saved) { return static_cast<Saved&>(saved); }
  static const Saved& Mine(const Ffn::Saved& saved) { return static_cast<const Saved&>(saved); }

  bool Gated() const { return kind_ == kernels::ActivationKind::kSwiglu; }
  bool Relu() const { return kind_ == kernels::ActivationKind::kRelu; }
  int UpParts() const { return Gated() ? 2 : 1; }
  // dx = dpre W_up. In canonical arithmetic, adds up slices; each has its gate and up part.
  void InputGradient(const Pass& pass, const Saved& saved, const Matrix& dx) const {
    const Matrix& dpre = saved.dpre;
    if (!pass.tensor->Canonical()) {
      return kernels::LinearInputGradient(pass.stream, Up(pass, saved), dpre, dx);
    }
    const Matrix weight = pass.Weight(up_weight_, UpParts());
    SumSlices(pass, dx, [&](int slice, const Matrix& sum) {
      const Part features = pass.tensor->SliceOf(ffn_, slice);
      for (int part = 0; part < UpParts(); ++part) {
        const std::int64_t begin = part * hidden_.Size() + features.begin - hidden_.begin;
        kernels::MatrixMultiply(pass.stream, Form::kPlain, dpre.Columns(begin, features.Size()),
                                Form::kPlain, weight.Rows(begin, features.Size()), sum, part > 0);
      }
    });
  }
  kernels::Linear Of(LinearSite site, const Saved* saved = nullptr) const {
    const bool up = site == LinearSite::kUp;
    kernels::Linear linear{SiteOf(layer_, site), up ? Form::kTransposed : Form::kPlain, {}};
    if (saved != nullptr) {
      linear.transposes = up ? &saved->up_transposes : &saved->down_transposes;
    }
    return linear;
  }
  kernels::Linear Up(const Pass& pass, const Saved& saved) const {
    kernels::Linear linear = Of(LinearSite::kUp, &saved);
    linear.weight = pass.Weight(up_weight_, UpParts());
    return pass.Thin(linear);
  }  // x W_up^T
  kernels::Linear Down(const Pass& pass, const Saved& saved) const {
    kernels::Linear linear = Of(LinearSite::kDown, &saved);
    linear.weight = pass.Weight(down_weight_);
    return pass.Thin(linear);
  }  // hidden W_down
  kernels::Dropout HiddenDropout(const Pass& pass) const {
    return pass.MakeDropout(dropout_, Purpose::kFfnDropout, layer_, 0, 0, hidden_.begin);
  }

  kernels::ActivationKind kind_;
  std::int64_t ffn_;  // hidden features, global
  Part hidden_;       // hidden features of this rank
  bool bias_;
  double dropout_;
  std::uint32_t layer_;
  std::int64_t dim_;
  ParameterId up_weight_;  // gate (SwiGLU only) and up, adjacent
  ParameterId up_bias_ = kernels::kNoParameter;
  ParameterId down_weight_;                        // [ffn, dim], input-major
  ParameterId down_bias_ = kernels::kNoParameter;  // [dim]
};

kernels::ActivationKind KindOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return kernels::ActivationKind::kRelu;
    case Activation::kGelu:
      return kernels::ActivationKind::kGelu;
    default:
      return kernels::ActivationKind::kSwiglu;
  }
}

std::unique_ptr<Ffn> MakeFfn(const ParameterPlace& place, const std::string& name,
                             std::uint32_t layer) {
  return std::make_unique<DenseFfn>(place, name, layer);
}

using kernels::Form;

}  // namespace trireme::model
