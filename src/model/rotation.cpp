// Rotary positions of queries and keys.
#include "rotation.hpp"

namespace trireme::model {

void Rotation::Forward(const Pass& pass, const kernels::AttentionShape& shape, Saved* /*saved*/,
                       const Matrix& qkv) const {
  kernels::Rope(pass.stream, shape, pass.rope, false, qkv);
}

void Rotation::Backward(const Pass& pass, const kernels::AttentionShape& shape, Saved* /*saved*/,
                        const Matrix& dqkv) const {
  kernels::Rope(pass.stream, shape, pass.rope, true, dqkv);
}

}  // namespace trireme::model
