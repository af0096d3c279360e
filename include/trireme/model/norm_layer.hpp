// LayerNorm or RMSNorm, alone or after a residual addition.
#pragma once

#include <string>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// Operands of x + dropout(branch + bias): a sub-layer's output meets the residual stream.
struct Residual {
  Matrix x;                  // [rows, dim]
  Matrix branch;             // [rows, dim]
  Matrix bias;               // [1, dim] or Empty()
  kernels::Dropout dropout;  // of row 0
};

// Works on this rank's rows of the residual stream.
class NormLayer {
 public:
  struct Saved {
    Matrix x;           // [rows, dim], the caller's: input
    Matrix statistics;  // [rows, 2]
  };
  // early: its weight gradient is computed with the input gradients.
  NormLayer(const ParameterPlace& place, const std::string& name, bool early = false);

  void Allocate(const Pass& pass, Saved& saved) const;  // for Forward
  // x, y: [rows, dim]; y is overwritten.
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const;
  // x = residual + dropout(branch + bias), then y = norm(x), for some rows of all operands; x may
  // be the branch. Several threads may call this, each for its own rows: saved.x is set by the
  // caller.
  void Forward(const Pass& pass, const device::Stream& stream, const Residual& residual,
               const Saved& saved, const Matrix& y, const Part& rows) const;
  // Gradients of input and weights. The caller fills in dy, more, residual, dx, dropout and dbranch
  // (kernels::NormBackwardPass); canonical arithmetic overwrites dy.
  void Backward(const Pass& pass, const Saved& saved, kernels::NormBackwardPass backward) const;

 private:
  void CanonicalBackwardWeight(const Pass& pass, const Saved& saved, const Matrix& dy) const;
  kernels::NormKind kind_;
  double epsilon_;
  ParameterId weight_;                        // [dim]
  ParameterId bias_ = kernels::kNoParameter;  // [dim]
};

}  // namespace trireme::model
