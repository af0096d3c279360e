// Attention of a decoder's positions to the encoder's output (Vaswani et al. 2017, section 3.2.3).
#ifndef TRIREME_MODEL_CROSS_ATTENTION_LAYER_HPP_
#define TRIREME_MODEL_CROSS_ATTENTION_LAYER_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/kernels/attention_part.hpp"
#include "trireme/model/parameter_place.hpp"
#include "trireme/model/pass.hpp"

namespace trireme::model {

// y = softmax(q k^T / sqrt(d)) v W_o, with q of the decoder's stream, k and v of the encoder's
// output without its padding; no positions. The output's bias is left to the residual addition. A
// tensor rank holds a slice of the heads: y, dx and dmemory are then partial sums.
class CrossAttentionLayer {
 public:
  struct Saved {
    Matrix x;            // [tokens, dim], the caller's
    Matrix memory;       // [source tokens, dim], the caller's: the encoder's output
    Matrix query;        // [tokens, heads head_dim]
    Matrix key_values;   // [source tokens, 2 kv_heads head_dim], keys then values
    Matrix out;          // [tokens, heads head_dim], before the output projection
    Matrix lse;          // [tokens, heads]
    Matrix dy;           // the caller's: gradient of y
    Matrix dout;         // like out
    Matrix dquery;       // like query
    Matrix dkey_values;  // like key_values
  };
  CrossAttentionLayer(const ParameterPlace& place, const std::string& name, std::uint32_t layer);

  void Allocate(const Pass& pass, Saved& saved) const;  // for Forward
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // x, y, dy, dx: [tokens, dim]; memory, dmemory: [source tokens, dim]; y, dx and dmemory are
  // overwritten (partial sums on tensor ranks). Calls `then` with ranges of complete rows of y.
  void Forward(const Pass& pass, const Matrix& x, const Matrix& memory, Saved& saved,
               const Matrix& y, RowsDone then) const;
  void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx,
                     const Matrix& dmemory) const;
  // pending: a transfer that is given chances to progress between the products.
  void BackwardWeight(const Pass& pass, const Saved& saved, comm::Request& pending) const;
  ParameterId OutputBias() const { return output_bias_; }
  void AddThinWeights(std::vector<ThinWeight>& weights) const;

 private:
  kernels::AttentionShape Shape(const Pass& pass) const;
  kernels::KeyValueBlock Block(const Pass& pass, const Saved& saved) const;
  kernels::Dropout WeightDropout(const Pass& pass) const;
  kernels::Linear Thin(const Pass& pass, kernels::Linear linear, ParameterId weight) const;
  void Attend(const Pass& pass, const Matrix& memory, Saved& saved) const;

  std::int64_t all_heads_, all_kv_heads_;                  // global
  std::int64_t heads_, kv_heads_, head_dim_, first_head_;  // of this rank
  double dropout_;
  std::uint32_t layer_;
  ParameterId query_weight_, key_weight_;  // key, value: adjacent
  ParameterId query_bias_ = kernels::kNoParameter, key_bias_ = kernels::kNoParameter;
  ParameterId output_weight_;                       // [heads head_dim, dim], input-major
  ParameterId output_bias_ = kernels::kNoParameter;  // [dim]
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_CROSS_ATTENTION_LAYER_HPP_
