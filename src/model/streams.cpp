// The two kinds of stage tasks. A decoder has one residual stream. An encoder-decoder has two: the
// encoder's blocks act on the source texts, the decoder's on the target texts and read the
// encoder's output. A message between stages holds both streams (backward: their gradients), source
// rows first, so that gradients of the encoder's output add up from stage to stage.
#include <algorithm>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/model/stage_tasks.hpp"

namespace trireme::model {

namespace {

class DecoderTasks : public StageTasks {
 public:
  explicit DecoderTasks(Network& network) : StageTasks(network, false) {}

 protected:
  void Forward(TaskEntries& entries, int chunk, const Arenas& arenas) override {
    const Network::Chunk& layers = LayersOf(chunk);
    const Stack stack = All(chunk);
    Use(layers.first_units);
    for (TaskEntry& entry : entries) {
      ResidualStream& stream = entry.target;
      stream.residual = layers.first ? ResidualOf(entry, stack, 0, arenas) : stream.in;
      if (layers.first) Embed(network_.Embedding(), stream);
    }
    Done(layers.first_units);
    ForwardTarget(entries, stack, arenas);
  }

  void Evaluate(TaskEntries& entries, int chunk) override {
    const Network::Chunk& layers = LayersOf(chunk);
    Use(layers.first_units);
    for (TaskEntry& entry : entries) {
      ResidualStream& stream = entry.target;
      AllocateBuffers(stream);
      stream.residual = layers.first ? stream.buffers[0] : stream.in;
      if (layers.first) Embed(network_.Embedding(), stream);
    }
    Done(layers.first_units);
    EvaluateTarget(entries, All(chunk));
  }

  void Backward(TaskEntries& entries, int chunk, const Arenas& arenas, bool report) override {
    const Network::Chunk& layers = LayersOf(chunk);
    for (TaskEntry& entry : entries) BeginTargetBackward(entry.target, chunk, arenas);
    if (layers.last) HeadGradients(entries, chunk, report);
    BackwardBlocks(entries, All(chunk), arenas.backward == nullptr, report, [](TaskEntry&) {});
    if (!layers.first) return;
    EmbeddingGradients(entries, chunk,
                       [&](TaskEntry& entry) { Embed(network_.Embedding(), entry.target, true); });
  }

  void MakeSource(TaskEntry& /*entry*/) const override {}
  const Pass& PassOf(const TaskEntry& entry, int /*chunk*/, std::size_t /*block*/) const override {
    return entry.target.pass;
  }
  std::int64_t AttentionElements(const Pass& pass, kernels::AttentionShape shape,
                                 bool dropout) const override {
    return pass.ring->BufferElements(pass.stream, shape, pass.Type(), dropout);
  }

 private:
  Stack All(int chunk) const {
    return {chunk, 0, LayersOf(chunk).blocks.size(), &TaskEntry::target};
  }
};

class EncoderDecoderTasks : public StageTasks {
 public:
  explicit EncoderDecoderTasks(Network& network) : StageTasks(network, true) {}

 protected:
  void Forward(TaskEntries& entries, int chunk, const Arenas& arenas) override {
    const Network::Chunk& layers = LayersOf(chunk);
    Use(layers.first_units);
    for (TaskEntry& entry : entries) EnterForward(entry, chunk, arenas);
    Done(layers.first_units);
    const auto encoded = [&](TaskEntry& entry) {
      if (!layers.ends_encoder) return entry.source.out;
      Matrix& memory = entry.live->memory;
      const Pass& pass = entry.source.pass;
      memory = Passes(layers) ? entry.source.out : Allocate(pass, arenas.weight);
      return network_.EncoderNorm() == nullptr ? memory : Allocate(pass, arenas.input);
    };
    ForwardBlocks(entries, Encoder(chunk), arenas, encoded,
                  [&](TaskEntry& entry) { LeaveEncoder(entry, chunk, arenas); });
    ForwardTarget(entries, Decoder(chunk), arenas);
  }
  void Evaluate(TaskEntries& entries, int chunk) override {
    const Network::Chunk& layers = LayersOf(chunk);
    Use(layers.first_units);
    for (TaskEntry& entry : entries) EnterEvaluation(entry, layers);
    Done(layers.first_units);
    EvaluateBlocks(entries, Encoder(chunk), false,
                   [&](TaskEntry& entry) { LeaveEncoderEvaluation(entry, layers); });
    for (TaskEntry& entry : entries) entry.target.pass.source.memory = entry.source.residual;
    EvaluateTarget(entries, Decoder(chunk));
    if (layers.last) return;
    for (TaskEntry& entry : entries) {
      const ResidualStream &source = entry.source, &target = entry.target;
      if (source.pass.sequences > 0) Copy(source.pass, source.residual, source.out);
      if (Passes(layers)) Copy(target.pass, target.residual, target.out);
    }
  }
  void Backward(TaskEntries& entries, int chunk, const Arenas& arenas, bool report) override {
    const Network::Chunk& layers = LayersOf(chunk);
    const bool weights_too = arenas.backward == nullptr;
    for (TaskEntry& entry : entries) EnterBackward(entry, chunk, arenas);
    if (layers.last) HeadGradients(entries, chunk, report);
    BackwardBlocks(entries, Decoder(chunk), weights_too, report, [](TaskEntry&) {});
    BackwardBlocks(entries, Encoder(chunk), weights_too, report,
                   [&](TaskEntry& entry) { EnterEncoderBackward(entry, layers); });
    if (!layers.first) return;
    EmbeddingGradients(entries, chunk, [&](TaskEntry& entry) {
      Embed(network_.SourceEmbedding(), entry.source, true);
      Embed(network_.Embedding(), entry.target, true);
    });
  }
  void MakeSource(TaskEntry& entry) const override {
    Pass& target = entry.target.pass;
    if (target.Dry()) target.source.length = target.length;
    if (target.cached.continues) return;  // the source texts' keys and values are cached
    Pass& source = entry.source.pass;
    source = target;
    source.length = target.source.length;
    source.positions = PositionsOf(source.length, 0, 1);
    source.tokens.inputs = target.tokens.sources;
    source.tokens.key_lengths = target.tokens.source_lengths;
    source.tokens.targets = nullptr;
    source.causal = false;
    source.source = {};
    source.cached = {};
  }
  const Pass& PassOf(const TaskEntry& entry, int chunk, std::size_t block) const override {
    return block < LayersOf(chunk).encoders ? entry.source.pass : entry.target.pass;
  }
  std::int64_t AttentionElements(const Pass& pass, kernels::AttentionShape shape,
                                 bool dropout) const override {
    // Placeholder for key lengths: while memory is measured, nothing reads them.
    static constexpr std::int32_t kSomeLengths = 0;
    shape.key_lengths = &kSomeLengths;
    const std::int64_t whole = pass.ring->BufferElements(pass.stream, shape, pass.Type(), dropout);
    shape.causal = false;
    return std::max(whole, kernels::AttentionPartScratch(pass.stream, shape, pass.length,
                                                         pass.Type(), dropout));
  }

 private:
  Stack Encoder(int chunk) const {
    return {chunk, 0, LayersOf(chunk).encoders, &TaskEntry::source};
  }
  Stack Decoder(int chunk) const {
    const Network::Chunk& layers = LayersOf(chunk);
    return {chunk, layers.encoders, layers.blocks.size(), &TaskEntry::target};
  }
  // True if the chunk has only encoder blocks: the target stream passes through unchanged.
  static bool Passes(const Network::Chunk& layers) {
    return layers.encoders == layers.blocks.size() && !layers.last;
  }
  static void Copy(const Pass& pass, const Matrix& from, const Matrix& to) {
    if (!pass.Dry()) kernels::Copy(pass.stream, from, to);
  }
  // Sets both streams to their start: the embedding or the task's input. What this chunk does not
  // change (the target stream or the encoder's output) is copied on to the task's output.
  void EnterForward(TaskEntry& entry, int chunk, const Arenas& arenas) {
    const Network::Chunk& layers = LayersOf(chunk);
    const Stack encoder = Encoder(chunk), decoder = Decoder(chunk);
    ResidualStream &source = entry.source, &target = entry.target;
    if (layers.first) {
      source.residual = ResidualOf(entry, encoder, 0, arenas);
      target.residual =
          Passes(layers) ? target.out : ResidualOf(entry, decoder, decoder.begin, arenas);
      Embed(network_.SourceEmbedding(), source);
      Embed(network_.Embedding(), target);
      return;
    }
    source.residual = source.in;
    target.residual = target.in;
    if (layers.encoders == 0) {
      entry.live->memory = target.pass.source.memory = source.in;
      if (!layers.last) Copy(source.pass, source.in, source.out);
    } else if (Passes(layers)) {
      Copy(target.pass, target.in, target.out);
    }
  }
  // Makes the encoder's output available to this chunk's decoder blocks and to later chunks.
  void LeaveEncoder(TaskEntry& entry, int chunk, const Arenas& arenas) const {
    const Network::Chunk& layers = LayersOf(chunk);
    if (!layers.ends_encoder) return;
    ChunkActivations::Live& live = *entry.live;
    if (const NormLayer* const norm = network_.EncoderNorm()) {
      Pass pass = entry.source.pass;
      pass.lives.input = arenas.input;
      norm->Allocate(pass, live.encoder_norm);
      if (!pass.Dry()) {
        norm->Forward(pass, entry.source.residual, live.encoder_norm, live.memory);
      }
    }
    entry.target.pass.source.memory = live.memory;
    if (!layers.last && !Passes(layers)) Copy(entry.source.pass, live.memory, entry.source.out);
  }
  void EnterEvaluation(TaskEntry& entry, const Network::Chunk& layers) const {
    ResidualStream &source = entry.source, &target = entry.target;
    const bool encodes = source.pass.sequences > 0;
    AllocateBuffers(target);
    if (encodes) AllocateBuffers(source);
    source.residual = layers.first ? source.buffers[0] : source.in;
    target.residual = layers.first ? target.buffers[0] : target.in;
    if (!layers.first) return;
    if (encodes) Embed(network_.SourceEmbedding(), source);
    Embed(network_.Embedding(), target);
  }
  void LeaveEncoderEvaluation(TaskEntry& entry, const Network::Chunk& layers) const {
    const NormLayer* const norm = network_.EncoderNorm();
    if (norm == nullptr || !layers.ends_encoder) return;
    ResidualStream& source = entry.source;
    device::Arena* const scratch = source.pass.lives.scratch;
    const std::int64_t mark = scratch->Mark();
    const Matrix out = source.Other();
    NormLayer::Saved saved;
    norm->Allocate(source.pass, saved);
    if (!source.pass.Dry()) norm->Forward(source.pass, source.residual, saved, out);
    scratch->Release(mark);
    source.residual = out;
  }
  // Sets up the gradients of the target stream and of the encoder's output. If the chunk has only
  // encoder blocks, the gradient of the encoder's output is that of the source stream, and the
  // target stream's is passed on to the previous stage.
  void EnterBackward(TaskEntry& entry, int chunk, const Arenas& arenas) const {
    const Network::Chunk& layers = LayersOf(chunk);
    ResidualStream &source = entry.source, &target = entry.target;
    BeginTargetBackward(target, chunk, arenas);
    BeginBackward(source, arenas);
    SourceStream& read = target.pass.source;
    read.memory = entry.live->memory;
    if (Passes(layers)) {
      read.dmemory = source.in;
      if (!layers.first) Copy(target.pass, target.in, target.out);
      return;
    }
    const bool leaves = layers.encoders == 0 && !layers.first;
    read.dmemory = leaves ? source.out : Allocate(source.pass, source.pass.lives.scratch);
    if (!layers.last) return Copy(source.pass, source.in, read.dmemory);
    if (!source.pass.Dry()) kernels::Clear(source.pass.stream, read.dmemory);
  }
  // Sets source.residual to the gradient of the output of the chunk's last encoder block.
  void EnterEncoderBackward(TaskEntry& entry, const Network::Chunk& layers) const {
    ResidualStream& source = entry.source;
    const Matrix& dmemory = entry.target.pass.source.dmemory;
    const NormLayer* const norm = network_.EncoderNorm();
    source.residual = dmemory;
    if (norm == nullptr || !layers.ends_encoder) return;
    source.residual = source.buffers[0];
    if (source.pass.Dry()) return;
    norm->Backward(source.pass, entry.live->encoder_norm, {.dy = dmemory, .dx = source.residual});
  }
};

}  // namespace

std::unique_ptr<StageTasks> StageTasks::Make(Network& network) {
  std::unique_ptr<StageTasks> tasks;
  if (network.Plan().options.Translates()) {
    tasks = std::make_unique<EncoderDecoderTasks>(network);
  } else {
    tasks = std::make_unique<DecoderTasks>(network);
  }
  tasks->PlanMemory();
  return tasks;
}

}  // namespace trireme::model
