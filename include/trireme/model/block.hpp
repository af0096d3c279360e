// A block: attention and feed-forward layer with residuals and norms; in a decoder that translates,
// cross-attention between the two.
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
// reduce-scattered.
// The backward pass has two calls: BackwardInput, which the block before waits for, and
// BackwardWeight, which may run later, as long as dy and Saved are kept. Forward fills Saved,
// BackwardInput its d-members.
class Block {
 public:
  enum class Site : std::uint32_t { kAttention = 0, kFfn = 1, kCross = 2 };  // kResidualDropout
  // A sub-layer with its norm and its residual.
  struct SavedStep {
    NormLayer::Saved norm;
    std::unique_ptr<SubLayer::Saved> branch;
    // [rows, dim]
    Matrix normed;  // pre: the norm of the residual stream, the sub-layer's input
    Matrix sum;     // post: residual stream + branch, before the norm
    Matrix out;     // residual stream behind the step (post: behind its norm); not of the last
    Matrix dout;    // gradient of out
    Matrix dsum;    // post: gradient of sum
    // [tokens, dim]
    Matrix whole_x;  // sharded: the sub-layer's input, for its weight gradient
    Matrix dbranch;  // gradient of the branch, after dropout
    // [rows, Dropout::KeptBytes(dim)], of a GPU, where dropout acts; null where the backward pass
    // draws again
    std::uint8_t* kept = nullptr;
  };
  struct Saved {
    std::vector<SavedStep> steps;
    // [rows, dim]
    Matrix x;       // the caller's: the block's input
    Matrix dinner;  // pre: gradient of a norm's output
    Matrix dshard;  // sharded: gradient of a branch before it is gathered
    // [tokens, dim]
    Matrix full_x, full_y;  // sharded: a sub-layer's input and output, forward
    Matrix dfull;           // sharded: gradient of a sub-layer's input, partial sums
  };
  // cross: with cross-attention.
  Block(const ParameterPlace& place, std::uint32_t layer, bool cross = false);

  Saved MakeSaved() const;  // without memory; once per slot of activations
  std::int32_t Number() const { return static_cast<std::int32_t>(layer_) + 1; }  // of all layers
  void Allocate(const Pass& pass, Saved& saved) const;                           // for Forward
  // x, y, dy, dx: [rows, dim]; y and dx are overwritten.
  void Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const;
  // Allocates the `cheap` matrices again, in pass.lives.cheap.
  void AllocateCheap(const Pass& pass, Saved& saved) const;
  // Computes them again from what was kept.
  void RecomputeCheap(const Pass& pass, Saved& saved) const;
  // Forward without its output, which no gradient needs.
  void Recompute(const Pass& pass, Saved& saved) const;
  void AllocateBackward(const Pass& pass, Saved& saved) const;
  // dx, and the norms' weight gradients; with pass.weights_too all other weight gradients, computed
  // while sums over the tensor group are under way.
  void BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;
  void BackwardWeight(const Pass& pass, const Saved& saved) const;  // of the products
  // Adds the linear layers that passes of a few rows have.
  void AddLayers(const kernels::Registry& registry, std::vector<kernels::Linear>& layers) const {
    for (const Step& step : steps_) step.layer->AddLayers(registry, layers);
  }
  bool Crosses() const { return steps_.size() > 2; }
  // Heads and their size in a cache, of either attention.
  kernels::AttentionShape CacheShape() const { return attention_->CacheShape(); }

 private:
  // The steps: attention, cross-attention if there is any, feed-forward layer.
  struct Step {
    Site site;
    NormLayer norm;
    std::unique_ptr<SubLayer> layer;
  };
  // Junction of a sub-layer's output and the residual stream: out = residual + drop(branch), and,
  // if a norm follows, normed = norm(out).
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
  std::uint32_t layer_;
  std::int64_t dim_;
  std::vector<Step> steps_;
  const AttentionLayer* attention_;  // of the first step
  const Ffn* ffn_;                   // of the last step
};

}  // namespace trireme::model
