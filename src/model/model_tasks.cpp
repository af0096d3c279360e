// Model: the tasks of a step on this rank's part: forward, backward, evaluation. A micro-batch is a
// list of entries, one in the fast mode, canonical leaves else; what its parameters cost, being
// gathered or scattered, is paid once for all of them.
#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/bfloat16.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model {

using parallel::TaskKind;

void Model::Begin(std::span<const data::MicroBatch> batches, GradientsReady ready, double* losses) {
  batches_ = batches;
  ready_ = std::move(ready);
  losses_ = losses;
  logits_position_ = -1;
  if (!std::exchange(taken_, false)) staged_.Use(batches);
  ExpectLosses(batches);
}

void Model::Repeated(std::span<const data::MicroBatch> batches) {
  batches_ = batches;
  taken_ = false;
  ExpectLosses(batches);
}

void Model::Take(std::span<const data::MicroBatch> batches) {
  staged_.Use(batches);
  taken_ = true;
}

void Model::ExpectLosses(std::span<const data::MicroBatch> batches) {
  std::int64_t rows = 0;
  for (const data::MicroBatch& batch : batches) rows += batch.sequences * batch.length;
  loss_rows_ = rows;
  loss_known_ = false;
  if (rows <= loss_capacity_ || !chunks_.back().last) return;
  device::Synchronise(with_.stream);
  loss_storage_ = device::AllocatePinned(rows * static_cast<std::int64_t>(sizeof(double)),
                                         with_.stream.Where());
  loss_capacity_ = rows;
  ++memory_version_;
}

const ExactSum& Model::SummedLoss() {
  if (loss_known_) return loss_;
  loss_known_ = true;
  loss_ = {};
  if (!chunks_.back().last || logits_position_ >= 0) return loss_;
  device::Synchronise(with_.stream);
  const auto* losses = static_cast<const double*>(loss_storage_.get());
  for (std::int64_t i = 0; i < loss_rows_; ++i) loss_.Add(losses[i]);
  if (losses_ != nullptr) std::copy_n(losses, loss_rows_, losses_);
  return loss_;
}

void Model::BeginLogits(std::span<const data::MicroBatch> batches, std::int64_t position) {
  Begin(batches, {}, nullptr);
  logits_position_ = position;
}

std::int64_t Model::Rows(int micro_batch) const {
  std::int64_t rows = 0;
  for (const data::MicroBatch& batch : EntriesOf(micro_batch)) {
    rows += with_.tensor.Rows(batch.sequences * batch.length).Size();
  }
  return rows;
}

std::span<const data::MicroBatch> Model::EntriesOf(int micro_batch) const {
  const auto leaves = static_cast<std::size_t>(plan_.leaves);
  return batches_.subspan(static_cast<std::size_t>(micro_batch) * leaves, leaves);
}

Model::Leaves& Model::LeavesOf(const parallel::ProgramTask& task, const Matrix& in,
                               const Matrix& out) {
  const bool training = task.task.kind != TaskKind::kEvaluate;
  Chunk& chunk = chunks_[static_cast<std::size_t>(task.task.chunk)];
  auto* losses = static_cast<double*>(loss_storage_.get());  // null where no head is
  for (int before = 0; losses != nullptr && before < task.task.micro_batch; ++before) {
    for (const data::MicroBatch& batch : EntriesOf(before)) {
      losses += batch.sequences * batch.length;
    }
  }
  leaves_.clear();
  std::int64_t row = 0;
  auto live = static_cast<std::size_t>(task.slots.weight * plan_.leaves);
  for (const data::MicroBatch& batch : EntriesOf(task.task.micro_batch)) {
    const std::size_t mine = live++;
    if (batch.sequences == 0) continue;  // padding
    Leaf& leaf = leaves_.emplace_back();
    leaf.pass = MakePass(&batch, training);
    leaf.pass.losses = losses;
    if (training) leaf.live = &chunk.live[mine];
    const std::int64_t rows = leaf.pass.Rows().Size();
    leaf.in = in.Rows(row, rows);
    leaf.out = out.Rows(row, rows);
    row += rows;
    if (losses != nullptr) losses += batch.sequences * batch.length;
  }
  return leaves_;
}

Model::Leaves Model::MeasuringLeaves(Chunk& chunk, bool training, device::Arena& scratch) {
  Leaves leaves;
  for (int i = 0; i < plan_.leaves; ++i) {
    Leaf& leaf = leaves.emplace_back();
    leaf.pass = MakePass(nullptr, training);
    leaf.pass.lives = {&scratch, &scratch, &scratch, &scratch, &scratch};
    if (training) leaf.live = &chunk.live[static_cast<std::size_t>(i)];
  }
  return leaves;
}

void Model::Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) {
  const TaskKind kind = task.task.kind;
  Chunk& chunk = chunks_[static_cast<std::size_t>(task.task.chunk)];
  Leaves& leaves = LeavesOf(task, in, out);
  if (kind == TaskKind::kEvaluate) return Evaluate(leaves, chunk);
  if (!plan_.training) throw RunError("a model for evaluation was asked for gradients");
  SlotArenas slots{&chunk.input[static_cast<std::size_t>(task.slots.input)],
                   &chunk.weight[static_cast<std::size_t>(task.slots.weight)], nullptr};
  switch (kind) {
    case TaskKind::kForward:
      slots.input->Release(0);
      slots.weight->Release(0);
      return Forward(leaves, chunk, slots);
    case TaskKind::kBackward:
      return Backward(leaves, chunk, slots, task.final);
    case TaskKind::kBackwardInput:
      slots.backward = &chunk.backward[static_cast<std::size_t>(task.slots.backward)];
      slots.backward->Release(0);  // of no size where units rotate
      return Backward(leaves, chunk, slots, false);
    default:
      return BackwardWeight(leaves, chunk, task.final);
  }
}

// Where a forward pass puts what it makes.
Lifetimes Model::ForwardLives(const SlotArenas& slots, device::Arena* scratch) const {
  switch (plan_.options.recompute) {
    case Recompute::kNone:
      return {slots.weight, slots.input, slots.weight, nullptr, scratch};
    case Recompute::kSelective:
      return {slots.weight, slots.input, scratch, nullptr, scratch};
    default:
      return {scratch, scratch, scratch, nullptr, scratch};
  }
}

Matrix Model::StreamOf(const Pass& pass, device::Arena* arena) const {
  return pass.Allocate(arena, pass.Rows().Size(), plan_.options.dim);
}

void Model::Forward(Leaves& leaves, Chunk& chunk, const SlotArenas& slots) const {
  const std::size_t count = chunk.blocks.size();
  const auto input = [&](const Leaf& leaf, std::size_t block) {
    return chunk.rotates ? &chunk.units[static_cast<std::size_t>(leaf.live->units[block])]
                         : slots.input;
  };
  // The stream between blocks: a norm's input, or (post-norm) a product's too.
  const bool pre = plan_.options.norm_position == NormPosition::kPre;
  const auto stream = [&](const Leaf& leaf, std::size_t block) {
    // Behind the last block the head's input, which is done with when the backward pass begins.
    return StreamOf(leaf.pass, !pre            ? slots.weight
                               : block < count ? input(leaf, block)
                                               : slots.input);
  };
  if (chunk.first) Use(FirstUnits());
  for (Leaf& leaf : leaves) {
    for (std::size_t i = 0; chunk.rotates && i < count; ++i) input(leaf, i)->Release(0);
    leaf.live->streams.resize(count + 1);
    leaf.live->blocks.resize(count);
    leaf.live->streams[0] = chunk.first ? stream(leaf, 0) : leaf.in;
    if (chunk.first) Embed(leaf.pass, leaf.live->streams[0]);
  }
  if (chunk.first) Done(FirstUnits());
  for (std::size_t i = 0; i < count; ++i) {
    Use({&chunk.parameters[i], 1});
    for (const Leaf& leaf : leaves) {
      Live& live = *leaf.live;
      live.streams[i + 1] = i + 1 == count && !chunk.last ? leaf.out : stream(leaf, i + 1);
      Pass pass = leaf.pass;
      device::Arena* scratch = pass.lives.scratch;
      const std::int64_t mark = scratch->Mark();
      pass.lives = ForwardLives({input(leaf, i), slots.weight, nullptr}, scratch);
      chunk.blocks[i].Allocate(pass, live.blocks[i]);
      if (!pass.Dry()) {
        chunk.blocks[i].Forward(pass, live.streams[i], rope_, live.blocks[i], live.streams[i + 1]);
        Progress();
      }
      scratch->Release(mark);
    }
    Done({&chunk.parameters[i], 1});
  }
}

// Evaluation keeps two streams of each entry and the memory of one block.
void Model::Evaluate(Leaves& leaves, const Chunk& chunk) {
  if (chunk.first) Use(FirstUnits());
  const std::int64_t begin = leaves.empty() ? 0 : leaves.front().pass.lives.scratch->Mark();
  for (Leaf& leaf : leaves) {
    for (Matrix& each : leaf.buffers) each = StreamOf(leaf.pass, leaf.pass.lives.scratch);
    leaf.stream = chunk.first ? leaf.buffers[0] : leaf.in;
    if (chunk.first) Embed(leaf.pass, leaf.stream);
  }
  if (chunk.first) Done(FirstUnits());
  std::size_t turn = chunk.first ? 1 : 0;
  for (std::size_t i = 0; i < chunk.blocks.size(); ++i, turn = 1 - turn) {
    Use({&chunk.parameters[i], 1});
    for (Leaf& leaf : leaves) {
      const Pass& pass = leaf.pass;
      const bool leaves_here = i + 1 == chunk.blocks.size() && !chunk.last;
      const Matrix next = leaves_here ? leaf.out : leaf.buffers[turn];
      const std::int64_t mark = pass.lives.scratch->Mark();
      Block::Saved saved;
      chunk.blocks[i].Allocate(pass, saved);
      if (!pass.Dry()) {
        chunk.blocks[i].Forward(pass, leaf.stream, rope_, saved, next);
        Progress();
      }
      pass.lives.scratch->Release(mark);
      leaf.stream = next;
    }
    Done({&chunk.parameters[i], 1});
  }
  if (chunk.last) {
    Use(LastUnits());
    for (const Leaf& leaf : leaves) HeadForward(leaf.pass, leaf.stream);
    Done(LastUnits());
  }
  if (!leaves.empty()) leaves.front().pass.lives.scratch->Release(begin);
}

// One block: what was not kept is computed again first.
void Model::BackwardBlock(Pass pass, const Block& block, Block::Saved& saved, const Matrix& dy,
                          const Matrix& dx) const {
  device::Arena *scratch = pass.lives.scratch, *backward = pass.lives.backward;
  const std::int64_t mark = scratch->Mark();
  pass.lives = {backward, scratch, backward, backward, scratch};
  const Recompute recompute = plan_.options.recompute;
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

void Model::Backward(Leaves& leaves, Chunk& chunk, const SlotArenas& slots, bool report) {
  const bool weights_too = slots.backward == nullptr, rotates = chunk.rotates && !weights_too;
  const std::int64_t mark = leaves.empty() ? 0 : leaves.front().pass.lives.scratch->Mark();
  for (Leaf& leaf : leaves) {
    Pass& pass = leaf.pass;
    device::Arena* scratch = pass.lives.scratch;
    pass.weights_too = weights_too;
    pass.lives = {scratch, scratch, scratch, weights_too ? scratch : slots.backward, scratch};
    for (Matrix& buffer : leaf.buffers) buffer = StreamOf(pass, scratch);
    leaf.stream = leaf.in;
    if (chunk.last) leaf.stream = chunk.blocks.empty() ? leaf.out : leaf.buffers[0];
  }
  if (chunk.last) HeadGradients(leaves);
  if (chunk.last && report) Report(tail_unit_);
  std::size_t turn = chunk.last ? 1 : 0;
  for (std::size_t i = chunk.blocks.size(); i-- > 0; turn = 1 - turn) {
    const int unit = chunk.parameters[i];
    Use({&unit, 1});
    if (weights_too) BeginGradient({&unit, 1});
    registry_.BindEarly(unit, !weights_too);
    for (Leaf& leaf : leaves) {
      Pass pass = leaf.pass;
      Live& live = *leaf.live;
      const Matrix next = i == 0 && !chunk.first ? leaf.out : leaf.buffers[turn];
      if (rotates) {
        pass.lives.backward = &chunk.units[static_cast<std::size_t>(chunk.spare)];
        pass.lives.backward->Release(0);
      }
      EnterLeaf(unit, weights_too ? Phase::kWhole : Phase::kEarly, pass);
      BackwardBlock(pass, chunk.blocks[i], live.blocks[i], leaf.stream, next);
      if (rotates) std::swap(live.units[i], chunk.spare);
      leaf.stream = next;
    }
    registry_.BindEarly(unit, false);
    Done({&unit, 1});
    if (weights_too) EndGradient({&unit, 1});
    if (report && weights_too) Report(unit);
  }
  if (chunk.first) EmbeddingGradients(leaves);
  if (!leaves.empty()) leaves.front().pass.lives.scratch->Release(mark);
}

void Model::BackwardWeight(Leaves& leaves, const Chunk& chunk, bool report) {
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) {
    const int unit = chunk.parameters[i];
    BeginGradient({&unit, 1});
    for (const Leaf& leaf : leaves) {
      EnterLeaf(unit, Phase::kLate, leaf.pass);
      chunk.blocks[i].BackwardWeight(leaf.pass, leaf.live->blocks[i]);
      Progress();
    }
    EndGradient({&unit, 1});
    if (report) Report(unit);
  }
}

std::vector<double> Model::LogitsSlice() const {
  std::vector<double> logits(static_cast<std::size_t>(logits_.columns));
  const std::int64_t bytes = logits_.columns * static_cast<std::int64_t>(SizeOf(logits_.dtype));
  std::vector<std::byte> raw(static_cast<std::size_t>(bytes));
  device::CopyOut(with_.stream, logits_.data, raw.data(), bytes);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits_.dtype == Dtype::kBfloat16) {
      logits[i] =
          static_cast<double>(FromBfloat16(reinterpret_cast<const std::uint16_t*>(raw.data())[i]));
    } else {
      DispatchDtype(logits_.dtype, [&](auto zero) {
        logits[i] = reinterpret_cast<const decltype(zero)*>(raw.data())[i];
      });
    }
  }
  return logits;
}

}  // namespace trireme::model
