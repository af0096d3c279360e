// Model: the forward pass of a training step, and evaluation.
#include "trireme/model/model.hpp"

namespace trireme::model {

// The arenas in which a forward pass puts its matrices.
Lifetimes Model::ForwardLives(const Arenas& arenas, device::Arena* scratch) const {
  switch (plan_.options.recompute) {
    case Recompute::kNone:
      return {arenas.weight, arenas.input, arenas.weight, nullptr, scratch};
    case Recompute::kSelective:
      return {arenas.weight, arenas.input, scratch, nullptr, scratch};
    default:
      return {scratch, scratch, scratch, nullptr, scratch};
  }
}

Matrix Model::ResidualOf(const Pass& pass, device::Arena* arena) const {
  return pass.Allocate(arena, pass.Rows().Size(), plan_.options.dim);
}

void Model::Forward(TaskEntries& entries, int chunk, const Arenas& arenas) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  ChunkActivations& memory = memory_.Chunk(chunk);
  const std::size_t count = layers.blocks.size();
  // The residual stream between blocks: a norm's input, or (post-norm) a product's too. After the
  // last block it is the head's input, which is dead when the backward pass begins.
  const bool pre = plan_.options.norm_position == NormPosition::kPre;
  const auto residual = [&](const TaskEntry& entry, std::size_t block) {
    device::Arena* arena = !pre ? arenas.weight : arenas.input;
    if (pre && memory.Rotates() && block < count) arena = &memory.Frame(*entry.live, block);
    return ResidualOf(entry.pass, arena);
  };
  if (layers.first) Use(layers_.FirstUnits());
  for (TaskEntry& entry : entries) {
    for (std::size_t i = 0; memory.Rotates() && i < count; ++i) {
      memory.Frame(*entry.live, i).Release(0);
    }
    entry.live->residuals[0] = layers.first ? residual(entry, 0) : entry.in;
    if (layers.first) Embed(entry.pass, entry.live->residuals[0]);
  }
  if (layers.first) Done(layers_.FirstUnits());
  for (std::size_t i = 0; i < count; ++i) {
    Use({&layers.units[i], 1});
    for (const TaskEntry& entry : entries) {
      const bool leaves_here = i + 1 == count && !layers.last;
      entry.live->residuals[i + 1] = leaves_here ? entry.out : residual(entry, i + 1);
      ForwardBlock(entry, chunk, i, arenas);
    }
    Done({&layers.units[i], 1});
  }
}

void Model::ForwardBlock(const TaskEntry& entry, int chunk, std::size_t block,
                         const Arenas& arenas) {
  const Block& layer = layers_.Chunks()[static_cast<std::size_t>(chunk)].blocks[block];
  ChunkActivations& memory = memory_.Chunk(chunk);
  ChunkActivations::Live& live = *entry.live;
  Pass pass = entry.pass;
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  Arenas kept = arenas;
  if (memory.Rotates()) kept.input = &memory.Frame(live, block);
  pass.lives = ForwardLives(kept, scratch);
  layer.Allocate(pass, live.blocks[block]);
  if (!pass.Dry()) {
    const trace::Scope scope(Trace(), {.name = trace::Name::kLayer,
                                       .phase = trace::Phase::kForward,
                                       .layer = layer.Number(),
                                       .queues = true});
    layer.Forward(pass, live.residuals[block], live.blocks[block], live.residuals[block + 1]);
    Progress();
  }
  scratch->Release(mark);
}

// Evaluation keeps two residual streams of each entry and the memory of one block.
void Model::Evaluate(TaskEntries& entries, int chunk) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  std::vector<Block::Saved>& saved = memory_.Chunk(chunk).Passing();
  if (layers.first) Use(layers_.FirstUnits());
  const std::int64_t begin = entries.empty() ? 0 : entries.front().pass.lives.scratch->Mark();
  for (TaskEntry& entry : entries) {
    for (Matrix& each : entry.buffers) each = ResidualOf(entry.pass, entry.pass.lives.scratch);
    entry.residual = layers.first ? entry.buffers[0] : entry.in;
    if (layers.first) Embed(entry.pass, entry.residual);
  }
  if (layers.first) Done(layers_.FirstUnits());
  std::size_t turn = layers.first ? 1 : 0;
  for (std::size_t i = 0; i < layers.blocks.size(); ++i, turn = 1 - turn) {
    Use({&layers.units[i], 1});
    for (TaskEntry& entry : entries) {
      const Pass& pass = entry.pass;
      const bool leaves_here = i + 1 == layers.blocks.size() && !layers.last;
      const Matrix next = leaves_here ? entry.out : entry.buffers[turn];
      const std::int64_t mark = pass.lives.scratch->Mark();
      layers.blocks[i].Allocate(pass, saved[i]);
      if (!pass.Dry()) {
        layers.blocks[i].Forward(pass, entry.residual, saved[i], next);
        Progress();
      }
      pass.lives.scratch->Release(mark);
      entry.residual = next;
    }
    Done({&layers.units[i], 1});
  }
  if (layers.last) {
    Use(layers_.LastUnits());
    for (const TaskEntry& entry : entries) HeadForward(entry.pass, entry.residual);
    Done(layers_.LastUnits());
  }
  if (!entries.empty()) entries.front().pass.lives.scratch->Release(begin);
}

}  // namespace trireme::model
