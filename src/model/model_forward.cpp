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
  const bool translates = plan_.options.Translates();
  // The residual stream between blocks: a norm's input, or (post-norm) a product's too. After the
  // last block it is the head's input, which is dead when the backward pass begins.
  const bool pre = plan_.options.norm_position == NormPosition::kPre;
  const auto residual = [&](const TaskEntry& entry, std::size_t block) {
    device::Arena* arena = !pre ? arenas.weight : arenas.input;
    if (pre && memory.Rotates() && block < count) arena = &memory.Frame(*entry.live, block);
    return ResidualOf(PassOf(entry, layers, block), arena);
  };
  if (layers.first) Use(layers_.FirstUnits());
  for (TaskEntry& entry : entries) {
    for (std::size_t i = 0; memory.Rotates() && i < count; ++i) {
      memory.Frame(*entry.live, i).Release(0);
    }
    entry.live->residuals[0] = layers.first ? residual(entry, 0) : entry.in;
    if (layers.first) EmbedFirst(entry, entry.live->residuals[0]);
    if (translates) EnterStreams(entry, layers, arenas, residual);
  }
  if (layers.first) Done(layers_.FirstUnits());
  for (std::size_t i = 0; i < count; ++i) {
    Use({&layers.units[i], 1});
    for (const TaskEntry& entry : entries) {
      const bool leaves_here = i + 1 == count && !layers.last;
      Matrix out = leaves_here ? entry.out : Matrix{};
      if (translates) {
        out = OutputOf(entry, layers, i, residual);
      } else if (!leaves_here) {
        out = residual(entry, i + 1);
      }
      if (i + 1 != layers.encoders) entry.live->residuals[i + 1] = out;
      ForwardBlock(entry, chunk, i, arenas, out);
      if (layers.ends_encoder && i + 1 == layers.encoders) {
        LeaveEncoder(entry, layers, arenas);
      }
    }
    Done({&layers.units[i], 1});
  }
}

void Model::ForwardBlock(const TaskEntry& entry, int chunk, std::size_t block, const Arenas& arenas,
                         const Matrix& out) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  const Block& layer = layers.blocks[block];
  ChunkActivations& memory = memory_.Chunk(chunk);
  ChunkActivations::Live& live = *entry.live;
  Pass pass = PassOf(entry, layers, block);
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  Arenas kept = arenas;
  if (memory.Rotates()) kept.input = &memory.Frame(live, block);
  pass.lives = ForwardLives(kept, scratch);
  pass.source.memory = live.memory;
  layer.Allocate(pass, live.blocks[block]);
  if (!pass.Dry()) {
    const device::Scope scope(Trace(), {.name = device::SliceName::kLayer,
                                       .phase = device::Phase::kForward,
                                       .layer = layer.Number(),
                                       .queues = true});
    layer.Forward(pass, live.residuals[block], live.blocks[block], out);
    Progress();
  }
  scratch->Release(mark);
}

// Evaluation keeps two residual streams of each entry and the memory of one block.
void Model::Evaluate(TaskEntries& entries, int chunk) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  const bool translates = plan_.options.Translates();
  if (layers.first) Use(layers_.FirstUnits());
  const std::int64_t begin = entries.empty() ? 0 : entries.front().pass.lives.scratch->Mark();
  for (TaskEntry& entry : entries) {
    for (Matrix& each : entry.buffers) each = ResidualOf(entry.pass, entry.pass.lives.scratch);
    entry.residual = layers.first ? entry.buffers[0] : entry.in;
    if (translates) {
      EnterEvaluation(entry, layers);
    } else if (layers.first) {
      EmbedFirst(entry, entry.residual);
    }
  }
  if (layers.first) Done(layers_.FirstUnits());
  for (std::size_t i = 0; i < layers.blocks.size(); ++i) {
    Use({&layers.units[i], 1});
    for (TaskEntry& entry : entries) EvaluateBlock(entry, chunk, i);
    Done({&layers.units[i], 1});
  }
  if (layers.last) {
    Use(layers_.LastUnits());
    for (const TaskEntry& entry : entries) HeadForward(entry.pass, entry.residual);
    Done(layers_.LastUnits());
  } else if (translates) {
    for (TaskEntry& entry : entries) LeaveEvaluation(entry, layers);
  }
  if (!entries.empty()) entries.front().pass.lives.scratch->Release(begin);
}

// A block reads one buffer of its stream and writes the other.
void Model::EvaluateBlock(TaskEntry& entry, int chunk, std::size_t block) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  Block::Saved& saved = memory_.Chunk(chunk).Passing()[block];
  const bool encoder = block < layers.encoders, ends = block + 1 == layers.encoders;
  if (encoder && entry.source.sequences == 0) return;
  Pass pass = encoder ? entry.source : entry.pass;
  Matrix& residual = encoder ? entry.source_residual : entry.residual;
  const std::array<Matrix, 2>& buffers = encoder ? entry.source_buffers : entry.buffers;
  const bool leaves_here = block + 1 == layers.blocks.size() && !layers.last && !encoder;
  const std::size_t turn = (block - (encoder ? 0 : layers.encoders) + (layers.first ? 1 : 0)) % 2;
  const Matrix next = leaves_here ? entry.TargetOf(entry.out) : buffers[turn];
  pass.source.memory = entry.memory;
  const std::int64_t mark = pass.lives.scratch->Mark();
  layers.blocks[block].Allocate(pass, saved);
  if (!pass.Dry()) {
    layers.blocks[block].Forward(pass, residual, saved, next);
    Progress();
  }
  pass.lives.scratch->Release(mark);
  residual = next;
  if (!ends || !layers.ends_encoder) return;
  const NormLayer* const norm = layers_.EncoderNorm();
  entry.memory = norm == nullptr ? next : buffers[1 - turn];
  if (norm == nullptr) return;
  NormLayer::Saved norm_saved;
  norm->Allocate(pass, norm_saved);
  if (!pass.Dry()) norm->Forward(pass, next, norm_saved, entry.memory);
  pass.lives.scratch->Release(mark);
  entry.source_residual = entry.memory;
}

}  // namespace trireme::model
