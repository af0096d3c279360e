// Model: its memory, its batches, the entries of a task, and the tasks: forward, backward, and the
// ends of the stack of blocks.
#include "trireme/model/model.hpp"

#include <algorithm>

#include "initialisers.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::model {

// The scratch that all layers share, sized for the largest micro-batch.

// pass: of the largest entry. head: null unless this rank computes the loss.
Workspace AllocateWorkspace(const Pass& pass, const ModelPlan& plan, const HeadLayer* head,
                            device::Arena& arena);

using parallel::TaskKind;

Model::Model(const ModelPlan& plan, const StagePlan& local, StageLayers& layers,
             const Collaborators& with)
    : plan_(plan),
      local_(local),
      layers_(layers),
      with_(with),
      positions_(plan, local, with.stream),
      cache_(plan, local, layers, with.stream),
      thin_weights_(plan, local, layers, with.stream),
      memory_(plan, local, layers),
      leaf_gradients_(layers.Parameters(), with.stream, plan.canonical.On()),
      staged_(with.stream, {local.entries, plan.micro_batch, local.Length(),
                            plan.document_mask || plan.cache_slots > 0, plan.options.Translates(),
                            local.tokens}),
      losses_(with.stream, local.Last() ? local.entries * local.tokens : 0) {
  PlanMemory();
  memory_.Allocate(with_.stream.Where(),
                   [this](device::Arena& arena) { return MakeWorkspace(arena); });
}

Workspace Model::MakeWorkspace(device::Arena& arena) {
  return AllocateWorkspace(MakePass(true), plan_, local_.Last() ? &layers_.Head() : nullptr, arena);
}

void Model::PlanMemory() {
  const auto workspace = [this](device::Arena& arena) { return MakeWorkspace(arena); };
  const auto train = [this](int chunk, device::Arena& scratch) {
    ChunkActivations& memory = memory_.Chunk(chunk);
    const Arenas arenas = memory.BeginMeasuring();
    TaskEntries entries = DryEntries(chunk, true, scratch);
    Forward(entries, chunk, arenas);
    Backward(entries, chunk, arenas, false);
    memory.EndMeasuring();
  };
  const auto evaluate = [this](int chunk, device::Arena& scratch) {
    TaskEntries entries = DryEntries(chunk, false, scratch);
    Evaluate(entries, chunk);
  };
  memory_.Measure(workspace, train, evaluate);
  planning_ = false;
}

ModelMemory Model::Memory() const {
  const kernels::Registry& registry = layers_.Parameters();
  ModelMemory memory;
  memory.parameters = registry.ValueBytes();
  memory.gradients = registry.GradientBytes();
  memory.activations = memory_.Bytes() - memory_.TileBytes() + positions_.Bytes();
  memory.vocabulary_tile = memory_.TileBytes();
  memory.key_value_cache = cache_.Bytes();
  memory.packed_weights = thin_weights_.Bytes();
  memory.exchange = staged_.Bytes();
  return memory;
}

void Model::Open(StagedBatches::Taken taken, double* losses) {
  batches_ = staged_.Open(std::move(taken));
  std::int64_t tokens = 0;
  for (const data::Entry& batch : batches_) tokens += batch.sequences * batch.length;
  // Logits alone have no loss.
  losses_.Expect(logits_position_ < 0 && cached_.empty() ? tokens : 0, losses);
}

void Model::Begin(StagedBatches::Taken taken, GradientsReady ready, double* losses) {
  ready_ = std::move(ready);
  logits_position_ = -1;
  cached_ = {};
  Open(std::move(taken), losses);
}

void Model::BeginLogits(StagedBatches::Taken taken, std::int64_t position) {
  ready_ = {};
  logits_position_ = position;
  cached_ = {};
  Open(std::move(taken), nullptr);
}

void Model::BeginCached(StagedBatches::Taken taken, std::span<const CachedPlaces> cached) {
  ready_ = {};
  logits_position_ = -1;
  cached_ = cached;
  Open(std::move(taken), nullptr);
  cache_.Place(cached);
}

CachedPass Model::CachedPassOf(std::size_t entry) const {
  if (cached_.empty()) return {};
  const CachedPlaces& places = cached_[entry];
  std::int64_t first = 0;
  for (const CachedPlaces& before : cached_.first(entry)) first += std::ssize(before.asked);
  const data::Entry& batch = batches_[entry];
  return {.cache = &cache_,
          .rows = cache_.RowsOf(entry),
          .source_rows = cache_.SourceRowsOf(entry),
          .asked = places.asked,
          .first = first,
          .continues = batch.length == 1 && batch.source_length == 0,
          .weights = &thin_weights_};
}

void Model::Replayed(StagedBatches::Taken taken) { Open(std::move(taken), nullptr); }

std::int64_t Model::Rows(int micro_batch) const {
  std::int64_t rows = 0;
  for (const data::Entry& batch : EntriesOf(micro_batch)) {
    rows += with_.tensor.Rows(batch.sequences * batch.length).Size() +
            with_.tensor.Rows(batch.sequences * batch.source_length).Size();
  }
  return rows;
}

std::size_t Model::FirstEntry(int micro_batch) const {
  return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(plan_.leaves);
}

std::span<const data::Entry> Model::EntriesOf(int micro_batch) const {
  return batches_.subspan(FirstEntry(micro_batch), static_cast<std::size_t>(plan_.leaves));
}

Pass Model::MakePass(bool training) {
  Pass pass;
  pass.stream = with_.stream;
  pass.registry = &layers_.Parameters();
  pass.tensor = &with_.tensor;
  pass.ring = &with_.ring;
  pass.progress = &with_.progress;
  pass.rope = positions_.Rotary();
  pass.workspace = memory_.Shared();
  pass.sequences = plan_.micro_batch;
  pass.length = local_.Length();
  if (plan_.tokens > 0) pass.sequences = CeilDivide(local_.tokens, local_.Length());
  if (plan_.options.Translates()) pass.source.length = local_.Length();
  pass.positions = local_.positions;
  pass.seed = plan_.seed;
  pass.training = training;
  pass.causal = plan_.causal;
  device::Arena* scratch = memory_.Scratch(training);
  pass.lives = {scratch, scratch, scratch, scratch, scratch};
  return pass;
}

Pass Model::MakePass(std::size_t entry, bool training) {
  const data::Entry& batch = batches_[entry];
  Pass pass = MakePass(training);
  pass.batch = &batch;
  pass.tokens = staged_.At(entry);
  // A GPU's zeros for one that continues no text, which needs the kernels of plain windows.
  if (batch.begins.empty() && !plan_.document_mask) pass.tokens.begins = nullptr;
  pass.sequences = batch.sequences;
  pass.length = batch.length;
  pass.positions = batch.positions;
  pass.source.length = batch.source_length;
  pass.source.key_lengths = pass.tokens.source_lengths;
  pass.cached = CachedPassOf(entry);
  return pass;
}

Model::TaskEntries& Model::TaskEntriesOf(const parallel::ProgramTask& task, const Matrix& in,
                                         const Matrix& out) {
  const bool training = task.task.kind != TaskKind::kEvaluate;
  const std::size_t first = FirstEntry(task.task.micro_batch);
  std::int64_t token = 0, row = 0;
  for (const data::Entry& before : batches_.first(first)) {
    token += before.sequences * before.length;
  }
  task_entries_.clear();
  for (int i = 0; i < plan_.leaves; ++i) {
    const std::size_t number = first + static_cast<std::size_t>(i);
    if (batches_[number].sequences == 0) continue;  // padding
    TaskEntry& entry = task_entries_.emplace_back();
    entry.pass = MakePass(number, training);
    entry.pass.losses = losses_.At(token);
    token += entry.pass.Tokens();
    if (training) entry.live = &memory_.Chunk(task.task.chunk).LiveAt(task.slots.weight, i);
    // Texts that go on have been read by the encoder before.
    if (plan_.options.Translates() && !entry.pass.cached.continues) {
      entry.source = MakeSourcePass(entry.pass);
    }
    const std::int64_t rows = entry.SourceRows() + entry.pass.Rows().Size();
    entry.in = in.Rows(row, rows);
    entry.out = out.Rows(row, rows);
    row += rows;
  }
  return task_entries_;
}

Model::TaskEntries Model::DryEntries(int chunk, bool training, device::Arena& scratch) {
  TaskEntries entries;
  for (int i = 0; i < plan_.leaves; ++i) {
    TaskEntry& entry = entries.emplace_back();
    entry.pass = MakePass(training);
    entry.pass.lives = {&scratch, &scratch, &scratch, &scratch, &scratch};
    if (plan_.options.Translates()) entry.source = MakeSourcePass(entry.pass);
    if (training) entry.live = &memory_.Chunk(chunk).LiveAt(0, i);
  }
  return entries;
}

void Model::Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) {
  const TaskKind kind = task.task.kind;
  const int chunk = task.task.chunk;
  TaskEntries& entries = TaskEntriesOf(task, in, out);
  if (kind == TaskKind::kEvaluate) return Evaluate(entries, chunk);
  if (!plan_.training) throw RunError("a model for evaluation was asked for gradients");
  const Arenas arenas = memory_.Chunk(chunk).At(task.slots, kind == TaskKind::kBackwardInput);
  switch (kind) {
    case TaskKind::kForward:
      arenas.input->Release(0);
      arenas.weight->Release(0);
      return Forward(entries, chunk, arenas);
    case TaskKind::kBackward:
      return Backward(entries, chunk, arenas, task.final);
    case TaskKind::kBackwardInput:
      arenas.backward->Release(0);  // of no size if memory rotates
      return Backward(entries, chunk, arenas, false);
    default:
      return BackwardWeight(entries, chunk, task.final);
  }
}

std::vector<double> Model::LogitsSlice() const {
  std::vector<double> logits;
  if (logits_.Empty()) return logits;
  Matrix copied = logits_;
  std::vector<std::byte> copy;
  if (with_.stream.OnGpu()) {
    copy.resize(static_cast<std::size_t>(logits_.Size()) * SizeOf(logits_.dtype));
    device::CopyOut(with_.stream, logits_.data, copy.data(), std::ssize(copy));
    copied.data = copy.data();
  }
  Widen(copied, logits);
  return logits;
}

const std::vector<double>& Model::CachedLogits() {
  std::int64_t rows = 0;
  for (const CachedPlaces& places : cached_) rows += std::ssize(places.asked);
  Widen(cache_.LogitsOnHost(rows), cached_logits_);
  return cached_logits_;
}

// to = m, which lies on the host, without what is between its rows.
void Model::Widen(const Matrix& m, std::vector<double>& to) const {
  to.resize(static_cast<std::size_t>(m.rows * m.columns));
  const bool dense = m.stride == m.columns || m.rows == 1;
  const std::int64_t rows = dense ? 1 : m.rows, columns = dense ? m.Size() : m.columns;
  const int threads = with_.stream.threads;
  for (std::int64_t row = 0; row < rows; ++row) {
    double* const all = to.data() + row * columns;
    if (m.dtype == Dtype::kBfloat16) {
      const auto* const values = static_cast<const std::uint16_t*>(m.data) + row * m.stride;
#pragma omp parallel for simd num_threads(threads)
      for (std::int64_t i = 0; i < columns; ++i) {
        all[i] = static_cast<double>(FromBfloat16(values[i]));
      }
      continue;
    }
    DispatchDtype(m.dtype, [&](auto zero) {
      const auto* const values = static_cast<const decltype(zero)*>(m.data) + row * m.stride;
#pragma omp parallel for simd num_threads(threads)
      for (std::int64_t i = 0; i < columns; ++i) all[i] = static_cast<double>(values[i]);
    });
  }
}

// Whether the sharding has to know of a use of this unit.
bool Model::Tells(int unit) const { return !planning_ && layers_.Has(unit); }

void Model::Use(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) with_.units.Use(unit);
  }
}

void Model::Done(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) with_.units.Done(unit);
  }
}

void Model::BeginGradient(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) with_.units.BeginGradient(unit);
  }
}

void Model::EndGradient(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) with_.units.EndGradient(unit);
  }
}

void Model::EnterLeaf(int unit, LeafGradients::Phase phase, const Pass& pass) {
  if (pass.Dry() || !layers_.Has(unit)) return;
  leaf_gradients_.Enter(unit, phase, pass.batch->group);
}

void Model::Report(int unit) const {
  if (!ready_) return;
  ready_(layers_.Parameters().Units()[static_cast<std::size_t>(unit)].range.begin);
}

// Model: the forward pass of a training step, and evaluation.

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

// Model: the backward pass of a training step, in one task or in two.

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

// Model: the two ends of the stack of blocks: the embedding, the final norm and the head.

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
        Trace(),
        {.name = device::SliceName::kHead, .phase = device::Phase::kBackward, .queues = true});
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

// Sizes of the workspace's matrices.

namespace {

// Elements of the attention's scratch. training: there are backward passes.
std::int64_t AttentionElements(const Pass& pass, const Options& options, bool training,
                               const kernels::AttentionShape& whole) {
  kernels::AttentionShape shape = whole;
  if (pass.stream.OnGpu()) {
    // A library's scratch memory is that of the very shape. On the CPU a slice of the heads needs
    // no more than all of them.
    shape.heads = std::max<std::int64_t>(1, options.heads / pass.tensor->Size());
    shape.kv_heads = std::max<std::int64_t>(1, options.kv_heads / pass.tensor->Size());
  }
  // Without a backward pass it is planned as with dropout: a library has no backward pass then.
  const bool dropout =
      !training || kernels::Dropout{.probability = options.attention_dropout}.Active();
  const std::int64_t whole_elements =
      pass.ring->BufferElements(pass.stream, shape, pass.Type(), dropout);
  if (!options.Translates()) return whole_elements;
  shape.causal = false;
  return std::max(
      whole_elements,
      kernels::AttentionPartScratch(pass.stream, shape, pass.source.length, pass.Type(), dropout));
}

// Stand for begins of documents and lengths of keys, which nothing reads while memory is measured.
constexpr std::int32_t kSomeBegins = 0, kSomeLengths = 0;

}  // namespace

Workspace AllocateWorkspace(const Pass& pass, const ModelPlan& plan, const HeadLayer* head,
                            device::Arena& arena) {
  const Options& o = plan.options;
  const parallel::TensorGroup& tensor = *pass.tensor;
  const kernels::AttentionShape shape{.sequences = pass.sequences,
                                      .length = pass.length,
                                      .heads = o.heads,
                                      .kv_heads = o.kv_heads,
                                      .head_dim = o.head_dim,
                                      .first_head = 0,
                                      .causal = true,
                                      .positions = pass.positions,
                                      .begins = plan.document_mask ? &kSomeBegins : nullptr,
                                      .key_lengths = o.Translates() ? &kSomeLengths : nullptr};
  Workspace workspace;
  workspace.attention =
      pass.AllocateSums(&arena, 1, AttentionElements(pass, o, plan.training, shape));
  const std::int64_t widest = std::max({2 * o.dim, 2 * o.ffn, shape.Width()});
  workspace.reduction = pass.AllocateSums(&arena, kernels::kReductionBlocks, widest);
  if (const int levels = SliceLevels(tensor.Slices()); levels > 0) {
    workspace.slices = pass.Allocate(&arena, levels * pass.Tokens(), o.dim);
  }
  if (tensor.Canonical()) {
    workspace.norm_parts = pass.Allocate(&arena, tensor.AllSlices(), 2 * o.dim);
  }
  if (head == nullptr) return workspace;
  workspace.tile = head->AllocateTile(pass, arena, plan.training);
  const std::int64_t rows = head->TileTokens(pass);
  workspace.losses = kernels::Allocate(arena, Dtype::kFloat64, 1, rows);
  workspace.statistics = kernels::Allocate(arena, Dtype::kFloat64, tensor.AllSlices(),
                                           kernels::kSoftmaxStatistics * rows);
  return workspace;
}

}  // namespace trireme::model
