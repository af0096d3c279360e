// Self-attention with grouped queries, causal or not, as the pass says.
#ifndef TRIREME_MODEL_ATTENTION_LAYER_HPP_
#define TRIREME_MODEL_ATTENTION_LAYER_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/query_key_step.hpp"

namespace trireme::model {

// y = softmax(q k^T / sqrt(d)) v W_o. The output's bias is left to the residual addition. A tensor
// rank holds a slice of the heads: y and dx are then partial sums.
class AttentionLayer {
 public:
  struct Saved {
    Matrix x;     // [tokens, dim], the caller's
    Matrix qkv;   // [tokens, (heads + 2 kv_heads) head_dim], after the query/key steps
    Matrix out;   // [tokens, heads head_dim], before the output projection
    Matrix lse;   // [tokens, heads]
    Matrix dy;    // the caller's: gradient of y
    Matrix dout;  // [tokens, heads head_dim]
    Matrix dqkv;  // like qkv
    std::vector<std::unique_ptr<QueryKeyStep::Saved>> steps;  // [steps]
  };
  AttentionLayer(const ParameterPlace& place, const std::string& name, std::uint32_t layer);

  Saved MakeSaved() const;
  void Allocate(const Pass& pass, Saved& saved) const;  // for Forward
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // x, y, dy, dx: [tokens, dim]; y and dx are overwritten (partial sums on tensor ranks). Calls
  // `then` with ranges of complete rows of y.
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y,
               RowsDone then) const;
  void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;
  // pending: a transfer that is given chances to progress between the products.
  void BackwardWeight(const Pass& pass, const Saved& saved, comm::Request& pending) const;
  ParameterId OutputBias() const { return output_bias_; }
  void AddThinWeights(std::vector<ThinWeight>& weights) const;
  // Heads of this rank and their size, as a cache of keys and values has them.
  kernels::AttentionShape CacheShape() const;

 private:
  // Attention within the pass' sequences, or to what a cache keeps of them.
  void Attend(const Pass& pass, const Saved& saved) const;
  kernels::AttentionShape Shape(const Pass& pass) const;
  kernels::Dropout WeightDropout(const Pass& pass) const;

  kernels::Linear Of(LinearSite site) const;
  kernels::Linear Input(const Pass& pass) const;   // x W_qkv^T
  kernels::Linear Output(const Pass& pass) const;  // out W_o
  // out W_o, and dqkv W_qkv: partial sums, slice by slice in canonical arithmetic.
  void OutputProduct(const Pass& pass, const Matrix& out, const Matrix& y, RowsDone then) const;
  void InputGradient(const Pass& pass, const Matrix& dqkv, const Matrix& dx) const;

  std::int64_t all_heads_, all_kv_heads_;                  // global
  std::int64_t heads_, kv_heads_, head_dim_, first_head_;  // of this rank
  double dropout_;
  std::uint32_t layer_;
  std::vector<std::unique_ptr<QueryKeyStep>> steps_;
  ParameterId qkv_weight_;  // query, key, value: adjacent
  ParameterId qkv_bias_ = kernels::kNoParameter;
  ParameterId output_weight_;                       // [heads head_dim, dim], input-major
  ParameterId output_bias_ = kernels::kNoParameter;  // [dim]
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_ATTENTION_LAYER_HPP_
