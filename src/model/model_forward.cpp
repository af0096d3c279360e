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

Matrix Model::StreamOf(const Pass& pass, device::Arena* arena) const {
  return pass.Allocate(arena, pass.Rows().Size(), plan_.options.dim);
}

void Model::Forward(Leaves& leaves, int chunk, const Arenas& arenas) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  ChunkActivations& memory = memory_.Chunk(chunk);
  const std::size_t count = layers.blocks.size();
  // The stream between blocks: a norm's input, or (post-norm) a product's too. After the last block
  // it is the head's input, which is dead when the backward pass begins.
  const bool pre = plan_.options.norm_position == NormPosition::kPre;
  const auto stream = [&](const Leaf& leaf, std::size_t block) {
    device::Arena* arena = !pre ? arenas.weight : arenas.input;
    if (pre && memory.Rotates() && block < count) arena = &memory.Frame(*leaf.live, block);
    return StreamOf(leaf.pass, arena);
  };
  if (layers.first) Use(layers_.FirstUnits());
  for (Leaf& leaf : leaves) {
    for (std::size_t i = 0; memory.Rotates() && i < count; ++i) {
      memory.Frame(*leaf.live, i).Release(0);
    }
    leaf.live->streams[0] = layers.first ? stream(leaf, 0) : leaf.in;
    if (layers.first) Embed(leaf.pass, leaf.live->streams[0]);
  }
  if (layers.first) Done(layers_.FirstUnits());
  for (std::size_t i = 0; i < count; ++i) {
    Use({&layers.units[i], 1});
    for (const Leaf& leaf : leaves) {
      const bool leaves_here = i + 1 == count && !layers.last;
      leaf.live->streams[i + 1] = leaves_here ? leaf.out : stream(leaf, i + 1);
      ForwardBlock(leaf, chunk, i, arenas);
    }
    Done({&layers.units[i], 1});
  }
}

void Model::ForwardBlock(const Leaf& leaf, int chunk, std::size_t block, const Arenas& arenas) {
  const Block& layer = layers_.Chunks()[static_cast<std::size_t>(chunk)].blocks[block];
  ChunkActivations& memory = memory_.Chunk(chunk);
  ChunkActivations::Live& live = *leaf.live;
  Pass pass = leaf.pass;
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  Arenas kept = arenas;
  if (memory.Rotates()) kept.input = &memory.Frame(live, block);
  pass.lives = ForwardLives(kept, scratch);
  layer.Allocate(pass, live.blocks[block]);
  if (!pass.Dry()) {
    layer.Forward(pass, live.streams[block], live.blocks[block], live.streams[block + 1]);
    Progress();
  }
  scratch->Release(mark);
}

// Evaluation keeps two streams of each entry and the memory of one block.
void Model::Evaluate(Leaves& leaves, int chunk) {
  const StageLayers::Chunk& layers = layers_.Chunks()[static_cast<std::size_t>(chunk)];
  std::vector<Block::Saved>& saved = memory_.Chunk(chunk).Passing();
  if (layers.first) Use(layers_.FirstUnits());
  const std::int64_t begin = leaves.empty() ? 0 : leaves.front().pass.lives.scratch->Mark();
  for (Leaf& leaf : leaves) {
    for (Matrix& each : leaf.buffers) each = StreamOf(leaf.pass, leaf.pass.lives.scratch);
    leaf.stream = layers.first ? leaf.buffers[0] : leaf.in;
    if (layers.first) Embed(leaf.pass, leaf.stream);
  }
  if (layers.first) Done(layers_.FirstUnits());
  std::size_t turn = layers.first ? 1 : 0;
  for (std::size_t i = 0; i < layers.blocks.size(); ++i, turn = 1 - turn) {
    Use({&layers.units[i], 1});
    for (Leaf& leaf : leaves) {
      const Pass& pass = leaf.pass;
      const bool leaves_here = i + 1 == layers.blocks.size() && !layers.last;
      const Matrix next = leaves_here ? leaf.out : leaf.buffers[turn];
      const std::int64_t mark = pass.lives.scratch->Mark();
      layers.blocks[i].Allocate(pass, saved[i]);
      if (!pass.Dry()) {
        layers.blocks[i].Forward(pass, leaf.stream, saved[i], next);
        Progress();
      }
      pass.lives.scratch->Release(mark);
      leaf.stream = next;
    }
    Done({&layers.units[i], 1});
  }
  if (layers.last) {
    Use(layers_.LastUnits());
    for (const Leaf& leaf : leaves) HeadForward(leaf.pass, leaf.stream);
    Done(layers_.LastUnits());
  }
  if (!leaves.empty()) leaves.front().pass.lives.scratch->Release(begin);
}

}  // namespace trireme::model
