// Feed-forward layers: one interface for all kinds. Another kind is a file pair that implements
// Ffn, and a line in MakeFfn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// y = f(x), token by token. The output's bias is left to the residual addition. On tensor ranks y
// and dx are partial sums. x, y, dy, dx: [tokens, dim]; y and dx are overwritten, weight gradients
// are added to.
class Ffn {
 public:
  // Matrices of one micro-batch. A kind adds its own.
  struct Saved {
    virtual ~Saved() = default;
    Matrix x;   // [tokens, dim], the caller's: input
    Matrix dy;  // [tokens, dim], the caller's: gradient of the output
  };
  virtual ~Ffn() = default;

  // Made once per slot of activations, not per training step.
  virtual std::unique_ptr<Saved> MakeSaved() const = 0;
  virtual void Allocate(const Pass& pass, Saved& saved) const = 0;  // for both parts of Forward
  // The `cheap` matrices of Allocate alone, to be computed again by RecomputeCheap.
  virtual void AllocateCheap(const Pass& pass, Saved& saved) const = 0;
  virtual void AllocateBackward(const Pass& pass, Saved& saved) const = 0;
  // The forward pass in two: all that the backward pass needs, then the output. `then` is called
  // with ranges of rows of y as they are complete.
  virtual void ForwardHidden(const Pass& pass, const Matrix& x, Saved& saved) const = 0;
  virtual void ForwardOutput(const Pass& pass, const Saved& saved, const Matrix& y,
                             RowsDone then) const = 0;
  virtual void RecomputeCheap(const Pass& pass, Saved& saved) const = 0;
  virtual void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                             const Matrix& dx) const = 0;
  // pending: a transfer that is given chances to progress between the products.
  virtual void BackwardWeight(const Pass& pass, const Saved& saved,
                              comm::Request& pending) const = 0;
  virtual ParameterId OutputBias() const = 0;  // [dim], or kNoParameter
  // Adds the linear layers whose products Pass::Thin makes thin.
  virtual void AddLayers(const kernels::Registry& /*registry*/,
                         std::vector<kernels::Linear>& /*layers*/) const {}
};

// The deck's activation in the words of the kernels.
kernels::ActivationKind KindOf(Activation activation);

// The kind that the options ask for. `name` is the prefix of its parameters, `layer` the block's
// number in the model.
std::unique_ptr<Ffn> MakeFfn(const ParameterPlace& place, const std::string& name,
                             std::uint32_t layer);

}  // namespace trireme::model
