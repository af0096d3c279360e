// Model: the tasks of a step on this rank's part: forward, backward, evaluation.
#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model {

using parallel::TaskKind;

void Model::Begin(std::span<const data::MicroBatch> batches, GradientsReady ready, double* losses) {
  batches_ = batches;
  ready_ = std::move(ready);
  losses_ = losses;
  logits_position_ = -1;
  loss_ = 0;
}

void Model::BeginLogits(std::span<const data::MicroBatch> batches, std::int64_t position) {
  Begin(batches, {}, nullptr);
  logits_position_ = position;
}

std::int64_t Model::Rows(int micro_batch) const {
  const data::MicroBatch& batch = batches_[static_cast<std::size_t>(micro_batch)];
  return setup_.tensor->Rows(batch.sequences * batch.length).Size();
}

void Model::Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) {
  const auto number = static_cast<std::size_t>(task.task.micro_batch);
  const data::MicroBatch& batch = batches_[number];
  const TaskKind kind = task.task.kind;
  Chunk& chunk = chunks_[static_cast<std::size_t>(task.task.chunk)];
  if (batch.sequences == 0) {  // padding: its chunk may be done with it
    if (task.final && !chunk.begin.empty()) Report(chunk.begin.front());
    return;
  }
  const Pass pass = MakePass(&batch, kind != TaskKind::kEvaluate);
  if (kind == TaskKind::kEvaluate) {
    double* losses = losses_;
    for (std::size_t i = 0; losses != nullptr && i < number; ++i) {
      losses += batches_[i].sequences * batches_[i].length;
    }
    return Evaluate(pass, chunk, in, out, losses);
  }
  if (!setup_.training) throw RunError("a model for evaluation was asked for gradients");
  const auto weight = static_cast<std::size_t>(task.slots.weight);
  SlotArenas slots{&chunk.input[static_cast<std::size_t>(task.slots.input)], &chunk.weight[weight],
                   nullptr};
  Live& live = chunk.live[weight];
  switch (kind) {
    case TaskKind::kForward:
      slots.input->Release(0);
      slots.weight->Release(0);
      return Forward(pass, chunk, live, slots, in, out);
    case TaskKind::kBackward:
      return Backward(pass, chunk, live, slots, in, out, task.final);
    case TaskKind::kBackwardInput:
      slots.backward = &chunk.backward[static_cast<std::size_t>(task.slots.backward)];
      slots.backward->Release(0);  // of no size where units rotate
      return Backward(pass, chunk, live, slots, in, out, false);
    default:
      return BackwardWeight(pass, chunk, live, task.final);
  }
}

// Where a forward pass puts what it makes.
Lifetimes Model::ForwardLives(const SlotArenas& slots, device::Arena* scratch) const {
  switch (setup_.options.recompute) {
    case Recompute::kNone:
      return {slots.weight, slots.input, slots.weight, nullptr, scratch};
    case Recompute::kSelective:
      return {slots.weight, slots.input, scratch, nullptr, scratch};
    default:
      return {scratch, scratch, scratch, nullptr, scratch};
  }
}

void Model::Embed(const Pass& pass, const Matrix& stream) const {
  const std::int64_t mark = pass.lives.scratch->Mark();
  const Matrix full = pass.tensor->Sharded()
                          ? pass.Allocate(pass.lives.scratch, pass.Tokens(), setup_.options.dim)
                          : stream;
  if (!pass.Dry()) embedding_->Forward(pass, positions_, full, stream);
  pass.lives.scratch->Release(mark);
}

void Model::EmbedBackward(const Pass& pass, const Matrix& gradient) const {
  const std::int64_t mark = pass.lives.scratch->Mark();
  const Matrix full = pass.tensor->Sharded()
                          ? pass.Allocate(pass.lives.scratch, pass.Tokens(), setup_.options.dim)
                          : gradient;
  if (!pass.Dry()) embedding_->BackwardWeight(pass, gradient, full);
  pass.lives.scratch->Release(mark);
}

void Model::Forward(Pass pass, Chunk& chunk, Live& live, const SlotArenas& slots, const Matrix& in,
                    const Matrix& out) const {
  device::Arena* scratch = pass.lives.scratch;
  const std::size_t count = chunk.blocks.size();
  const auto input = [&](std::size_t block) {
    return chunk.rotates ? &chunk.units[static_cast<std::size_t>(live.units[block])] : slots.input;
  };
  // The stream between blocks: a norm's input, or (post-norm) a product's too.
  const bool pre = setup_.options.norm_position == NormPosition::kPre;
  const auto stream = [&](std::size_t block) {
    // Behind the last block the head's input, which is done with when the backward pass begins.
    device::Arena* keeper = !pre ? slots.weight : block < count ? input(block) : slots.input;
    return pass.Allocate(keeper, pass.Rows().Size(), setup_.options.dim);
  };
  if (chunk.rotates) {
    for (std::size_t i = 0; i < count; ++i) input(i)->Release(0);
  }
  live.streams.resize(count + 1);
  live.blocks.resize(count);
  live.streams[0] = chunk.first ? stream(0) : in;
  if (chunk.first) Embed(pass, live.streams[0]);
  for (std::size_t i = 0; i < count; ++i) {
    live.streams[i + 1] = i + 1 == count && !chunk.last ? out : stream(i + 1);
    const std::int64_t mark = scratch->Mark();
    pass.lives = ForwardLives({input(i), slots.weight, nullptr}, scratch);
    chunk.blocks[i].Allocate(pass, live.blocks[i]);
    if (!pass.Dry()) {
      chunk.blocks[i].Forward(pass, live.streams[i], rope_, live.blocks[i], live.streams[i + 1]);
      Progress();
    }
    scratch->Release(mark);
  }
}

// Evaluation keeps two streams and the memory of one block.
void Model::Evaluate(const Pass& pass, const Chunk& chunk, const Matrix& in, const Matrix& out,
                     double* losses) {
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t begin = scratch->Mark();
  Matrix streams[2];
  for (Matrix& stream : streams) {
    stream = pass.Allocate(scratch, pass.Rows().Size(), setup_.options.dim);
  }
  Matrix stream = chunk.first ? streams[0] : in;
  if (chunk.first) Embed(pass, stream);
  std::size_t turn = chunk.first ? 1 : 0;
  for (std::size_t i = 0; i < chunk.blocks.size(); ++i, turn = 1 - turn) {
    const Matrix next = i + 1 == chunk.blocks.size() && !chunk.last ? out : streams[turn];
    const std::int64_t mark = scratch->Mark();
    Block::Saved saved;
    chunk.blocks[i].Allocate(pass, saved);
    if (!pass.Dry()) {
      chunk.blocks[i].Forward(pass, stream, rope_, saved, next);
      Progress();
    }
    scratch->Release(mark);
    stream = next;
  }
  if (chunk.last) HeadForward(pass, stream, losses);
  scratch->Release(begin);
}

void Model::HeadForward(const Pass& pass, const Matrix& x, double* losses) {
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  const std::int64_t dim = setup_.options.dim;
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
    if (logits_position_ >= 0) {
      logits_ = workspace_.tile.Rows(0, 1);
      head_->Logits(pass, full.Rows(logits_position_, 1), logits_);
    } else {
      loss_ += head_->Loss(pass, full, 0, losses);
    }
  }
  scratch->Release(mark);
}

void Model::HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx) {
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  const std::int64_t dim = setup_.options.dim, rows = pass.Rows().Size();
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
    loss_ += head_->LossAndBackward(pass, full, setup_.label_smoothing, dfull);
    pass.tensor->Reduce(dfull, dnormed);
    if (norm_) {
      norm_->BackwardInput(pass, dnormed, norm, dx, false);
      norm_->BackwardWeight(pass, norm);
    }
  }
  scratch->Release(mark);
}

// One block: what was not kept is computed again first.
void Model::BackwardBlock(Pass pass, const Block& block, Block::Saved& saved, const Matrix& dy,
                          const Matrix& dx) const {
  device::Arena *scratch = pass.lives.scratch, *backward = pass.lives.backward;
  const std::int64_t mark = scratch->Mark();
  pass.lives = {backward, scratch, backward, backward, scratch};
  const Recompute recompute = setup_.options.recompute;
  if (recompute == Recompute::kSelective) block.AllocateCheap(pass, saved);
  if (recompute == Recompute::kFull) block.Allocate(pass, saved);
  block.AllocateBackward(pass, saved);
  if (!pass.Dry()) {
    if (recompute == Recompute::kSelective) block.RecomputeCheap(pass, saved);
    if (recompute == Recompute::kFull) block.Recompute(pass, rope_, saved);
    block.BackwardInput(pass, dy, rope_, saved, dx);
    Progress();
  }
  scratch->Release(mark);
}

void Model::Backward(Pass pass, Chunk& chunk, Live& live, const SlotArenas& slots, const Matrix& in,
                     const Matrix& out, bool report) {
  device::Arena* scratch = pass.lives.scratch;
  pass.weights_too = slots.backward == nullptr;
  const bool rotates = chunk.rotates && !pass.weights_too;
  pass.lives = {scratch, scratch, scratch, pass.weights_too ? scratch : slots.backward, scratch};
  const std::int64_t mark = scratch->Mark();
  Matrix gradients[2];
  for (Matrix& gradient : gradients) {
    gradient = pass.Allocate(scratch, pass.Rows().Size(), setup_.options.dim);
  }
  Matrix gradient = in;
  std::size_t turn = 0;
  if (chunk.last) {
    gradient = chunk.blocks.empty() ? out : gradients[turn];
    turn = 1;
    HeadBackward(pass, live.streams.back(), gradient);
    if (report) Report(tail_begin_);
  }
  for (std::size_t i = chunk.blocks.size(); i-- > 0; turn = 1 - turn) {
    const Matrix next = i == 0 && !chunk.first ? out : gradients[turn];
    if (rotates) {
      pass.lives.backward = &chunk.units[static_cast<std::size_t>(chunk.spare)];
      pass.lives.backward->Release(0);
    }
    BackwardBlock(pass, chunk.blocks[i], live.blocks[i], gradient, next);
    if (rotates) std::swap(live.units[i], chunk.spare);
    if (report && pass.weights_too) Report(chunk.begin[i]);
    gradient = next;
  }
  if (chunk.first) EmbedBackward(pass, gradient);
  scratch->Release(mark);
}

void Model::BackwardWeight(const Pass& pass, const Chunk& chunk, const Live& live, bool report) {
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) {
    chunk.blocks[i].BackwardWeight(pass, live.blocks[i]);
    Progress();
    if (report) Report(chunk.begin[i]);
  }
}

double Model::ForwardBackward(const data::MicroBatch& batch, const GradientsReady& ready) {
  Begin({&batch, 1}, ready, nullptr);
  Run({{TaskKind::kForward, 0, 0}, {}, false}, {}, {});
  Run({{TaskKind::kBackward, 0, 0}, {}, true}, {}, {});
  Report(0);
  return loss_;
}

double Model::Loss(const data::MicroBatch& batch, double* losses) {
  Begin({&batch, 1}, {}, losses);
  Run({{TaskKind::kEvaluate, 0, 0}, {}, false}, {}, {});
  return loss_;
}

std::vector<double> Model::Logits(const data::MicroBatch& batch, std::int64_t position) {
  BeginLogits({&batch, 1}, position);
  Run({{TaskKind::kEvaluate, 0, 0}, {}, false}, {}, {});
  std::vector<double> logits(static_cast<std::size_t>(logits_.columns));
  DispatchDtype(logits_.dtype, [&](auto zero) {
    std::copy_n(logits_.As<decltype(zero)>(), logits_.columns, logits.begin());
  });
  return logits;
}

}  // namespace trireme::model
