// The interface of feed-forward layers. A new kind is a class derived from Ffn, and a line in
// MakeFfn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// y = f(x), for each token alone.
class Ffn : public SubLayer {
 public:
  // The forward pass in two parts: the first computes what the backward pass needs, the second y.
  virtual void ForwardHidden(const Pass& pass, const Matrix& x, Saved& saved) const = 0;
  virtual void ForwardOutput(const Pass& pass, const Saved& saved, const Matrix& y,
                             RowsDone then) const = 0;
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y,
               RowsDone then) const override {
    ForwardHidden(pass, x, saved);
    pass.Progress();
    ForwardOutput(pass, saved, y, then);
  }
};

// The kernels' name of the deck's activation.
kernels::ActivationKind KindOf(Activation activation);

// Makes the kind that the options ask for. name: prefix of its parameters' names. layer: the
// block's number in the model.
std::unique_ptr<Ffn> MakeFfn(const ParameterPlace& place, const std::string& name,
                             std::uint32_t layer);

}  // namespace trireme::model
