// Self-attention with grouped queries and its query/key steps; cross-attention.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// A step on queries and keys between their projection and the attention, such as rotation by
// position. A new kind is a class that implements QueryKeyStep, and a line in MakeQueryKeySteps.

class QueryKeyStep {
 public:
  // Matrices kept from the forward to the backward pass.
  struct Saved {
    virtual ~Saved() = default;
  };
  virtual ~QueryKeyStep() = default;

  // Null if nothing is kept. Called once per slot of activations, not per training step.
  virtual std::unique_ptr<Saved> MakeSaved() const { return nullptr; }
  // Allocates the matrices of Saved from pass.lives.
  virtual void Allocate(const Pass& /*pass*/, const kernels::AttentionShape& /*shape*/,
                        Saved* /*saved*/) const {}
  // Changes queries and keys of qkv, [tokens, shape.Width()], in place.
  virtual void Forward(const Pass& pass, const kernels::AttentionShape& shape, Saved* saved,
                       const Matrix& qkv) const = 0;
  // Turns dqkv, [tokens, shape.Width()], from the gradient of the step's output into that of its
  // input, in place. Adds to the gradients of the step's parameters, which must be `early`.
  virtual void Backward(const Pass& pass, const kernels::AttentionShape& shape, Saved* saved,
                        const Matrix& dqkv) const = 0;
};

// The steps that the options ask for, in forward order. name: prefix of their parameters' names.
std::vector<std::unique_ptr<QueryKeyStep>> MakeQueryKeySteps(const ParameterPlace& place,
                                                             const std::string& name);

// y = softmax(q k^T / divisor) v W_o. A tensor rank holds a slice of the heads.
class AttentionLayer : public SubLayer {
 public:
  AttentionLayer(const ParameterPlace& place, const std::string& name, std::uint32_t layer);

  std::unique_ptr<SubLayer::Saved> MakeSaved() const override;
  void Allocate(const Pass& pass, SubLayer::Saved& saved) const override;
  void AllocateBackward(const Pass& pass, SubLayer::Saved& saved) const override;
  void Forward(const Pass& pass, const Matrix& x, SubLayer::Saved& saved, const Matrix& y,
               RowsDone then) const override;
  void BackwardInput(const Pass& pass, const Matrix& dy, SubLayer::Saved& saved,
                     const Matrix& dx) const override;
  void BackwardWeight(const Pass& pass, const SubLayer::Saved& saved,
                      comm::Request& pending) const override;
  ParameterId OutputBias() const override { return output_bias_; }
  void AddLayers(const kernels::Registry& registry,
                 std::vector<kernels::Linear>& layers) const override;
  // This rank's heads and their size, for a cache of keys and values.
  kernels::AttentionShape CacheShape() const;

 private:
  struct Saved : SubLayer::Saved {
    Matrix qkv;   // [tokens, (heads + 2 kv_heads) head_dim], after the query/key steps
    Matrix out;   // [tokens, heads head_dim], before the output projection
    Matrix lse;   // [tokens, heads]
    Matrix dout;  // [tokens, heads head_dim]
    Matrix dqkv;  // like qkv
    kernels::Fp8Transposes qkv_transposes, output_transposes;
    std::vector<std::unique_ptr<QueryKeyStep::Saved>> steps;  // [steps]
  };
  static Saved& Mine(SubLayer::Saved& saved) { return static_cast<Saved&>(saved); }
  static const Saved& Mine(const SubLayer::Saved& saved) {
    return static_cast<const Saved&>(saved);
  }
  // Attention within the pass's sequences, or to the cache if they are continued.
  void Attend(const Pass& pass, const Saved& saved) const;
  kernels::AttentionShape Shape(const Pass& pass) const;
  kernels::Dropout WeightDropout(const Pass& pass) const;

  kernels::Linear Of(LinearSite site, const Saved* saved = nullptr) const;
  kernels::Linear Input(const Pass& pass, const Saved& saved) const;   // x W_qkv^T
  kernels::Linear Output(const Pass& pass, const Saved& saved) const;  // out W_o
  // dx = dqkv W_qkv (partial sums); slice by slice in canonical arithmetic.
  void InputGradient(const Pass& pass, const Saved& saved, const Matrix& dx) const;
  kernels::BiasGradients InputBiasGradients(const Pass& pass) const;

  std::int64_t dim_, all_heads_, all_kv_heads_;            // global
  std::int64_t heads_, kv_heads_, head_dim_, first_head_;  // of this rank
  double divisor_;                                         // of scores; 0: sqrt(head_dim)
  double dropout_;
  std::uint32_t layer_;
  std::vector<std::unique_ptr<QueryKeyStep>> steps_;
  ParameterId qkv_weight_;  // query; key and value are adjacent
  ParameterId qkv_bias_ = kernels::kNoParameter;
  ParameterId output_weight_;                        // [heads head_dim, dim], input-major
  ParameterId output_bias_ = kernels::kNoParameter;  // [dim]
};

// Cross-attention of the decoder to the encoder's output (Vaswani et al. 2017, section 3.2.3).

// y = softmax(q k^T / divisor) v W_o, with q from the decoder's stream, k and v from the encoder's
// output `memory` without its padding. Uses no positions. A tensor rank holds a slice of the heads.
class CrossAttentionLayer : public SubLayer {
 public:
  CrossAttentionLayer(const ParameterPlace& place, const std::string& name, std::uint32_t layer);

  std::unique_ptr<SubLayer::Saved> MakeSaved() const override { return std::make_unique<Saved>(); }
  void Allocate(const Pass& pass, SubLayer::Saved& saved) const override;
  void AllocateBackward(const Pass& pass, SubLayer::Saved& saved) const override;
  // Reads pass.source.memory, whose rows are gathered over the tensor ranks.
  void Forward(const Pass& pass, const Matrix& x, SubLayer::Saved& saved, const Matrix& y,
               RowsDone then) const override;
  // Also adds the gradient of the encoder's output to pass.source.dmemory.
  void BackwardInput(const Pass& pass, const Matrix& dy, SubLayer::Saved& saved,
                     const Matrix& dx) const override;
  void BackwardWeight(const Pass& pass, const SubLayer::Saved& saved,
                      comm::Request& pending) const override;
  ParameterId OutputBias() const override { return output_bias_; }
  void AddLayers(const kernels::Registry& registry,
                 std::vector<kernels::Linear>& layers) const override;

 private:
  struct Saved : SubLayer::Saved {
    Matrix query;        // [tokens, heads head_dim]
    Matrix key_values;   // [source tokens, 2 kv_heads head_dim], keys then values
    Matrix out;          // [tokens, heads head_dim], before the output projection
    Matrix lse;          // [tokens, heads]
    Matrix dout;         // like out
    Matrix dquery;       // like query
    Matrix dkey_values;  // like key_values
    // [source tokens, dim]
    Matrix memory;        // the encoder's output: one of the next two, or the caller's
    Matrix full_memory;   // sharded: gathered for the forward pass
    Matrix whole_memory;  // sharded: gathered for the weight gradient
    Matrix dfull_memory;  // this block's gradient of memory, partial sums
    Matrix dmemory;       // sharded: [source rows, dim], their reduce-scattered sum
  };
  static Saved& Mine(SubLayer::Saved& saved) { return static_cast<Saved&>(saved); }
  static const Saved& Mine(const SubLayer::Saved& saved) {
    return static_cast<const Saved&>(saved);
  }
  kernels::AttentionShape Shape(const Pass& pass) const;
  kernels::KeyValueBlock Block(const Pass& pass, const Saved& saved) const;
  kernels::Dropout WeightDropout(const Pass& pass) const;
  void Attend(const Pass& pass, Saved& saved) const;

  std::int64_t dim_, all_heads_, all_kv_heads_;            // global
  std::int64_t heads_, kv_heads_, head_dim_, first_head_;  // of this rank
  double divisor_;                                         // of scores; 0: sqrt(head_dim)
  double dropout_;
  std::uint32_t layer_;
  ParameterId query_weight_, key_weight_;  // value is adjacent to key
  ParameterId query_bias_ = kernels::kNoParameter, key_bias_ = kernels::kNoParameter;
  ParameterId output_weight_;                        // [heads head_dim, dim], input-major
  ParameterId output_bias_ = kernels::kNoParameter;  // [dim]
};

}  // namespace trireme::model
