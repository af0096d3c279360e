// A block: attention and feed-forward layer with residuals and norms. In the decoder of an
// encoder-decoder, cross-attention comes between the two.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/function_ref.hpp"
#include "trireme/model/attention_layer.hpp"
#include "trireme/model/ffn.hpp"
#include "trireme/model/norm_layer.hpp"

namespace trireme::model {

// Norms come before (pre) or after (post) each sub-layer. The residual stream has `rows` rows: all
// tokens, or this rank's shard; if sharded, the sub-layers' inputs are gathered and their outputs
// reduce-scattered. The backward pass is two calls: BackwardInput, whose result the block before
// needs, and BackwardWeight, which may run later if dy and Saved are kept. Forward fills Saved;
// BackwardInput fills its members d*.
class Block {
 public:
  // The numbers are also dropout sites (Purpose::kResidualDropout).
  enum class Site : std::uint32_t { kAttention = 0, kFfn = 1, kCross = 2 };
  // What a step (a sub-layer with norm and residual) keeps.
  struct SavedStep {
    NormLayer::Saved norm;
    std::unique_ptr<SubLayer::Saved> branch;
    // [rows, dim]
    Matrix normed;  // pre: the sub-layer's input, norm(residual stream)
    Matrix sum;     // post: residual stream + branch, before the norm
    Matrix out;     // residual stream after the step; unset in the last step
    Matrix dout;    // gradient of out
    Matrix dsum;    // post: gradient of sum
    // [tokens, dim]
    Matrix whole_x;  // sharded: the sub-layer's input, for its weight gradient
    Matrix dbranch;  // gradient of the branch, after dropout
    // [rows, Dropout::KeptBytes(dim)]: dropout mask on a GPU; null: none, or drawn again
    std::uint8_t* kept = nullptr;
  };
  struct Saved {
    std::vector<SavedStep> steps;
    // [rows, dim]
    Matrix x;       // the block's input; the caller's memory
    Matrix dinner;  // pre: gradient of a norm's output
    Matrix dshard;  // sharded: gradient of a branch, before it is gathered
    // [tokens, dim]
    Matrix full_x, full_y;  // sharded: a sub-layer's input and output (forward)
    Matrix dfull;           // sharded: gradient of a sub-layer's input, partial sums
  };
  // cross: the block has cross-attention.
  Block(const ParameterPlace& place, std::uint32_t layer, bool cross = false);

  Saved MakeSaved() const;  // allocates nothing; once per slot of activations
  std::int32_t Number() const { return static_cast<std::int32_t>(layer_) + 1; }  // from 1
  void Allocate(const Pass& pass, Saved& saved) const;  // what Forward fills
  // x, y, dy, dx: [rows, dim]; y and dx are overwritten.
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const;
  // Allocates the `cheap` matrices again, in pass.lives.cheap.
  void AllocateCheap(const Pass& pass, Saved& saved) const;
  // Recomputes these matrices from those that were kept.
  void RecomputeCheap(const Pass& pass, Saved& saved) const;
  // Runs Forward again, except for the output, which no gradient needs.
  void Recompute(const Pass& pass, Saved& saved) const;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // Computes dx and the norms' weight gradients; if pass.weights_too, also all other weight
  // gradients, while sums over the tensor group are in progress.
  void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;
  void BackwardWeight(const Pass& pass, const Saved& saved) const;  // of the linear layers
  // Appends the linear layers that Pass::Thin makes thin.
  void AddLayers(const kernels::Registry& registry, std::vector<kernels::Linear>& layers) const {
    for (const Step& step : steps_) step.layer->AddLayers(registry, layers);
  }
  bool Crosses() const { return steps_.size() > 2; }
  // Heads and their size, for a cache; the same for both attentions.
  kernels::AttentionShape CacheShape() const { return attention_->CacheShape(); }

 private:
  // A step: attention, cross-attention or feed-forward layer, with its norm.
  struct Step {
    Site site;
    NormLayer norm;
    std::unique_ptr<SubLayer> layer;
  };
  // Where a sub-layer's output joins the residual stream: out = residual + drop(branch), and, if a
  // norm follows, normed = norm(out).
  struct Junction {
    Matrix residual, out;  // [rows, dim]
    const NormLayer* norm = nullptr;
    NormLayer::Saved* saved = nullptr;
    Matrix normed = {};  // [rows, dim]
  };
  // The residual stream before a step.
  static const Matrix& StreamOf(const Saved& saved, std::size_t i) {
    return i == 0 ? saved.x : saved.steps[i - 1].out;
  }
  void ForwardStep(const Pass& pass, Saved& saved, std::size_t i, const Matrix& y) const;
  void Branch(const Pass& pass, const Matrix& in, Saved& saved, std::size_t i,
              const Junction& junction) const;
  void Join(const Pass& pass, const device::Stream& stream, const kernels::Dropout& dropout,
            const Junction& junction, ParameterId bias, const Part& rows) const;
  kernels::Dropout BranchDropout(const Pass& pass, const Saved& saved, std::size_t i) const;
  void AllocateCheapSteps(const Pass& pass, Saved& saved) const;
  Matrix BranchShard(const Pass& pass, const Saved& saved, std::size_t i) const;
  Matrix WholeBranch(const Pass& pass, const Matrix& shard, const Matrix& dsum,
                     const Matrix& dbranch) const;
  void BranchBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                      std::size_t i, const Matrix& dx) const;
  void BackwardInputPre(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;
  void BackwardInputPost(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;

  bool pre_;
  double dropout_;
  double layer_dropout_;  // of this block's branches
  std::uint32_t layer_;
  std::int64_t dim_;
  std::vector<Step> steps_;
  const AttentionLayer* attention_;  // steps_.front().layer
  const Ffn* ffn_;                   // steps_.back().layer
};

}  // namespace trireme::model
