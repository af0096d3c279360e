// Model: the two ends of the stack of blocks: the embedding, the final norm and the head.
#include "trireme/model/model.hpp"

namespace trireme::model {

void Model::Embed(const Pass& pass, const Matrix& stream) const {
  const std::int64_t mark = pass.lives.scratch->Mark();
  const Matrix full = pass.tensor->Sharded()
                          ? pass.Allocate(pass.lives.scratch, pass.Tokens(), plan_.options.dim)
                          : stream;
  if (!pass.Dry()) embedding_->Forward(pass, positions_, full, stream);
  pass.lives.scratch->Release(mark);
}

void Model::EmbedBackward(const Pass& pass, const Matrix& gradient) const {
  const std::int64_t mark = pass.lives.scratch->Mark();
  const Matrix full = pass.tensor->Sharded()
                          ? pass.Allocate(pass.lives.scratch, pass.Tokens(), plan_.options.dim)
                          : gradient;
  if (!pass.Dry()) embedding_->BackwardWeight(pass, gradient, full);
  pass.lives.scratch->Release(mark);
}

void Model::HeadForward(const Pass& pass, const Matrix& x) {
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  const std::int64_t dim = plan_.options.dim;
  NormLayer::Saved norm;
  Matrix normed = x;
  if (norm_) {
    norm_->Allocate(pass, norm);
    normed = pass.Allocate(scratch, pass.Rows().Size(), dim);
  }
  const Matrix full = pass.tensor->Sharded() ? pass.Allocate(scratch, pass.Tokens(), dim) : normed;
  if (!pass.Dry()) {
    if (norm_) norm_->Forward(pass, x, norm, normed);
    pass.tensor->Gather(normed, full);
    if (logits_position_ >= 0 && full.rows == 0) {
      logits_ = {};  // a context rank without positions
    } else if (logits_position_ >= 0) {
      logits_ = workspace_.tile.Rows(0, 1).Columns(0, head_->Slice().Size());
      head_->Logits(pass, full.Rows(logits_position_, 1), logits_);
    } else {
      head_->Loss(pass, full, 0, {});
    }
  }
  scratch->Release(mark);
}

void Model::HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx) {
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  const std::int64_t dim = plan_.options.dim, rows = pass.Rows().Size();
  NormLayer::Saved norm;
  Matrix normed = x, dnormed = dx;
  if (norm_) {
    norm_->Allocate(pass, norm);
    normed = pass.Allocate(scratch, rows, dim);
    dnormed = pass.Allocate(scratch, rows, dim);
  }
  Matrix full = normed, dfull = dnormed;
  if (pass.tensor->Sharded()) {
    full = pass.Allocate(scratch, pass.Tokens(), dim);
    dfull = pass.Allocate(scratch, pass.Tokens(), dim);
  }
  if (!pass.Dry()) {
    if (norm_) norm_->Forward(pass, x, norm, normed);
    pass.tensor->Gather(normed, full);
    head_->Loss(pass, full, plan_.label_smoothing, dfull);
    pass.tensor->Reduce(dfull, dnormed);
    if (norm_) {
      norm_->Backward(pass, norm, {.dy = dnormed, .dx = dx});
    }
  }
  scratch->Release(mark);
}

// The loss and the gradients of the head and the final norm; into `stream` that of its input.
void Model::HeadGradients(Leaves& leaves) {
  const bool tied = plan_.options.tie_embeddings;
  Use(LastUnits());
  BeginGradient(LastUnits());
  for (Leaf& leaf : leaves) {
    EnterLeaf(tail_unit_, Phase::kWhole, leaf.pass);
    if (tied) EnterLeaf(token_unit_, Phase::kHead, leaf.pass);
    HeadBackward(leaf.pass, leaf.live->streams.back(), leaf.stream);
  }
  Done(LastUnits());
  EndGradient({&tail_unit_, 1});
  // On one stage the embedding adds to the same gradient at the end of the backward pass.
  if (tied && local_.stages > 1) EndGradient({&token_unit_, 1});
}

void Model::EmbeddingGradients(Leaves& leaves) {
  BeginGradient(FirstUnits());
  for (Leaf& leaf : leaves) {
    for (const int unit : FirstUnits()) EnterLeaf(unit, Phase::kWhole, leaf.pass);
    EmbedBackward(leaf.pass, leaf.stream);
  }
  EndGradient(FirstUnits());
}

}  // namespace trireme::model
