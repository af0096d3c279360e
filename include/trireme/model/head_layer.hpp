// The vocabulary head, fused with its loss.
#pragma once

#include <cstdint>

#include "trireme/base/exact_sum.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// The losses of a step's or an evaluation's tokens, in host memory, and their exact sum.

class TokenLosses {
 public:
  // most: largest number of tokens; 0: this rank computes no losses.
  TokenLosses(const device::Stream& stream, std::int64_t most);

  // Starts over: losses of `tokens` tokens will arrive. copy: null, or [tokens], filled by Sum.
  // Throws RunError if there are more than `most`.
  void Expect(std::int64_t tokens, double* copy);
  // Where a token's loss goes, in (pinned) host memory; null: this rank computes no losses.
  double* At(std::int64_t token) const;
  // Sum of the losses, nats. The first call after Expect waits for the stream.
  const ExactSum& Sum();

 private:
  device::Stream stream_;
  std::int64_t most_;
  std::int64_t tokens_ = 0;
  double* copy_ = nullptr;
  bool known_ = false;
  ExactSum sum_;                  // valid if known_
  device::PinnedBuffer storage_;  // [most_] doubles
};

// Logits exist only for one tile of tokens at a time. While a tile is in memory, dx and the
// weight's gradient are computed from it: three products per tile instead of four or five
// (kernels/vocabulary_loss.hpp; canonical arithmetic uses separate products). A tensor rank holds a
// slice of the vocabulary; ranks exchange softmax statistics, never logits.
class HeadLayer {
 public:
  // embedding: token table, which is the head's weight if embeddings are tied.
  HeadLayer(const ParameterPlace& place, ParameterId embedding);

  std::int64_t TileTokens(const Pass& pass) const;  // tokens per tile
  // Allocates the workspace's tile: logits and scratch of kernels. gradient: Loss will compute dx.
  Matrix AllocateTile(const Pass& pass, device::Arena& arena, bool gradient) const;
  // With model.sampled_softmax: allocates what Loss needs for it in training.
  void AllocateSample(const Pass& pass, device::Arena& arena, Workspace& workspace) const;
  // Queues the computation of the targets' losses, nats, to pass.losses: one per token, 0 if
  // masked, the same on every tensor rank. x, dx: [tokens, dim]. dx is overwritten (partial sums),
  // and the weight's gradient accumulated; if dx is Empty(), no gradient is computed.
  void Loss(const Pass& pass, const Matrix& x, const kernels::LossTerms& terms,
            const Matrix& dx) const;
  // logits = x W^T for this rank's slice of the vocabulary; overwritten.
  void Logits(const Pass& pass, const Matrix& x, const Matrix& logits) const;
  // The same for few rows of a pass that uses a cache, limited by reading the weight. Each row of
  // logits has room for SpareRows() more elements, which are overwritten.
  void CachedLogits(const Pass& pass, const Matrix& x, const Matrix& logits) const;
  kernels::Linear Layer(const kernels::Registry& registry) const {
    return {.form = kernels::Form::kTransposed, .weight = registry.Value(weight_)};
  }
  const Part& Slice() const { return slice_; }  // this rank's slice of the vocabulary
  std::int64_t SpareRows() const { return spare_; }

 private:
  // Canonical: number of columns of a tile, with each slice's logits aligned.
  std::int64_t TileColumns(const parallel::TensorGroup& tensor) const;
  // This rank's slice number `slice` (canonical: one of several): token ids, logits, weight rows.
  Part SliceOf(const Pass& pass, int slice) const;
  Matrix TileOf(const Pass& pass, std::int64_t rows, int slice) const;
  Matrix WeightSlice(const Pass& pass, int slice) const;
  void TileLogits(const Pass& pass, const Matrix& x) const;
  // Canonical: computes a tile's losses. gradient: also replaces its logits by their gradients.
  void TileLoss(const Pass& pass, std::int64_t rows, std::int64_t first_row,
                const kernels::LossTerms& terms, bool gradient, double* losses) const;
  void CanonicalTile(const Pass& pass, const Matrix& x, std::int64_t first_row,
                     const kernels::LossTerms& terms, double* losses, const Matrix& dx) const;
  // dweight: [rows of tile.weight, dim], added to.
  void FusedTile(const Pass& pass, const kernels::VocabularyTile& tile, double* losses,
                 const Matrix& dx, const Matrix& dweight) const;
  kernels::WordDraw Draw(const Pass& pass) const;
  void GatherStatistics(const Pass& pass, std::int64_t count) const;
  std::int64_t vocabulary_, dim_;
  std::int64_t sampled_;  // model.sampled_softmax
  Part slice_;            // of this rank
  std::int64_t spare_;    // rows of zeros after the slice
  ParameterId weight_;    // [vocabulary, dim]; the embedding's if tied
};

}  // namespace trireme::model
