// The vocabulary head with its loss, fused.
#pragma once

#include <cstdint>

#include "trireme/base/exact_sum.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// Losses of the tokens of a step or an evaluation, on the host, and their exact sum.

class TokenLosses {
 public:
  // most: tokens at once; 0: no loss is computed here.
  TokenLosses(const device::Stream& stream, std::int64_t most);

  // Begins anew: losses of `tokens` tokens will be copied. copy (or null): [tokens], filled by Sum.
  // Throws RunError if there is no room for as many.
  void Expect(std::int64_t tokens, double* copy);
  // Address of a token's loss, in host memory that a GPU copies to; null: none is computed here.
  double* At(std::int64_t token) const;
  // In nats. The first call after Expect waits for the stream.
  const ExactSum& Sum();

 private:
  device::Stream stream_;
  std::int64_t most_;
  std::int64_t tokens_ = 0;
  double* copy_ = nullptr;
  bool known_ = false;
  ExactSum sum_;                  // if known_
  device::PinnedBuffer storage_;  // [most_] doubles
};

// Logits exist for a tile of tokens at a time. While a tile is in memory its gradient goes into dx
// and into the weight's gradient: three products per tile instead of four or five
// (kernels/vocabulary_loss.hpp; separate products in canonical arithmetic). A tensor rank holds a
// slice of the vocabulary; only softmax statistics travel, never logits.
class HeadLayer {
 public:
  // embedding: the table that is the weight if tied.
  HeadLayer(const ParameterPlace& place, ParameterId embedding);

  std::int64_t TileTokens(const Pass& pass) const;  // of the workspace's tile
  // The workspace's tile: logits and the kernels' scratch; gradient: Loss will be asked for dx.
  Matrix AllocateTile(const Pass& pass, device::Arena& arena, bool gradient) const;
  // x: [tokens, dim]. Queues the targets' losses in nats to pass.losses, one per token, 0 if
  // masked, the same on every tensor rank. Unless dx is Empty() it is overwritten, [tokens, dim]
  // (partial sums), and the weight's gradient is added to.
  void Loss(const Pass& pass, const Matrix& x, double smoothing, const Matrix& dx) const;
  // logits = x W^T for the rows of x and this rank's slice of the vocabulary, overwritten.
  void Logits(const Pass& pass, const Matrix& x, const Matrix& logits) const;
  // The same for rows of a pass that uses a cache, at the speed of the weight's memory. Rows of
  // logits have room for SpareRows() more, which are overwritten.
  void CachedLogits(const Pass& pass, const Matrix& x, const Matrix& logits) const;
  kernels::Linear Layer(const kernels::Registry& registry) const {
    return {.form = kernels::Form::kTransposed, .weight = registry.Value(weight_)};
  }
  const Part& Slice() const { return slice_; }  // of the vocabulary, this rank's
  std::int64_t SpareRows() const { return spare_; }

 private:
  // Canonical: columns of a tile with each slice's logits on a boundary of 128 bytes.
  std::int64_t TileColumns(const parallel::TensorGroup& tensor) const;
  // Slice number `slice` of this rank (one, or the canonical ones): tokens, logits, weight rows.
  Part SliceOf(const Pass& pass, int slice) const;
  Matrix TileOf(const Pass& pass, std::int64_t rows, int slice) const;
  Matrix WeightSlice(const Pass& pass, int slice) const;
  void TileLogits(const Pass& pass, const Matrix& x) const;
  // Canonical: losses of a tile; with `gradient` the tile becomes the gradient of the logits.
  void TileLoss(const Pass& pass, std::int64_t rows, std::int64_t first_row, double smoothing,
                bool gradient, double* losses) const;
  void CanonicalTile(const Pass& pass, const Matrix& x, std::int64_t first_row, double smoothing,
                     double* losses, const Matrix& dx) const;
  void FusedTile(const Pass& pass, const Matrix& x, std::int64_t first_row, double smoothing,
                 double* losses, const Matrix& dx) const;
  void GatherStatistics(const Pass& pass, std::int64_t count) const;
  std::int64_t vocabulary_, dim_;
  Part slice_;          // of this rank
  std::int64_t spare_;  // rows of zeros after it
  ParameterId weight_;  // [vocabulary, dim]; the embedding's if tied
};

}  // namespace trireme::model
