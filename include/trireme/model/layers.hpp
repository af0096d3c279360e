// The layers of a Transformer. Each has Forward, and its backward pass in two calls: BackwardInput,
// on which the layer before waits, and BackwardWeight, which may run later, as long as dy and Saved
// are kept. What they share stands
// in an explicit struct: Saved, filled by Forward, and Saved's d-members, filled by BackwardInput.
// Rows are tokens, sequence-major: x: [tokens, dim].
#ifndef TRIREME_MODEL_LAYERS_HPP_
#define TRIREME_MODEL_LAYERS_HPP_

#include <cstdint>
#include <string>

#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/norm.hpp"
#include "trireme/model/options.hpp"
#include "trireme/model/pass.hpp"

namespace trireme::model {

using tensor::Matrix;
using tensor::ParameterId;

// LayerNorm or RMSNorm.
class NormLayer {
 public:
  struct Saved {
    Matrix x;           // [tokens, dim], the caller's: input
    Matrix statistics;  // [tokens, 2]
    Matrix dy;          // the caller's: gradient of the output
  };
  NormLayer(const Options& options, tensor::Registry& registry, const std::string& name);

  void Allocate(const Pass& pass, Saved& saved) const;  // forward
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const;
  // dx overwritten, or added to where `accumulate`.
  void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx,
                     bool accumulate) const;
  void BackwardWeight(const Pass& pass, const Saved& saved) const;

 private:
  kernels::NormKind kind_;
  double epsilon_;
  ParameterId weight_;                       // [dim]
  ParameterId bias_ = tensor::kNoParameter;  // [dim]
};

// Causal self-attention with grouped queries: y = softmax(q k^T / sqrt(d)) v W_o, without the
// output's bias, which the residual addition takes along.
class AttentionLayer {
 public:
  struct Saved {
    Matrix x;     // [tokens, dim], the caller's
    Matrix qkv;   // [tokens, (heads + 2 kv_heads) head_dim], rotated
    Matrix out;   // [tokens, heads head_dim], before the output projection
    Matrix lse;   // [tokens, heads]
    Matrix dy;    // the caller's: gradient of y
    Matrix dout;  // [tokens, heads head_dim]
    Matrix dqkv;  // like qkv
  };
  AttentionLayer(const Options& options, tensor::Registry& registry, const std::string& name,
                 std::uint32_t layer);

  void Allocate(const Pass& pass, Saved& saved) const;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // rope: the table of cosines and sines, or Empty().
  void Forward(const Pass& pass, const Matrix& x, const Matrix& rope, Saved& saved,
               const Matrix& y) const;
  void BackwardInput(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                     const Matrix& dx) const;
  void BackwardWeight(const Pass& pass, const Saved& saved) const;
  ParameterId OutputBias() const { return output_bias_; }

 private:
  kernels::AttentionShape Shape(const Pass& pass) const;
  kernels::Dropout WeightDropout(const Pass& pass) const;

  Options options_;
  std::uint32_t layer_;
  ParameterId qkv_weight_;  // query, key, value: adjacent
  ParameterId qkv_bias_ = tensor::kNoParameter;
  ParameterId output_weight_;                       // [heads head_dim, dim], input-major
  ParameterId output_bias_ = tensor::kNoParameter;  // [dim]
};

// Feed-forward layer: y = dropout(act(x W_up^T + b)) W_down, without the output's bias.
class FfnLayer {
 public:
  struct Saved {
    Matrix x;        // [tokens, dim], the caller's
    Matrix pre;      // [tokens, ffn] before the activation (ReLU: the same memory as hidden);
                     // SwiGLU: [tokens, 2 ffn], gate then up
    Matrix hidden;   // [tokens, ffn], after activation and dropout
    Matrix dy;       // the caller's
    Matrix dhidden;  // [tokens, ffn]
    Matrix dpre;     // like pre (the memory of dhidden where the activation allows)
  };
  FfnLayer(const Options& options, tensor::Registry& registry, const std::string& name,
           std::uint32_t layer);

  void Allocate(const Pass& pass, Saved& saved) const;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const;
  void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;
  void BackwardWeight(const Pass& pass, const Saved& saved) const;
  ParameterId OutputBias() const { return down_bias_; }

 private:
  kernels::ActivationKind Kind() const;
  int UpParts() const { return options_.activation == Activation::kSwiglu ? 2 : 1; }

  Options options_;
  std::uint32_t layer_;
  ParameterId up_weight_;  // gate (SwiGLU) and up: adjacent
  ParameterId up_bias_ = tensor::kNoParameter;
  ParameterId down_weight_;                       // [ffn, dim], input-major
  ParameterId down_bias_ = tensor::kNoParameter;  // [dim]
};

// Attention and feed-forward with residuals and norms, before (pre) or behind (post) each.
class Block {
 public:
  struct Saved {
    NormLayer::Saved attention_norm, ffn_norm;
    AttentionLayer::Saved attention;
    FfnLayer::Saved ffn;
    Matrix x;                     // [tokens, dim], the caller's: the block's input
    Matrix normed;                // pre: norm(x), the attention's input
    Matrix middle;                // residual stream between the two (post: after its norm)
    Matrix ffn_normed;            // pre: norm(middle), the ffn's input
    Matrix sum;                   // post: x + attention, before its norm
    Matrix ffn_sum;               // post: middle + ffn, before its norm
    Matrix dbranch, dffn_branch;  // gradients of the two branches, after dropout
    Matrix dmiddle;               // gradient of middle
    Matrix dnormed, dffn_normed;  // pre: gradients of the norms' outputs
    Matrix dsum, dffn_sum;        // post: gradients of the norms' inputs
  };
  Block(const Options& options, tensor::Registry& registry, std::uint32_t layer);

  void Allocate(const Pass& pass, Saved& saved) const;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  void Forward(const Pass& pass, const Matrix& x, const Matrix& rope, Saved& saved,
               const Matrix& y) const;
  void BackwardInput(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                     const Matrix& dx) const;
  void BackwardWeight(const Pass& pass, Saved& saved) const;

 private:
  kernels::Dropout Residual(const Pass& pass, std::uint32_t site) const;
  void ForwardPre(const Pass& pass, const Matrix& rope, Saved& saved, const Matrix& y) const;
  void ForwardPost(const Pass& pass, const Matrix& rope, Saved& saved, const Matrix& y) const;
  void BackwardInputPre(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                        const Matrix& dx) const;
  void BackwardInputPost(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                         const Matrix& dx) const;

  bool pre_;
  double dropout_;
  std::uint32_t layer_;
  std::int64_t dim_;
  NormLayer attention_norm_;
  AttentionLayer attention_;
  NormLayer ffn_norm_;
  FfnLayer ffn_;
};

// Token embedding, times sqrt(dim) where the model says so, plus positions, with dropout.
class EmbeddingLayer {
 public:
  EmbeddingLayer(const Options& options, tensor::Registry& registry);
  // positions: the fixed table, or Empty() where positions are learned or rotary.
  void Forward(const Pass& pass, const Matrix& positions, const Matrix& y) const;
  // There is no input gradient. dy is masked in place.
  void BackwardWeight(const Pass& pass, const Matrix& dy) const;
  ParameterId Weight() const { return weight_; }

 private:
  kernels::Dropout MakeDropout(const Pass& pass) const;
  double scale_;
  double dropout_;
  ParameterId weight_;                            // [vocabulary, dim]
  ParameterId positions_ = tensor::kNoParameter;  // [max_positions, dim]
};

// The vocabulary head with its loss, fused: logits exist for kTileTokens tokens at a time, and
// while a tile is there its gradient goes into dx and, where wanted, into the weight's gradient:
// three products a tile instead of four or five.
class HeadLayer {
 public:
  struct Saved {
    Matrix x;   // [tokens, dim], the caller's
    Matrix dx;  // [tokens, dim], gradient of the summed loss
  };
  HeadLayer(const Options& options, tensor::Registry& registry, ParameterId embedding);

  static constexpr std::int64_t kTileTokens = 512;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // Sum of the valid targets' losses, nats; `losses` (or null): [tokens], one a token.
  double Loss(const Pass& pass, const Matrix& x, double smoothing, double* losses) const;
  // The same, filling saved.dx and adding to the weight's gradient.
  double LossAndBackward(const Pass& pass, const Matrix& x, double smoothing, Saved& saved) const;
  // logits = x W^T for the rows of x: [rows, vocabulary], overwritten.
  void Logits(const Pass& pass, const Matrix& x, const Matrix& logits) const;

 private:
  ParameterId weight_;  // [vocabulary, dim]; the embedding's where tied
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_LAYERS_HPP_
