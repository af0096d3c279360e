// RMSNorm of each head's queries and keys (Henry et al. 2020, arXiv:2010.04245; as in Qwen 3).
#ifndef TRIREME_SRC_MODEL_QUERY_KEY_NORM_HPP_
#define TRIREME_SRC_MODEL_QUERY_KEY_NORM_HPP_

#include <memory>
#include <string>

#include "trireme/model/query_key_step.hpp"

namespace trireme::model {

// q_h = norm(q_h) * query weight and k_h = norm(k_h) * key weight for each head h; all heads share
// the two weights. A tensor rank adds up the weights' gradients over its heads. Ranks that share a
// key head see different query heads: the gradients of their copies are terms of one sum as well.
class QueryKeyNorm : public QueryKeyStep {
 public:
  QueryKeyNorm(const ParameterPlace& place, const std::string& name);

  std::unique_ptr<QueryKeyStep::Saved> MakeSaved() const override;
  void Allocate(const Pass& pass, const kernels::AttentionShape& shape,
                QueryKeyStep::Saved* saved) const override;
  void Forward(const Pass& pass, const kernels::AttentionShape& shape, QueryKeyStep::Saved* saved,
               const Matrix& qkv) const override;
  void Backward(const Pass& pass, const kernels::AttentionShape& shape, QueryKeyStep::Saved* saved,
                const Matrix& dqkv) const override;

 private:
  struct Saved : QueryKeyStep::Saved {
    Matrix x;           // [tokens, (heads + kv_heads) head_dim]: queries and keys before the norm
    Matrix statistics;  // [(heads + kv_heads) tokens, 2], head by head
  };

  double epsilon_;
  ParameterId query_weight_, key_weight_;  // [head_dim]
};

}  // namespace trireme::model

#endif  // TRIREME_SRC_MODEL_QUERY_KEY_NORM_HPP_
