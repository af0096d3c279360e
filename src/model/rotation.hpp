// Rotary positions (Su et al. 2021).
#ifndef TRIREME_SRC_MODEL_ROTATION_HPP_
#define TRIREME_SRC_MODEL_ROTATION_HPP_

#include "trireme/model/query_key_step.hpp"

namespace trireme::model {

// Turns each pair of a head's features by the angle of its position in pass.rope. The gradient is
// turned back: nothing has to be kept.
class Rotation : public QueryKeyStep {
 public:
  void Forward(const Pass& pass, const kernels::AttentionShape& shape, Saved* saved,
               const Matrix& qkv) const override;
  void Backward(const Pass& pass, const kernels::AttentionShape& shape, Saved* saved,
                const Matrix& dqkv) const override;
};

}  // namespace trireme::model

#endif  // TRIREME_SRC_MODEL_ROTATION_HPP_
