// Steps on queries and keys between their projection and the attention: rotation by position.
// Another kind (a norm of each head, for example) is a file pair that implements QueryKeyStep, and
// a line in MakeQueryKeySteps.
#ifndef TRIREME_MODEL_QUERY_KEY_STEP_HPP_
#define TRIREME_MODEL_QUERY_KEY_STEP_HPP_

#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/attention.hpp"
#include "trireme/model/parameter_place.hpp"
#include "trireme/model/pass.hpp"

namespace trireme::model {

class QueryKeyStep {
 public:
  // Matrices that a kind keeps from its forward to its backward pass.
  struct Saved {
    virtual ~Saved() = default;
  };
  virtual ~QueryKeyStep() = default;

  // Null if nothing is kept. Made once per slot of activations, not per step.
  virtual std::unique_ptr<Saved> MakeSaved() const { return nullptr; }
  // Allocates what Saved keeps, by the lifetimes of `pass`.
  virtual void Allocate(const Pass& /*pass*/, const kernels::AttentionShape& /*shape*/,
                        Saved* /*saved*/) const {}
  // In place on the queries and keys of qkv: [tokens, shape.Width()].
  virtual void Forward(const Pass& pass, const kernels::AttentionShape& shape, Saved* saved,
                       const Matrix& qkv) const = 0;
  // In place on dqkv, [tokens, shape.Width()]: the gradient of the step's output becomes that of
  // its input. Adds the gradients of the step's own parameters, which are `early`.
  virtual void Backward(const Pass& pass, const kernels::AttentionShape& shape, Saved* saved,
                        const Matrix& dqkv) const = 0;
};

// The steps that the options ask for, in the order of the forward pass. `name` is the prefix of
// their parameters.
std::vector<std::unique_ptr<QueryKeyStep>> MakeQueryKeySteps(const ParameterPlace& place,
                                                             const std::string& name);

}  // namespace trireme::model

#endif  // TRIREME_MODEL_QUERY_KEY_STEP_HPP_
