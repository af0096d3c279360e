// The layers of a Transformer. Each has Forward, and its backward pass in two calls: BackwardInput,
// on which the layer before waits, and BackwardWeight, which may run later, as long as dy and Saved
// are kept. What they share stands in an explicit struct: Saved, filled by Forward, and Saved's
// d-members, filled by BackwardInput.
// Rows are tokens, sequence-major: x: [tokens, dim].
#ifndef TRIREME_MODEL_LAYERS_HPP_
#define TRIREME_MODEL_LAYERS_HPP_

#include <cstdint>
#include <string>

#include "trireme/base/function_ref.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/norm.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"
#include "trireme/model/options.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

using tensor::Matrix;
using tensor::ParameterId;

// Where the parameters of a layer go: into which registry, cut how, and whether this rank's stage
// holds the layer at all (if not, its parameters are only listed).
struct Placement {
  const Options& options;
  tensor::ParameterList& parameters;
  const parallel::TensorGroup& tensor;
  bool held = true;
  device::Stream stream;  // where the products run
};

// What a sub-layer adds to the residual stream: x + dropout(branch + bias).
struct Residual {
  Matrix x;                  // [rows, dim]
  Matrix branch;             // [rows, dim]
  Matrix bias;               // [1, dim] or Empty()
  kernels::Dropout dropout;  // of row 0
};

// Called with ranges of rows of a product as they are complete (kernels/matrix_multiply.hpp).
using RowsDone = FunctionRef<void(const Part& rows)>;

// The linear layers of a block, and their numbers in the model.
enum class LinearSite : std::uint32_t { kQkv, kOutput, kUp, kDown };
inline constexpr int kSitesABlock = 4;
inline int SiteOf(std::uint32_t layer, LinearSite site) {
  return static_cast<int>(layer) * kSitesABlock + static_cast<int>(site);
}

// LayerNorm or RMSNorm, on this rank's rows of the residual stream.
class NormLayer {
 public:
  struct Saved {
    Matrix x;           // [rows, dim], the caller's: input
    Matrix statistics;  // [rows, 2]
  };
  // early: its gradient is found in the input-gradient task.
  NormLayer(const Placement& placement, const std::string& name, bool early = false);

  void Allocate(const Pass& pass, Saved& saved) const;  // forward
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const;
  // x = residual + dropout(branch + bias), then y = norm(x), for some rows of all of these; x may
  // be the branch. For use by several threads, each with rows of its own: saved.x is the caller's.
  void Forward(const Pass& pass, const device::Stream& stream, const Residual& residual,
               const Saved& saved, const Matrix& y, const Part& rows) const;
  // The gradients of input and weights. The caller fills in dy, more, residual, dx, dropout,
  // dbranch (kernels/norm.hpp); dy is lost in canonical arithmetic.
  void Backward(const Pass& pass, const Saved& saved, kernels::NormBackwardPass backward) const;

 private:
  void CanonicalBackwardWeight(const Pass& pass, const Saved& saved, const Matrix& dy) const;
  kernels::NormKind kind_;
  double epsilon_;
  ParameterId weight_;                       // [dim]
  ParameterId bias_ = tensor::kNoParameter;  // [dim]
};

// Causal self-attention with grouped queries: y = softmax(q k^T / sqrt(d)) v W_o, without the
// output's bias, which the residual addition takes along. A tensor rank holds a slice of the heads:
// y and dx are then partial sums.
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
  AttentionLayer(const Placement& placement, const std::string& name, std::uint32_t layer);

  void Allocate(const Pass& pass, Saved& saved) const;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // rope: the table of cosines and sines, or Empty(). then: what follows on rows of y.
  void Forward(const Pass& pass, const Matrix& x, const Matrix& rope, Saved& saved, const Matrix& y,
               RowsDone then) const;
  void BackwardInput(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                     const Matrix& dx) const;
  // pending: a transfer to give chances to progress between the products.
  void BackwardWeight(const Pass& pass, const Saved& saved, comm::Request& pending) const;
  ParameterId OutputBias() const { return output_bias_; }

 private:
  kernels::AttentionShape Shape(const Pass& pass) const;
  kernels::Dropout WeightDropout(const Pass& pass) const;

  kernels::Linear Of(LinearSite site) const;
  kernels::Linear Input(const Pass& pass) const;   // x W_qkv^T
  kernels::Linear Output(const Pass& pass) const;  // out W_o
  // out W_o, and dqkv W_qkv: partial sums, slice by slice where they are canonical.
  void OutputProduct(const Pass& pass, const Matrix& out, const Matrix& y, RowsDone then) const;
  void InputGradient(const Pass& pass, const Matrix& dqkv, const Matrix& dx) const;

  std::int64_t all_heads_, all_kv_heads_;                  // global
  std::int64_t heads_, kv_heads_, head_dim_, first_head_;  // this rank's
  bool bias_, rotary_;
  double dropout_;
  std::uint32_t layer_;
  ParameterId qkv_weight_;  // query, key, value: adjacent
  ParameterId qkv_bias_ = tensor::kNoParameter;
  ParameterId output_weight_;                       // [heads head_dim, dim], input-major
  ParameterId output_bias_ = tensor::kNoParameter;  // [dim]
};

// Feed-forward layer: y = dropout(act(x W_up^T + b)) W_down, without the output's bias. A tensor
// rank holds a slice of the hidden features: y and dx are then partial sums.
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
  FfnLayer(const Placement& placement, const std::string& name, std::uint32_t layer);

  void Allocate(const Pass& pass, Saved& saved) const;
  void AllocateCheap(const Pass& pass, Saved& saved) const;  // hidden, to be computed again
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  void ForwardHidden(const Pass& pass, const Matrix& x, Saved& saved) const;
  void ForwardOutput(const Pass& pass, const Saved& saved, const Matrix& y, RowsDone then) const;
  void RecomputeHidden(const Pass& pass, Saved& saved) const;  // from pre
  void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;
  void BackwardWeight(const Pass& pass, const Saved& saved, comm::Request& pending) const;
  ParameterId OutputBias() const { return down_bias_; }

 private:
  bool Gated() const { return kind_ == kernels::ActivationKind::kSwiglu; }
  bool Relu() const { return kind_ == kernels::ActivationKind::kRelu; }
  int UpParts() const { return Gated() ? 2 : 1; }
  void InputGradient(const Pass& pass, const Matrix& dpre, const Matrix& dx) const;
  kernels::Linear Of(LinearSite site) const;
  kernels::Linear Up(const Pass& pass) const;    // x W_up^T
  kernels::Linear Down(const Pass& pass) const;  // hidden W_down
  kernels::Dropout HiddenDropout(const Pass& pass) const;

  kernels::ActivationKind kind_;
  std::int64_t ffn_;  // hidden features, global
  Part hidden_;       // this rank's
  bool bias_;
  double dropout_;
  std::uint32_t layer_;
  ParameterId up_weight_;  // gate (SwiGLU) and up: adjacent
  ParameterId up_bias_ = tensor::kNoParameter;
  ParameterId down_weight_;                       // [ffn, dim], input-major
  ParameterId down_bias_ = tensor::kNoParameter;  // [dim]
};

// Attention and feed-forward with residuals and norms, before (pre) or behind (post) each. The
// residual stream has `rows` rows: all tokens, or this rank's shard, in which case the sub-layers'
// inputs are gathered and their outputs reduce-scattered.
class Block {
 public:
  struct Saved {
    NormLayer::Saved attention_norm, ffn_norm;
    AttentionLayer::Saved attention;
    FfnLayer::Saved ffn;
    // [rows, dim]
    Matrix x;             // the caller's: the block's input
    Matrix normed;        // pre: norm(x), the attention's input
    Matrix middle;        // residual stream between the two (post: after its norm)
    Matrix ffn_normed;    // pre: norm(middle), the ffn's input
    Matrix sum;           // post: x + attention, before its norm
    Matrix ffn_sum;       // post: middle + ffn, before its norm
    Matrix dmiddle;       // gradient of middle
    Matrix dinner, dsum;  // gradients of a norm's output or input, see block_backward.cpp
    Matrix dshard;        // sharded: gradient of a branch before it is gathered
    // [tokens, dim]
    Matrix full_x, full_y;        // sharded: a sub-layer's input and output, forward
    Matrix attention_x, ffn_x;    // inputs of the sub-layers, for their weight gradients
    Matrix dbranch, dffn_branch;  // gradients of the two branches, after dropout
    Matrix dfull;                 // sharded: gradient of a sub-layer's input, partial sums
  };
  Block(const Placement& placement, std::uint32_t layer);

  void Allocate(const Pass& pass, Saved& saved) const;
  void Forward(const Pass& pass, const Matrix& x, const Matrix& rope, Saved& saved,
               const Matrix& y) const;
  // What `cheap` matrices held, once more, in pass.lives.cheap.
  void AllocateCheap(const Pass& pass, Saved& saved) const;
  void RecomputeCheap(const Pass& pass, Saved& saved) const;
  // Forward without its output, which no gradient needs.
  void Recompute(const Pass& pass, const Matrix& rope, Saved& saved) const;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // dx; the norms' weight gradients; with pass.weights_too all others as well, while sums over the
  // tensor group are under way.
  void BackwardInput(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                     const Matrix& dx) const;
  void BackwardWeight(const Pass& pass, const Saved& saved) const;  // of the products

 private:
  enum class Site : std::uint32_t { kAttention = 0, kFfn = 1 };  // of Purpose::kResidualDropout
  // Where a sub-layer's output meets the residual stream: out = residual + drop(branch), and, where
  // a norm follows, normed = norm(out).
  struct Junction {
    Site site = Site::kAttention;
    Matrix residual, out;  // [rows, dim]
    const NormLayer* norm = nullptr;
    NormLayer::Saved* saved = nullptr;
    Matrix normed;  // [rows, dim]
  };
  kernels::Dropout BranchDropout(const Pass& pass, Site site) const;
  void Join(const Pass& pass, const device::Stream& stream, const Junction& junction,
            const Part& rows) const;
  void Branch(const Pass& pass, const Matrix& in, const Saved& saved, const Junction& junction,
              FunctionRef<void(const Matrix&, const Matrix&, RowsDone)> sub_layer) const;
  void Attend(const Pass& pass, const Matrix& in, const Matrix& rope, Saved& saved,
              const Junction& junction) const;
  void FeedForward(const Pass& pass, const Matrix& in, Saved& saved,
                   const Junction& junction) const;
  void ForwardAttention(const Pass& pass, const Matrix& rope, Saved& saved) const;
  Matrix BranchShard(const Pass& pass, const Saved& saved, const Matrix& dbranch) const;
  void AttendBackward(const Pass& pass, const Matrix& dy, const Matrix& in, const Matrix& rope,
                      Saved& saved, const Matrix& dx) const;
  void FeedBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                    const Matrix& dx) const;
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

// Token embedding, times sqrt(dim) where the model says so, plus positions, with dropout. A tensor
// rank holds a slice of the vocabulary.
class EmbeddingLayer {
 public:
  // tables: held for the positions; the token table is held by the first stage and, where it is
  // tied, by the last.
  EmbeddingLayer(const Placement& tables, bool first_stage, bool last_stage, bool one_stage);
  // positions: the fixed table, or Empty() where positions are learned or rotary. y: [rows, dim].
  // `full`: [tokens, dim] scratch where the stream is sharded, else y.
  void Forward(const Pass& pass, const Matrix& positions, const Matrix& full,
               const Matrix& y) const;
  // There is no input gradient. dy: [rows, dim] is masked in place; `full` as above, with dy.
  void BackwardWeight(const Pass& pass, const Matrix& dy, const Matrix& full) const;
  ParameterId Weight() const { return weight_; }
  ParameterId Positions() const { return positions_; }  // kNoParameter where they are not learned

 private:
  kernels::Dropout MakeDropout(const Pass& pass, std::int64_t first_row) const;
  double scale_;
  double dropout_;
  std::int32_t first_;                            // first token of this rank's slice
  ParameterId weight_;                            // [vocabulary, dim]
  ParameterId positions_ = tensor::kNoParameter;  // [max_positions, dim]
};

// The vocabulary head with its loss, fused: logits exist for a tile of tokens at a time, and
// while a tile is there its gradient goes into dx and into the weight's gradient: three products a
// tile instead of four or five (kernels/vocabulary_loss.hpp; apart in canonical arithmetic). A
// tensor rank holds a slice of the vocabulary; only softmax statistics travel, never logits.
class HeadLayer {
 public:
  HeadLayer(const Placement& placement, ParameterId embedding);

  // Tokens of the workspace's tile.
  std::int64_t TileTokens(const Pass& pass) const;
  // x: [tokens, dim]. Queues the targets' losses to pass.losses, one a token, 0 where masked, the
  // same on every tensor rank. Unless dx is Empty() it is filled, [tokens, dim] (partial sums), and
  // the weight's gradient added to.
  void Loss(const Pass& pass, const Matrix& x, double smoothing, const Matrix& dx) const;
  // logits = x W^T for the rows of x and this rank's slice of the vocabulary, overwritten.
  void Logits(const Pass& pass, const Matrix& x, const Matrix& logits) const;
  const Part& Slice() const { return slice_; }
  // The workspace's tile.
  Matrix AllocateTile(const Pass& pass, device::Arena& arena, bool gradient) const;

 private:
  // Canonical: columns of a tile with each slice's logits on a boundary of 128 bytes.
  std::int64_t TileColumns(const parallel::TensorGroup& tensor) const;
  // This rank's slice number `slice` (one, or a canonical one), of the vocabulary; and its logits.
  Part SliceOf(const Pass& pass, int slice) const;
  Matrix TileOf(const Pass& pass, std::int64_t rows, int slice) const;
  Matrix WeightSlice(const Pass& pass, int slice) const;
  void TileLogits(const Pass& pass, const Matrix& x) const;
  // Canonical, as all above: losses of a tile; with `gradient` the tile becomes the logits'
  // gradient.
  void TileLoss(const Pass& pass, std::int64_t rows, std::int64_t first_row, double smoothing,
                bool gradient, double* losses) const;
  void CanonicalTile(const Pass& pass, const Matrix& x, std::int64_t first_row, double smoothing,
                     double* losses, const Matrix& dx) const;
  void FusedTile(const Pass& pass, const Matrix& x, std::int64_t first_row, double smoothing,
                 double* losses, const Matrix& dx) const;
  void GatherStatistics(const Pass& pass, std::int64_t count) const;
  std::int64_t vocabulary_, dim_;
  Part slice_;          // this rank's
  std::int64_t spare_;  // rows of zeros behind it
  ParameterId weight_;  // [vocabulary, dim]; the embedding's where tied
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_LAYERS_HPP_
