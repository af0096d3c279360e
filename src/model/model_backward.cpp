// Model: the backward pass of a training step, in one task or in two.
#include <utility>

#include "trireme/model/model.hpp"

namespace trireme::model {

using Phase = LeafGradients::Phase;

void Model::RecomputeBlock(const Pass& pass, const Block& block, Block::Saved& saved) const {
  const Recompute recompute = plan_.options.recompute;
  if (recompute == Recompute::kNone) return;
  const device::Scope scope(Trace(), {.name = device::SliceName::kRecompute,
                                     .phase = device::Phase::kRecompute,
                                     .layer = block.Number(),
                                     .queues = true});
  if (recompute == Recompute::kSelective) block.RecomputeCheap(pass, saved);
  if (recompute == Recompute::kFull) block.Recompute(pass, saved);
}

// One block of one entry. Matrices that were not kept are computed again first.
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
    const device::Scope scope(Trace(), {.name = device::SliceName::kLayer,
                                       .phase = pass.weights_too ? device::Phase::kBackward
                                                                 : device::Phase::kInputGradient,
                                       .layer = block.Number(),
                                       .queues = true});
    RecomputeBlock(pass, block, saved);
    block.BackwardInput(pass, dy, saved, dx);
    Progress();
  }
  scratch->Release(mark);
}

void Model::Backward(TaskEntries& entries, int chunk, const Arenas& arenas, bool report) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  const bool weights_too = arenas.backward == nullptr;
  const std::int64_t mark = entries.empty() ? 0 : entries.front().pass.lives.scratch->Mark();
  for (TaskEntry& entry : entries) {
    Pass& pass = entry.pass;
    device::Arena* scratch = pass.lives.scratch;
    pass.weights_too = weights_too;
    pass.lives = {scratch, scratch, scratch, weights_too ? scratch : arenas.backward, scratch};
    for (Matrix& buffer : entry.buffers) buffer = ResidualOf(pass, scratch);
    entry.residual = entry.in;
    if (layers.last) entry.residual = layers.blocks.empty() ? entry.out : entry.buffers[0];
    if (plan_.options.Translates()) EnterStreamsBackward(entry, layers);
  }
  if (layers.last) HeadGradients(entries);
  if (layers.last && report) Report(layers_.TailUnit());
  for (std::size_t i = layers.blocks.size(); i-- > 0;) {
    BackwardUnit(entries, chunk, i, weights_too);
    if (report && weights_too) Report(layers.units[i]);
  }
  if (layers.first) EmbeddingGradients(entries);
  if (!entries.empty()) entries.front().pass.lives.scratch->Release(mark);
}

// One block of all entries: its values are used, and its gradients begun, once.
void Model::BackwardUnit(TaskEntries& entries, int chunk, std::size_t block, bool weights_too) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  ChunkActivations& memory = memory_.Chunk(chunk);
  const bool rotates = memory.Rotates() && !weights_too;
  const int unit = layers.units[block];
  Use({&unit, 1});
  if (weights_too) BeginGradient({&unit, 1});
  layers_.Parameters().BindEarly(unit, !weights_too);
  for (TaskEntry& entry : entries) {
    const bool encoder = block < layers.encoders;
    ChunkActivations::Live& live = *entry.live;
    const Matrix next = InputGradientOf(entry, layers, block);
    Matrix& residual = encoder ? entry.source_residual : entry.residual;
    EnterLeaf(unit, weights_too ? Phase::kWhole : Phase::kEarly, entry.pass);
    if (block + 1 == layers.encoders) EnterEncoderBackward(entry, layers);
    Pass pass = PassOf(entry, layers, block);
    pass.source.memory = live.memory;
    pass.source.dmemory = entry.memory;
    if (rotates) {
      pass.lives.backward = &memory.SpareFrame();
      pass.lives.backward->Release(0);
    }
    BackwardBlock(pass, layers.blocks[block], live.blocks[block], residual, next);
    if (rotates) memory.SwapSpare(live, block);
    residual = next;
  }
  layers_.Parameters().BindEarly(unit, false);
  Done({&unit, 1});
  if (weights_too) EndGradient({&unit, 1});
}

void Model::BackwardWeight(TaskEntries& entries, int chunk, bool report) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  for (std::size_t i = layers.blocks.size(); i-- > 0;) {
    const int unit = layers.units[i];
    BeginGradient({&unit, 1});
    for (const TaskEntry& entry : entries) {
      EnterLeaf(unit, Phase::kLate, entry.pass);
      const device::Scope scope(Trace(), {.name = device::SliceName::kLayer,
                                         .phase = device::Phase::kWeightGradient,
                                         .layer = layers.blocks[i].Number(),
                                         .queues = true});
      layers.blocks[i].BackwardWeight(PassOf(entry, layers, i), entry.live->blocks[i]);
      Progress();
    }
    EndGradient({&unit, 1});
    if (report) Report(unit);
  }
}

}  // namespace trireme::model
