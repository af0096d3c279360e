// The usual feed-forward layer: two products around an activation, or SwiGLU with its gate.
#ifndef TRIREME_SRC_MODEL_DENSE_FFN_HPP_
#define TRIREME_SRC_MODEL_DENSE_FFN_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/ffn.hpp"

namespace trireme::model {

// y = dropout(act(x W_up^T + b)) W_down. A tensor rank holds a slice of the hidden features.
class DenseFfn : public Ffn {
 public:
  DenseFfn(const ParameterPlace& place, const std::string& name, std::uint32_t layer);

  std::unique_ptr<Ffn::Saved> MakeSaved() const override;
  void Allocate(const Pass& pass, Ffn::Saved& saved) const override;
  void AllocateCheap(const Pass& pass, Ffn::Saved& saved) const override;
  void AllocateBackward(const Pass& pass, Ffn::Saved& saved) const override;
  void ForwardHidden(const Pass& pass, const Matrix& x, Ffn::Saved& saved) const override;
  void ForwardOutput(const Pass& pass, const Ffn::Saved& saved, const Matrix& y,
                     RowsDone then) const override;
  void RecomputeCheap(const Pass& pass, Ffn::Saved& saved) const override;
  void BackwardInput(const Pass& pass, const Matrix& dy, Ffn::Saved& saved,
                     const Matrix& dx) const override;
  void BackwardWeight(const Pass& pass, const Ffn::Saved& saved,
                      comm::Request& pending) const override;
  ParameterId OutputBias() const override { return down_bias_; }
  void AddThinWeights(std::vector<ThinWeight>& weights) const override;

 private:
  struct Saved : Ffn::Saved {
    Matrix pre;      // [tokens, ffn] before the activation (ReLU: the same memory as hidden);
                     // SwiGLU: [tokens, 2 ffn], gate then up
    Matrix hidden;   // [tokens, ffn], after activation and dropout; cheap
    Matrix dhidden;  // [tokens, ffn]
    Matrix dpre;     // like pre (the memory of dhidden unless the activation is SwiGLU)
  };
  static Saved& Mine(Ffn::Saved& saved) { return static_cast<Saved&>(saved); }
  static const Saved& Mine(const Ffn::Saved& saved) { return static_cast<const Saved&>(saved); }

  bool Gated() const { return kind_ == kernels::ActivationKind::kSwiglu; }
  bool Relu() const { return kind_ == kernels::ActivationKind::kRelu; }
  int UpParts() const { return Gated() ? 2 : 1; }
  void InputGradient(const Pass& pass, const Matrix& dpre, const Matrix& dx) const;
  kernels::Linear Of(LinearSite site) const;
  kernels::Linear Up(const Pass& pass) const;    // x W_up^T
  kernels::Linear Down(const Pass& pass) const;  // hidden W_down
  kernels::Dropout HiddenDropout(const Pass& pass) const;

  kernels::ActivationKind kind_;
  std::int64_t ffn_;  // hidden features, global
  Part hidden_;       // of this rank
  bool bias_;
  double dropout_;
  std::uint32_t layer_;
  ParameterId up_weight_;  // gate (SwiGLU) and up: adjacent
  ParameterId up_bias_ = kernels::kNoParameter;
  ParameterId down_weight_;                       // [ffn, dim], input-major
  ParameterId down_bias_ = kernels::kNoParameter;  // [dim]
};

}  // namespace trireme::model

#endif  // TRIREME_SRC_MODEL_DENSE_FFN_HPP_
