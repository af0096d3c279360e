// A block: attention and feed-forward layer with residuals and norms; in a decoder that translates,
// cross-attention between the two.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

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
  static constexpr int kSites = 3;
  // Of the cross-attention.
  struct CrossSaved {
    NormLayer::Saved norm;
    CrossAttentionLayer::Saved attention;
    // [rows, dim]
    Matrix normed;         // pre: norm(middle), the input of the cross-attention
    Matrix middle;         // residual stream after it (post: after its norm)
    Matrix sum;            // post: middle + cross-attention, before its norm
    Matrix dmiddle, dsum;  // gradients of middle and of sum
    // [tokens, dim]
    Matrix dbranch;  // gradient of the branch, after dropout
    Matrix x;        // sharded: input of the cross-attention, for its weight gradient
    // [source tokens, dim]
    Matrix full_memory;   // sharded: the encoder's output, forward
    Matrix memory;        // sharded: the same, for the weight gradient
    Matrix dfull_memory;  // its gradient by this block, partial sums
    Matrix dmemory;       // sharded, [source rows, dim]: the same, added up
  };
  struct Saved {
    NormLayer::Saved attention_norm, ffn_norm;
    AttentionLayer::Saved attention;
    std::unique_ptr<CrossSaved> cross;  // of a block that has cross-attention
    std::unique_ptr<Ffn::Saved> ffn;
    // [rows, dim]
    Matrix x;             // the caller's: the block's input
    Matrix normed;        // pre: norm(x), the attention's input
    Matrix middle;        // residual stream between the sub-layers (post: after its norm)
    Matrix ffn_normed;    // pre: norm(middle), the input of the feed-forward layer
    Matrix sum;           // post: x + attention, before its norm
    Matrix ffn_sum;       // post: middle + feed-forward, before its norm
    Matrix dmiddle;       // gradient of middle
    Matrix dinner, dsum;  // gradients of a norm's output or input, see Block::BackwardInput
    Matrix dshard;        // sharded: gradient of a branch before it is gathered
    // [tokens, dim]
    Matrix full_x, full_y;        // sharded: a sub-layer's input and output, forward
    Matrix attention_x, ffn_x;    // sharded: inputs of the sub-layers, for their weight gradients
    Matrix dbranch, dffn_branch;  // gradients of the two branches, after dropout
    Matrix dfull;                 // sharded: gradient of a sub-layer's input, partial sums
    // [rows, Dropout::KeptBytes(dim)] for each site, of a GPU, where dropout acts; null where the
    // backward pass draws again
    std::uint8_t* kept[kSites] = {};
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
    attention_.AddLayers(registry, layers);
    if (cross_) cross_->attention.AddLayers(registry, layers);
    ffn_->AddLayers(registry, layers);
  }
  bool Crosses() const { return cross_.has_value(); }
  // Heads and their size in a cache, of either attention.
  kernels::AttentionShape CacheShape() const { return attention_.CacheShape(); }

 private:
  // Sub-layer of cross-attention.
  struct Cross {
    NormLayer norm;
    CrossAttentionLayer attention;
  };
  // Junction of a sub-layer's output and the residual stream: out = residual + drop(branch), and,
  // if a norm follows, normed = norm(out).
  struct Junction {
    Site site = Site::kAttention;
    Matrix residual, out;  // [rows, dim]
    const NormLayer* norm = nullptr;
    NormLayer::Saved* saved = nullptr;
    Matrix normed;  // [rows, dim]
  };
  ParameterId OutputBias(Site site) const;
  // The residual stream that the feed-forward layer reads, and its gradient.
  const Matrix& Middle(const Saved& saved) const {
    return cross_ ? saved.cross->middle : saved.middle;
  }
  const Matrix& MiddleGradient(const Saved& saved) const {
    return cross_ ? saved.cross->dmiddle : saved.dmiddle;
  }
  kernels::Dropout BranchDropout(const Pass& pass, const Saved& saved, Site site) const;
  void AllocateKept(const Pass& pass, Saved& saved) const;
  void Join(const Pass& pass, const device::Stream& stream, const Saved& saved,
            const Junction& junction, const Part& rows) const;
  void Branch(const Pass& pass, const Matrix& in, const Saved& saved, const Junction& junction,
              FunctionRef<void(const Matrix&, const Matrix&, RowsDone)> sub_layer) const;
  void Attend(const Pass& pass, const Matrix& in, Saved& saved, const Junction& junction) const;
  void FeedForward(const Pass& pass, const Matrix& in, Saved& saved,
                   const Junction& junction) const;
  void ForwardAttention(const Pass& pass, Saved& saved) const;
  void AllocateCross(const Pass& pass, CrossSaved& saved) const;
  void AllocateCrossCheap(const Pass& pass, CrossSaved& saved) const;
  void AllocateCrossBackward(const Pass& pass, CrossSaved& saved) const;
  void ForwardCross(const Pass& pass, Saved& saved) const;
  void CrossBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                     const Matrix& dx) const;
  void CrossBackwardPre(const Pass& pass, Saved& saved) const;
  void CrossBackwardPost(const Pass& pass, Saved& saved) const;
  Matrix BranchShard(const Pass& pass, const Saved& saved, const Matrix& dbranch) const;
  Matrix WholeBranch(const Pass& pass, const Matrix& shard, const Matrix& dsum,
                     const Matrix& dbranch) const;
  void AttendBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                      const Matrix& dx) const;
  void FeedBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                    const Matrix& dx) const;
  void BackwardInputPre(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;
  void BackwardInputPost(const Pass& pass, const Matrix& dy, Saved& saved, const Matrix& dx) const;

  bool pre_;
  double dropout_;
  std::uint32_t layer_;
  std::int64_t dim_;
  NormLayer attention_norm_;
  AttentionLayer attention_;
  std::optional<Cross> cross_;
  NormLayer ffn_norm_;
  std::unique_ptr<Ffn> ffn_;
};

}  // namespace trireme::model
