// Model: the two ends of the stack of blocks: the embedding, the final norm and the head.
#include "trireme/model/model.hpp"

namespace trireme::model {

void Model::Embed(const EmbeddingLayer& layer, const Pass& pass, const Matrix& residual) const {
  const std::int64_t mark = pass.lives.scratch->Mark();
  const Matrix full = pass.tensor->Sharded()
                          ? pass.Allocate(pass.lives.scratch, pass.Tokens(), plan_.options.dim)
                          : residual;
  if (!pass.Dry()) {
    const device::Scope scope(
        Trace(),
        {.name = device::SliceName::kEmbedding, .phase = device::Phase::kForward, .queues = true});
    layer.Forward(pass, positions_.Sinusoidal(), full, residual);
  }
  pass.lives.scratch->Release(mark);
}

void Model::EmbedFirst(const TaskEntry& entry, const Matrix& residual) const {
  const bool source = plan_.options.Translates();
  Embed(source ? layers_.SourceEmbedding() : layers_.Embedding(),
        source ? entry.source : entry.pass, residual);
}

void Model::EmbedBackward(const EmbeddingLayer& layer, const Pass& pass,
                          const Matrix& gradient) const {
  const std::int64_t mark = pass.lives.scratch->Mark();
  const Matrix full = pass.tensor->Sharded()
                          ? pass.Allocate(pass.lives.scratch, pass.Tokens(), plan_.options.dim)
                          : gradient;
  if (!pass.Dry()) {
    const device::Scope scope(
        Trace(),
        {.name = device::SliceName::kEmbedding, .phase = device::Phase::kBackward, .queues = true});
    layer.BackwardWeight(pass, gradient, full);
  }
  pass.lives.scratch->Release(mark);
}

// Logits of the rows that are asked for, in the order of the entries.
void Model::PickLogits(const Pass& pass, const Matrix& full) const {
  const std::int64_t count = std::ssize(pass.cached.asked), first = pass.cached.first;
  const Matrix picked = cache_.Picked(first + count).Rows(first, count);
  const std::span<const std::int64_t> asked = pass.cached.asked;
  for (std::int64_t i = 0, run = 1; i < count; i += run, run = 1) {
    const auto from = static_cast<std::size_t>(i);
    while (i + run < count && asked[from + static_cast<std::size_t>(run)] == asked[from] + run) {
      ++run;
    }
    kernels::Copy(pass.stream, full.Rows(asked[from], run), picked.Rows(i, run));
  }
  layers_.Head().CachedLogits(pass, picked, cache_.Logits(first + count).Rows(first, count));
}

// The final norm and the head: losses, or logits.
void Model::HeadForward(const Pass& pass, const Matrix& x) {
  const NormLayer* final_norm = layers_.FinalNorm();
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  const std::int64_t dim = plan_.options.dim;
  NormLayer::Saved norm;
  Matrix normed = x;
  if (final_norm != nullptr) {
    final_norm->Allocate(pass, norm);
    normed = pass.Allocate(scratch, pass.Rows().Size(), dim);
  }
  const Matrix full = pass.tensor->Sharded() ? pass.Allocate(scratch, pass.Tokens(), dim) : normed;
  if (!pass.Dry()) {
    if (final_norm != nullptr) final_norm->Forward(pass, x, norm, normed);
    pass.tensor->Gather(normed, full);
    if (pass.cached.cache != nullptr) {
      PickLogits(pass, full);
    } else if (logits_position_ >= 0 && full.rows == 0) {
      logits_ = {};  // a context rank without positions
    } else if (logits_position_ >= 0) {
      logits_ = pass.workspace.tile.Rows(0, 1).Columns(0, layers_.Head().Slice().Size());
      layers_.Head().Logits(pass, full.Rows(logits_position_, 1), logits_);
    } else {
      layers_.Head().Loss(pass, full, 0, {});
    }
  }
  scratch->Release(mark);
}

// The final norm and the head: the loss, and its gradient by x: [rows, dim] in dx.
void Model::HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx) const {
  const NormLayer* final_norm = layers_.FinalNorm();
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  const std::int64_t dim = plan_.options.dim, rows = pass.Rows().Size();
  NormLayer::Saved norm;
  Matrix normed = x, dnormed = dx;
  if (final_norm != nullptr) {
    final_norm->Allocate(pass, norm);
    normed = pass.Allocate(scratch, rows, dim);
    dnormed = pass.Allocate(scratch, rows, dim);
  }
  Matrix full = normed, dfull = dnormed;
  if (pass.tensor->Sharded()) {
    full = pass.Allocate(scratch, pass.Tokens(), dim);
    dfull = pass.Allocate(scratch, pass.Tokens(), dim);
  }
  if (!pass.Dry()) {
    const device::Scope scope(
        Trace(), {.name = device::SliceName::kHead, .phase = device::Phase::kBackward, .queues = true});
    if (final_norm != nullptr) final_norm->Forward(pass, x, norm, normed);
    pass.tensor->Gather(normed, full);
    layers_.Head().Loss(pass, full, plan_.label_smoothing, dfull);
    pass.tensor->Reduce(dfull, dnormed);
    if (final_norm != nullptr) {
      final_norm->Backward(pass, norm, {.dy = dnormed, .dx = dx});
    }
  }
  scratch->Release(mark);
}

// The loss and the gradients of the head and the final norm; into `residual` that of its input.
void Model::HeadGradients(TaskEntries& entries) {
  const bool tied = plan_.options.tie_embeddings;
  const int tail = layers_.TailUnit(), token = layers_.TokenUnit();
  Use(layers_.LastUnits());
  BeginGradient(layers_.LastUnits());
  for (TaskEntry& entry : entries) {
    EnterLeaf(tail, LeafGradients::Phase::kWhole, entry.pass);
    if (tied) EnterLeaf(token, LeafGradients::Phase::kHead, entry.pass);
    HeadBackward(entry.pass, entry.live->residuals.back(), entry.residual);
  }
  Done(layers_.LastUnits());
  EndGradient({&tail, 1});
  // On one stage the embedding adds to the same gradient at the end of the backward pass.
  if (tied && local_.stages > 1) EndGradient({&token, 1});
}

void Model::EmbeddingGradients(TaskEntries& entries) {
  BeginGradient(layers_.FirstUnits());
  for (TaskEntry& entry : entries) {
    for (const int unit : layers_.FirstUnits())
      EnterLeaf(unit, LeafGradients::Phase::kWhole, entry.pass);
    if (plan_.options.Translates()) {
      EmbedBackward(layers_.SourceEmbedding(), entry.source, entry.source_residual);
    }
    EmbedBackward(layers_.Embedding(), entry.pass, entry.residual);
  }
  EndGradient(layers_.FirstUnits());
}

}  // namespace trireme::model
