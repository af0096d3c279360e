// LayerNorm or RMSNorm, alone or after a residual addition.
#pragma once

#include <string>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// Operands of x + dropout(branch + bias), which adds a sub-layer's output to the residual stream.
struct Residual {
  Matrix x;                  // [rows, dim]
  Matrix branch;             // [rows, dim]
  Matrix bias;               // [1, dim] or Empty()
  kernels::Dropout dropout;  // for operands that begin at row 0
};

// A norm of this rank's rows of the residual stream.
class NormLayer {
 public:
  struct Saved {
    Matrix x;           // [rows, dim], input; the caller's memory
    Matrix statistics;  // [rows, 2]
  };
  // early: the weight gradient is computed together with the input gradient.
  NormLayer(const ParameterPlace& place, const std::string& name, bool early = false);

  void Allocate(const Pass& pass, Saved& saved) const;  // what Forward fills
  // x, y: [rows, dim]; y is overwritten.
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const;
  // saved.x = residual.x + dropout(branch + bias), then y = norm(saved.x), for the rows `rows` of
  // all operands. The caller sets saved.x, which may be the branch's memory. Several threads may
  // call this, each for its own rows.
  void Forward(const Pass& pass, const device::Stream& stream, const Residual& residual,
               const Saved& saved, const Matrix& y, const Part& rows) const;
  // Gradients of input and weights. The caller sets dy, more, residual, dx, dropout and dbranch of
  // kernels::NormBackwardPass. Canonical arithmetic overwrites dy.
  void Backward(const Pass& pass, const Saved& saved, kernels::NormBackwardPass backward) const;

 private:
  void CanonicalBackwardWeight(const Pass& pass, const Saved& saved, const Matrix& dy) const;
  kernels::NormKind kind_;
  double epsilon_;
  ParameterId weight_;                        // [dim]
  ParameterId bias_ = kernels::kNoParameter;  // [dim]
};

}  // namespace trireme::model
