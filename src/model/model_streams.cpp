// Model: the two streams of a model that translates. The encoder's blocks act on the source texts,
// the decoder's on the target texts and read the encoder's output. Between stages the streams
// travel together, source rows first: what the stage before has of each, and backward its gradient,
// so that gradients of the encoder's output add up on the way.
#include "trireme/model/model.hpp"

namespace trireme::model {

Pass Model::MakeSourcePass(const Pass& pass) const {
  Pass source = pass;
  source.length = pass.source.length;
  source.positions = PositionsOf(source.length, 0, 1);
  source.tokens.inputs = pass.tokens.sources;
  source.tokens.key_lengths = pass.tokens.source_lengths;
  source.tokens.targets = nullptr;
  source.causal = false;
  source.source = {};
  source.cached = {};
  return source;
}

// Forward, before the first block: where the encoder's output goes, and the target stream, which
// waits while the encoder's blocks run or goes on to the next stage.
void Model::EnterStreams(TaskEntry& entry, const StageLayers::Chunk& layers, const Arenas& arenas,
                         MakeResidual residual) const {
  ChunkActivations::Live& live = *entry.live;
  const std::size_t count = layers.blocks.size(), encoders = layers.encoders;
  const bool dry = entry.pass.Dry(), passes = encoders == count;
  if (!layers.first) {
    live.residuals[0] = encoders > 0 ? entry.SourceOf(entry.in) : entry.TargetOf(entry.in);
  }
  if (encoders == 0) {
    live.memory = entry.SourceOf(entry.in);
    if (!layers.last && !dry) {
      kernels::Copy(entry.pass.stream, live.memory, entry.SourceOf(entry.out));
    }
    return;
  }
  Matrix target = entry.TargetOf(entry.in);
  if (layers.first) {
    target = passes ? entry.TargetOf(entry.out) : residual(entry, encoders);
    Embed(layers_.Embedding(), entry.pass, target);
  } else if (passes && !dry) {
    kernels::Copy(entry.pass.stream, target, entry.TargetOf(entry.out));
  }
  if (!passes) live.residuals[encoders] = target;
  if (!layers.ends_encoder) return;
  live.memory = passes ? entry.SourceOf(entry.out) : ResidualOf(entry.source, arenas.weight);
  live.encoded =
      layers_.EncoderNorm() == nullptr ? live.memory : ResidualOf(entry.source, arenas.input);
}

// Output of a block, forward.
Matrix Model::OutputOf(const TaskEntry& entry, const StageLayers::Chunk& layers, std::size_t block,
                       MakeResidual residual) const {
  if (block + 1 == layers.encoders) {
    return layers.ends_encoder ? entry.live->encoded : entry.SourceOf(entry.out);
  }
  const bool leaves_here = block + 1 == layers.blocks.size() && !layers.last;
  return leaves_here ? entry.TargetOf(entry.out) : residual(entry, block + 1);
}

// Forward, after the encoder's last block: its output, for this chunk's decoder and for later ones.
void Model::LeaveEncoder(const TaskEntry& entry, const StageLayers::Chunk& layers,
                         const Arenas& arenas) const {
  ChunkActivations::Live& live = *entry.live;
  if (const NormLayer* const norm = layers_.EncoderNorm()) {
    Pass pass = entry.source;
    pass.lives.input = arenas.input;
    norm->Allocate(pass, live.encoder_norm);
    if (!pass.Dry()) norm->Forward(pass, live.encoded, live.encoder_norm, live.memory);
  }
  if (entry.pass.Dry() || layers.last || layers.encoders == layers.blocks.size()) return;
  kernels::Copy(entry.pass.stream, live.memory, entry.SourceOf(entry.out));
}

void Model::EnterEvaluation(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  const bool encodes = entry.source.sequences > 0;
  for (Matrix& each : entry.source_buffers) {
    each = encodes ? ResidualOf(entry.source, entry.source.lives.scratch) : Matrix{};
  }
  entry.source_residual = layers.first ? entry.source_buffers[0] : entry.SourceOf(entry.in);
  entry.residual = layers.first ? entry.buffers[0] : entry.TargetOf(entry.in);
  entry.memory = entry.source_residual;
  if (!layers.first) return;
  if (encodes) EmbedFirst(entry, entry.source_residual);
  Embed(layers_.Embedding(), entry.pass, entry.residual);
}

// The streams go on to the next stage.
void Model::LeaveEvaluation(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  if (entry.pass.Dry()) return;
  if (entry.source.sequences > 0) {
    kernels::Copy(entry.pass.stream, entry.source_residual, entry.SourceOf(entry.out));
  }
  if (layers.encoders == layers.blocks.size()) {
    kernels::Copy(entry.pass.stream, entry.residual, entry.TargetOf(entry.out));
  }
}

// Backward, before the last block: the gradient of the encoder's output so far. If this chunk has
// blocks of the encoder alone, it is that of the source stream.
void Model::EnterStreamsBackward(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  Pass& source = entry.source;
  device::Arena* const scratch = source.lives.scratch;
  source.weights_too = entry.pass.weights_too;
  source.lives = entry.pass.lives;
  for (Matrix& buffer : entry.source_buffers) buffer = ResidualOf(source, scratch);
  const Matrix from = entry.SourceOf(entry.in);
  if (!layers.last) entry.residual = entry.TargetOf(entry.in);
  if (layers.last && layers.blocks.empty()) entry.residual = entry.TargetOf(entry.out);
  if (layers.encoders == layers.blocks.size() && !layers.last) {
    entry.memory = from;
    return;
  }
  entry.memory = layers.encoders == 0 && !layers.first ? entry.SourceOf(entry.out)
                                                       : ResidualOf(source, scratch);
  if (source.Dry()) return;
  if (layers.last) {
    kernels::Clear(source.stream, entry.memory);
  } else {
    kernels::Copy(source.stream, from, entry.memory);
  }
}

// Backward, before the last of the encoder's blocks of a chunk: the gradient of what it wrote. The
// gradient of the target stream that has not yet left goes on to the stage before.
void Model::EnterEncoderBackward(TaskEntry& entry, const StageLayers::Chunk& layers) const {
  const bool passes = layers.encoders == layers.blocks.size(), dry = entry.pass.Dry();
  if (passes && !layers.first && !dry) {
    kernels::Copy(entry.pass.stream, entry.residual, entry.TargetOf(entry.out));
  }
  entry.source_residual = entry.memory;
  const NormLayer* const norm = layers_.EncoderNorm();
  if (norm == nullptr || !layers.ends_encoder) return;
  entry.source_residual = entry.source_buffers[0];
  if (dry) return;
  norm->Backward(entry.source, entry.live->encoder_norm,
                 {.dy = entry.memory, .dx = entry.source_residual});
}

// Gradient of a block's input, to be written by its backward pass. The last of each stream's blocks
// may read buffer 0.
Matrix Model::InputGradientOf(const TaskEntry& entry, const StageLayers::Chunk& layers,
                              std::size_t block) const {
  if (block < layers.encoders) {
    if (block == 0 && !layers.first) return entry.SourceOf(entry.out);
    return entry.source_buffers[(layers.encoders - block) % 2];
  }
  if (block == layers.encoders && !layers.first) return entry.TargetOf(entry.out);
  const std::size_t before = layers.blocks.size() - 1 - block + (layers.last ? 1 : 0);
  return entry.buffers[before % 2];
}

}  // namespace trireme::model
