// StageTasks: memory, batches, entries of a task, blocks, embedding and head. ChunkActivations.
#include "trireme/model/stage_tasks.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::model {

using parallel::TaskKind;
using Phase = parallel::LeafGradients::Phase;

namespace {

// Tells the libraries of products whether a training step or an evaluation follows.
void SetTraining(const device::Stream& stream, bool training) {
  if (kernels::Libraries* const libraries = kernels::LibrariesOf(stream)) {
    libraries->SetTraining(training);
  }
}

// Placeholder for begins of documents: while memory is measured, nothing reads them.
constexpr std::int32_t kSomeBegins = 0;

}  // namespace

StageTasks::StageTasks(Network& network, bool pairs)
    : network_(network),
      plan_(network.Plan()),
      local_(network.LocalPlan()),
      pipeline_(network.Grid().Over(comm::Group::kPipeline), local_.pipeline, plan_.dtype,
                local_.residual_rows * plan_.leaves, plan_.options.dim, network.Stream()),
      progress_([this] {
        pipeline_.Progress();
        network_.Units().Progress();
      }),
      done_(network.Stream()),
      positions_(plan_, local_, network.Stream()),
      leaf_gradients_(network.Parameters(), network.Stream(), plan_.canonical.On()),
      staged_(network.Stream(),
              {local_.entries, plan_.micro_batch, local_.Length(),
               plan_.document_mask || plan_.cache_slots > 0, pairs, local_.tokens}),
      losses_(network.Stream(), local_.Last() ? local_.entries * local_.tokens : 0) {}

// Memory: dry passes measure the sizes; one allocation is then cut up.

// Measures what the largest micro-batch allocates, in arenas that hand out no memory.
void StageTasks::PlanMemory() {
  device::Arena shared = device::Arena::Measuring(), training = device::Arena::Measuring(),
                evaluation = device::Arena::Measuring();
  const Matrix tile = MakeWorkspace(shared).tile;
  tile_bytes_ = tile.rows * tile.stride * static_cast<std::int64_t>(SizeOf(tile.dtype));
  std::int64_t slots = 0;
  for (std::size_t i = 0; i < local_.chunks.size(); ++i) {
    const int chunk = static_cast<int>(i);
    memory_.emplace_back(LayersOf(chunk).blocks, local_.slots[i], plan_.leaves,
                         plan_.options.recompute != Recompute::kNone);
    TaskEntries evaluated = DryEntries(chunk, false, evaluation);
    Evaluate(evaluated, chunk);
    evaluation.Release(0);
    if (!plan_.training) continue;
    const Arenas arenas = memory_[i].BeginMeasuring();
    TaskEntries trained = DryEntries(chunk, true, training);
    Forward(trained, chunk, arenas);
    Backward(trained, chunk, arenas, false);
    training.Release(0);
    memory_[i].EndMeasuring();
    slots += memory_[i].Bytes();
  }
  planning_ = false;
  bytes_ = shared.Peak() + std::max(training.Peak() + slots, evaluation.Peak());
  AllocateMemory(shared.Peak(), training.Peak());
}

// workspace, scratch: bytes of the workspace and of the scratch for training.
void StageTasks::AllocateMemory(std::int64_t workspace, std::int64_t scratch) {
  storage_ = device::AllocateZeroed(bytes_, network_.Stream().Where());
  char* begin = static_cast<char*>(storage_.get());
  device::Arena shared(begin, workspace);
  workspace_ = MakeWorkspace(shared);
  begin += workspace;
  evaluation_scratch_.emplace(begin, bytes_ - workspace);
  if (!plan_.training) return;
  training_scratch_.emplace(begin, scratch);
  begin += scratch;
  for (ChunkActivations& chunk : memory_) begin = chunk.Cut(begin);
}

// The arena for scratch; null before memory is allocated.
device::Arena* StageTasks::Scratch(bool training) {
  std::optional<device::Arena>& scratch = training ? training_scratch_ : evaluation_scratch_;
  return scratch ? &*scratch : nullptr;
}

// Elements of the largest matrix of the blocks, or of adjacent ones, on this rank.
static std::int64_t LargestMatrices(const kernels::Registry& registry) {
  std::int64_t most = 0, size = 0;
  for (const kernels::Parameter& parameter : registry.Parameters()) {
    if (parameter.number < 0) continue;
    size = (parameter.adjacent ? size : 0) + parameter.LocalSize();
    most = std::max(most, size);
  }
  return most;
}

// Allocates the scratch that all layers share, for the largest micro-batch.
Workspace StageTasks::MakeWorkspace(device::Arena& arena) {
  const Pass pass = MakePass(true);
  const Options& o = plan_.options;
  const parallel::TensorGroup& tensor = *pass.tensor;
  kernels::AttentionShape shape{.sequences = pass.sequences,
                                .length = pass.length,
                                .heads = o.heads,
                                .kv_heads = o.kv_heads,
                                .head_dim = o.head_dim,
                                .first_head = 0,
                                .causal = true,
                                .positions = pass.positions,
                                .begins = plan_.document_mask ? &kSomeBegins : nullptr,
                                .divisor = o.ScoreDivisor()};
  const std::int64_t widest = std::max({2 * o.dim, 2 * o.ffn, shape.Width()});
  if (pass.stream.OnGpu()) {
    // A library's scratch depends on the exact shape, so ask for this rank's heads. On the CPU, all
    // heads need at least as much as a slice.
    shape.heads = std::max<std::int64_t>(1, o.heads / tensor.Size());
    shape.kv_heads = std::max<std::int64_t>(1, o.kv_heads / tensor.Size());
  }
  // Without training, plans as if there were dropout, so that no library's backward pass counts.
  const bool dropout =
      !plan_.training || kernels::Dropout{.probability = o.attention_dropout}.Active();
  Workspace workspace;
  workspace.attention = pass.AllocateSums(&arena, 1, AttentionElements(pass, shape, dropout));
  workspace.reduction = pass.AllocateSums(&arena, kernels::kReductionBlocks, widest);
  if (const int levels = SliceLevels(tensor.Slices()); levels > 0) {
    workspace.slices = pass.Allocate(&arena, levels * pass.Tokens(), o.dim);
  }
  if (tensor.Canonical()) {
    workspace.norm_parts = pass.Allocate(&arena, tensor.AllSlices(), 2 * o.dim);
  }
  if (plan_.training && o.weight_dropout > 0) {
    workspace.dropped_weight = pass.Allocate(&arena, 1, LargestMatrices(*pass.registry));
  }
  if (!local_.Last()) return workspace;
  workspace.tile = network_.Head().AllocateTile(pass, arena, plan_.training);
  if (plan_.training) network_.Head().AllocateSample(pass, arena, workspace);
  const std::int64_t rows = network_.Head().TileTokens(pass);
  workspace.losses = kernels::Allocate(arena, Dtype::kFloat64, 1, rows);
  workspace.statistics = kernels::Allocate(arena, Dtype::kFloat64, tensor.AllSlices(),
                                           kernels::kSoftmaxStatistics * rows);
  return workspace;
}

void StageTasks::AddMemory(device::MemoryTerms& memory) const {
  memory.activations += bytes_ - tile_bytes_ + positions_.Bytes();
  memory.vocabulary_tile += tile_bytes_;
  memory.exchange_buffers += staged_.Bytes() + pipeline_.Bytes();
}

// Steps and evaluations.

void StageTasks::Begin(StagedBatches::Taken taken, GradientsReady ready, double* losses,
                       Reader* reader) {
  ready_ = std::move(ready);
  reader_ = reader;
  batches_ = staged_.Open(std::move(taken));
  std::int64_t tokens = 0;
  for (const data::Entry& batch : batches_) tokens += batch.sequences * batch.length;
  losses_.Expect(reader_ == nullptr ? tokens : 0, losses);
}

int StageTasks::MicroBatches(std::span<const data::Entry> batches) const {
  return static_cast<int>(std::ssize(batches)) / plan_.leaves;
}

// Tells the sharding in which order the program uses its units, then runs the program.
void StageTasks::RunProgram(const parallel::Program& program) {
  if (network_.Units().ValuesSharded()) network_.Units().BeginTasks(network_.UsesOf(program));
  pipeline_.Run(program, *this);
}

void StageTasks::StartTrain(StagedBatches::Taken taken, const GradientsReady& ready) {
  if (taken.Batches().empty()) return;  // the same on all ranks of the replica
  const int count = MicroBatches(taken.Batches());
  SetTraining(network_.Stream(), true);
  Begin(std::move(taken), ready, nullptr);
  RunProgram(pipeline_.TrainingProgram(count));
  leaf_gradients_.Finish();
}

void StageTasks::RunEvaluation(std::span<const data::Entry> batches) {
  const int count = MicroBatches(batches);
  SetTraining(network_.Stream(), false);
  pipeline_.ReceiveLate(network_.Stream().OnGpu());
  RunProgram(pipeline_.EvaluationProgram(count));
}

void StageTasks::QueueLoss(std::span<const data::Entry> batches, double* losses) {
  Begin(staged_.Take(batches), {}, losses);
  RunEvaluation(batches);
}

void StageTasks::QueueRead(std::span<const data::Entry> batches, Reader& reader) {
  Begin(staged_.Take(batches), {}, nullptr, &reader);
  RunEvaluation(batches);
}

ExactSum StageTasks::Loss(std::span<const data::Entry> batches, double* losses) {
  if (batches.empty()) return {};
  QueueLoss(batches, losses);
  return FinishLoss();
}

void StageTasks::AwaitQueue() {
  if (!network_.Stream().OnGpu()) return;
  done_.Record(network_.Stream().gpu->queue);
  network_.Grid().Await(done_);
}

ExactSum StageTasks::FinishLoss() {
  AwaitQueue();
  const bool tells = network_.Grid().LastStage() && network_.Tensor().Rank() == 0;
  return tells ? losses_.Sum() : ExactSum();
}

std::int64_t StageTasks::Rows(int micro_batch) const {
  const parallel::TensorGroup& tensor = network_.Tensor();
  std::int64_t rows = 0;
  for (const data::Entry& batch : EntriesOf(micro_batch)) {
    rows += tensor.Rows(batch.sequences * batch.length).Size() +
            tensor.Rows(batch.sequences * batch.source_length).Size();
  }
  return rows;
}

std::size_t StageTasks::FirstEntry(int micro_batch) const {
  return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(plan_.leaves);
}

std::span<const data::Entry> StageTasks::EntriesOf(int micro_batch) const {
  return batches_.subspan(FirstEntry(micro_batch), static_cast<std::size_t>(plan_.leaves));
}

Pass StageTasks::MakePass(bool training) {
  Pass pass;
  pass.stream = network_.Stream();
  pass.registry = &network_.Parameters();
  pass.tensor = &network_.Tensor();
  pass.ring = &network_.Context();
  pass.progress = &progress_;
  pass.rope = positions_.Rotary();
  pass.workspace = workspace_;
  pass.sequences = plan_.micro_batch;
  pass.length = local_.Length();
  if (plan_.tokens > 0) pass.sequences = CeilDivide(local_.tokens, local_.Length());
  pass.positions = local_.positions;
  pass.seed = plan_.seed;
  pass.weight_dropout = plan_.options.weight_dropout;
  pass.training = training;
  pass.causal = plan_.causal;
  device::Arena* scratch = Scratch(training);
  pass.lives = {scratch, scratch, scratch, scratch, scratch};
  return pass;
}

Pass StageTasks::MakePass(std::size_t entry, bool training) {
  const data::Entry& batch = batches_[entry];
  Pass pass = MakePass(training);
  pass.batch = &batch;
  pass.tokens = staged_.At(entry);
  // On a GPU `begins` is always there (zeros if unused), but plain windows use kernels without it.
  if (batch.begins.empty() && !plan_.document_mask) pass.tokens.begins = nullptr;
  pass.sequences = batch.sequences;
  pass.length = batch.length;
  pass.positions = batch.positions;
  pass.source.length = batch.source_length;
  pass.source.key_lengths = pass.tokens.source_lengths;
  if (reader_ == nullptr) return pass;
  pass.cached = reader_->CachedPassOf(entry);
  pass.cached.continues =
      pass.cached.cache != nullptr && batch.length == 1 && batch.source_length == 0;
  return pass;
}

StageTasks::TaskEntries& StageTasks::TaskEntriesOf(const parallel::ProgramTask& task,
                                                   const Matrix& in, const Matrix& out) {
  const bool training = task.task.kind != TaskKind::kEvaluate;
  const std::size_t first = FirstEntry(task.task.micro_batch);
  std::int64_t token = 0, row = 0;
  for (const data::Entry& before : batches_.first(first)) token += before.sequences * before.length;
  task_entries_.clear();
  for (int i = 0; i < plan_.leaves; ++i) {
    const std::size_t number = first + static_cast<std::size_t>(i);
    if (batches_[number].sequences == 0) continue;  // an empty entry, for padding
    TaskEntry& entry = task_entries_.emplace_back();
    ResidualStream &source = entry.source, &target = entry.target;
    target.pass = MakePass(number, training);
    target.pass.losses = losses_.At(token);
    token += target.pass.Tokens();
    if (training) entry.live = &MemoryOf(task.task.chunk).LiveAt(task.slots.weight, i);
    MakeSource(entry);
    for (ResidualStream* const stream : {&source, &target}) {
      stream->in = in.Rows(row, stream->Rows());
      stream->out = out.Rows(row, stream->Rows());
      row += stream->Rows();
    }
  }
  return task_entries_;
}

StageTasks::TaskEntries StageTasks::DryEntries(int chunk, bool training, device::Arena& scratch) {
  TaskEntries entries;
  for (int i = 0; i < plan_.leaves; ++i) {
    TaskEntry& entry = entries.emplace_back();
    entry.target.pass = MakePass(training);
    entry.target.pass.lives = {&scratch, &scratch, &scratch, &scratch, &scratch};
    MakeSource(entry);
    if (training) entry.live = &MemoryOf(chunk).LiveAt(0, i);
  }
  return entries;
}

void StageTasks::Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) {
  const TaskKind kind = task.task.kind;
  const int chunk = task.task.chunk;
  const bool training = kind != TaskKind::kEvaluate;
  if (training && !plan_.training) throw RunError("a model for evaluation was asked for gradients");
  TaskEntries& entries = TaskEntriesOf(task, in, out);
  device::Arena& scratch = *Scratch(training);
  const std::int64_t mark = scratch.Mark();
  const auto arenas = [&] {
    return MemoryOf(chunk).At(task.slots, kind == TaskKind::kBackwardInput);
  };
  switch (kind) {
    case TaskKind::kEvaluate:
      Evaluate(entries, chunk);
      break;
    case TaskKind::kForward:
      MemoryOf(chunk).Clear(task.slots);
      Forward(entries, chunk, arenas());
      break;
    case TaskKind::kBackward:
      Backward(entries, chunk, arenas(), task.final);
      break;
    case TaskKind::kBackwardInput:
      arenas().backward->Release(0);  // empty if memory rotates
      Backward(entries, chunk, arenas(), false);
      break;
    case TaskKind::kBackwardWeight:
      BackwardWeight(entries, chunk, task.final);
  }
  scratch.Release(mark);
}

bool StageTasks::Tells(int unit) const { return !planning_ && network_.Has(unit); }

void StageTasks::Use(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) network_.Units().Use(unit);
  }
}

void StageTasks::Done(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) network_.Units().Done(unit);
  }
}

void StageTasks::BeginGradient(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) network_.Units().BeginGradient(unit);
  }
}

void StageTasks::EndGradient(std::span<const int> units) const {
  for (const int unit : units) {
    if (Tells(unit)) network_.Units().EndGradient(unit);
  }
}

void StageTasks::EnterLeaf(int unit, Phase phase, const Pass& pass) {
  if (pass.Dry() || !network_.Has(unit)) return;
  leaf_gradients_.Enter(unit, phase, pass.batch->group);
}

void StageTasks::Report(int unit) const {
  if (!ready_) return;
  ready_(network_.Parameters().Units()[static_cast<std::size_t>(unit)].range.begin);
}

// The forward pass of a training step.

// The arenas for the matrices of a forward pass.
Lifetimes StageTasks::ForwardLives(const Arenas& arenas, device::Arena* scratch) const {
  switch (plan_.options.recompute) {
    case Recompute::kNone:
      return {arenas.weight, arenas.input, arenas.weight, nullptr, scratch};
    case Recompute::kSelective:
      return {arenas.weight, arenas.input, scratch, nullptr, scratch};
    default:
      return {scratch, scratch, scratch, nullptr, scratch};
  }
}

Matrix StageTasks::Allocate(const Pass& pass, device::Arena* arena) const {
  return pass.Allocate(arena, pass.Rows().Size(), plan_.options.dim);
}

void StageTasks::AllocateBuffers(ResidualStream& stream) const {
  for (Matrix& buffer : stream.buffers) buffer = Allocate(stream.pass, stream.pass.lives.scratch);
}

// Allocates the residual stream before `block`. It is a norm's input (needed until the input
// gradient) or, post-norm, also a product's (until the weight gradient). After the last block it is
// the head's input, which no block's backward pass needs.
Matrix StageTasks::ResidualOf(const TaskEntry& entry, const Stack& stack, std::size_t block,
                              const Arenas& arenas) {
  const bool pre = plan_.options.norm_position == NormPosition::kPre;
  ChunkActivations& memory = MemoryOf(stack.chunk);
  device::Arena* arena = pre ? arenas.input : arenas.weight;
  if (pre && memory.Rotates() && block < LayersOf(stack.chunk).blocks.size()) {
    arena = &memory.Frame(*entry.live, block);
  }
  return Allocate((entry.*stack.stream).pass, arena);
}

void StageTasks::ForwardBlocks(TaskEntries& entries, const Stack& stack, const Arenas& arenas,
                               FunctionRef<Matrix(TaskEntry& entry)> last, ForEntry then) {
  const Network::Chunk& layers = LayersOf(stack.chunk);
  for (std::size_t i = stack.begin; i < stack.end; ++i) {
    const bool ends = i + 1 == stack.end;
    Use({&layers.units[i], 1});
    for (TaskEntry& entry : entries) {
      const Matrix out = ends ? last(entry) : ResidualOf(entry, stack, i + 1, arenas);
      ForwardBlock(entry, stack, i, arenas, out);
      (entry.*stack.stream).residual = out;
      if (ends) then(entry);
    }
    Done({&layers.units[i], 1});
  }
}

void StageTasks::ForwardTarget(TaskEntries& entries, const Stack& stack, const Arenas& arenas) {
  const auto last = [&](TaskEntry& entry) {
    return LayersOf(stack.chunk).last ? ResidualOf(entry, stack, stack.end, arenas)
                                      : entry.target.out;
  };
  ForwardBlocks(entries, stack, arenas, last, [](TaskEntry&) {});
  for (TaskEntry& entry : entries) entry.live->head_input = entry.target.residual;
}

void StageTasks::ForwardBlock(TaskEntry& entry, const Stack& stack, std::size_t block,
                              const Arenas& arenas, const Matrix& out) {
  const Block& layer = LayersOf(stack.chunk).blocks[block];
  ChunkActivations& memory = MemoryOf(stack.chunk);
  const ResidualStream& stream = entry.*stack.stream;
  Block::Saved& saved = entry.live->blocks[block];
  Pass pass = stream.pass;
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  Arenas kept = arenas;
  if (memory.Rotates()) kept.input = &memory.Frame(*entry.live, block);
  pass.lives = ForwardLives(kept, scratch);
  layer.Allocate(pass, saved);
  if (!pass.Dry()) {
    const device::Scope scope(Trace(), {.name = device::SliceName::kLayer,
                                        .phase = device::Phase::kForward,
                                        .layer = layer.Number(),
                                        .queues = true});
    layer.Forward(pass, stream.residual, saved, out);
    progress_();
  }
  scratch->Release(mark);
}

// Evaluation keeps the memory of one block, and two buffers per stream for the blocks' outputs.
void StageTasks::EvaluateBlocks(TaskEntries& entries, const Stack& stack, bool leaves,
                                ForEntry then) {
  const Network::Chunk& layers = LayersOf(stack.chunk);
  for (std::size_t i = stack.begin; i < stack.end; ++i) {
    const bool ends = i + 1 == stack.end;
    Use({&layers.units[i], 1});
    for (TaskEntry& entry : entries) {
      ResidualStream& stream = entry.*stack.stream;
      if (stream.pass.sequences == 0) continue;
      const Matrix out = ends && leaves ? stream.out : stream.Other();
      EvaluateBlock(stream, stack.chunk, i, out);
      stream.residual = out;
      if (ends) then(entry);
    }
    Done({&layers.units[i], 1});
  }
}

void StageTasks::EvaluateBlock(const ResidualStream& stream, int chunk, std::size_t block,
                               const Matrix& out) {
  const Block& layer = LayersOf(chunk).blocks[block];
  Block::Saved& saved = MemoryOf(chunk).Passing()[block];
  device::Arena* const scratch = stream.pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  layer.Allocate(stream.pass, saved);
  if (!stream.pass.Dry()) {
    layer.Forward(stream.pass, stream.residual, saved, out);
    progress_();
  }
  scratch->Release(mark);
}

void StageTasks::EvaluateTarget(TaskEntries& entries, const Stack& stack) {
  const Network::Chunk& layers = LayersOf(stack.chunk);
  EvaluateBlocks(entries, stack, !layers.last, [](TaskEntry&) {});
  if (!layers.last) return;
  Use(layers.last_units);
  for (const TaskEntry& entry : entries) EvaluateHead(entry.target.pass, entry.target.residual);
  Done(layers.last_units);
}

// The backward pass of a training step, in one task or in two.

void StageTasks::RecomputeBlock(const Pass& pass, const Block& block, Block::Saved& saved) const {
  const Recompute recompute = plan_.options.recompute;
  if (recompute == Recompute::kNone) return;
  const device::Scope scope(Trace(), {.name = device::SliceName::kRecompute,
                                      .phase = device::Phase::kRecompute,
                                      .layer = block.Number(),
                                      .queues = true});
  if (recompute == Recompute::kSelective) block.RecomputeCheap(pass, saved);
  if (recompute == Recompute::kFull) block.Recompute(pass, saved);
}

// The backward pass of one block and one entry; recomputes first what was not kept.
void StageTasks::BackwardBlock(Pass pass, const Block& block, Block::Saved& saved, const Matrix& dy,
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
    progress_();
  }
  scratch->Release(mark);
}

void StageTasks::BeginBackward(ResidualStream& stream, const Arenas& arenas) const {
  Pass& pass = stream.pass;
  device::Arena* scratch = pass.lives.scratch;
  pass.weights_too = arenas.backward == nullptr;
  pass.lives = {scratch, scratch, scratch, pass.weights_too ? scratch : arenas.backward, scratch};
  AllocateBuffers(stream);
}

void StageTasks::BeginTargetBackward(ResidualStream& target, int chunk,
                                     const Arenas& arenas) const {
  const Network::Chunk& layers = LayersOf(chunk);
  BeginBackward(target, arenas);
  target.residual = target.in;
  if (layers.last) target.residual = layers.blocks.empty() ? target.out : target.buffers[0];
}

void StageTasks::BackwardBlocks(TaskEntries& entries, const Stack& stack, bool weights_too,
                                bool report, ForEntry before) {
  const Network::Chunk& layers = LayersOf(stack.chunk);
  ChunkActivations& memory = MemoryOf(stack.chunk);
  const bool rotates = memory.Rotates() && !weights_too;
  for (std::size_t i = stack.end; i-- > stack.begin;) {
    const int unit = layers.units[i];
    Use({&unit, 1});
    if (weights_too) BeginGradient({&unit, 1});
    network_.Parameters().BindEarly(unit, !weights_too);
    for (TaskEntry& entry : entries) {
      ResidualStream& stream = entry.*stack.stream;
      EnterLeaf(unit, weights_too ? Phase::kWhole : Phase::kEarly, stream.pass);
      if (i + 1 == stack.end) before(entry);
      const Matrix dx = i == stack.begin && !layers.first ? stream.out : stream.Other();
      Pass pass = stream.pass;
      if (rotates) {
        pass.lives.backward = &memory.SpareFrame();
        pass.lives.backward->Release(0);
      }
      BackwardBlock(pass, layers.blocks[i], entry.live->blocks[i], stream.residual, dx);
      if (rotates) memory.SwapSpare(*entry.live, i);
      stream.residual = dx;
    }
    network_.Parameters().BindEarly(unit, false);
    Done({&unit, 1});
    if (weights_too) EndGradient({&unit, 1});
    if (report && weights_too) Report(unit);
  }
}

void StageTasks::BackwardWeight(TaskEntries& entries, int chunk, bool report) {
  const Network::Chunk& layers = LayersOf(chunk);
  for (std::size_t i = layers.blocks.size(); i-- > 0;) {
    const int unit = layers.units[i];
    BeginGradient({&unit, 1});
    for (const TaskEntry& entry : entries) {
      EnterLeaf(unit, Phase::kLate, entry.target.pass);
      const device::Scope scope(Trace(), {.name = device::SliceName::kLayer,
                                          .phase = device::Phase::kWeightGradient,
                                          .layer = layers.blocks[i].Number(),
                                          .queues = true});
      layers.blocks[i].BackwardWeight(PassOf(entry, chunk, i), entry.live->blocks[i]);
      progress_();
    }
    EndGradient({&unit, 1});
    if (report) Report(unit);
  }
}

// Before and after the blocks: the embedding, the final norm and the head.

void StageTasks::Embed(const EmbeddingLayer& layer, const ResidualStream& stream,
                       bool backward) const {
  const Pass& pass = stream.pass;
  const std::int64_t mark = pass.lives.scratch->Mark();
  const Matrix full = pass.tensor->Sharded()
                          ? pass.Allocate(pass.lives.scratch, pass.Tokens(), plan_.options.dim)
                          : stream.residual;
  if (!pass.Dry()) {
    const device::Scope scope(
        Trace(), {.name = device::SliceName::kEmbedding,
                  .phase = backward ? device::Phase::kBackward : device::Phase::kForward,
                  .queues = true});
    if (backward) {
      layer.BackwardWeight(pass, stream.residual, full);
    } else {
      layer.Forward(pass, positions_.Sinusoidal(), full, stream.residual);
    }
  }
  pass.lives.scratch->Release(mark);
}

// What the head reads of this rank's rows, in memory of its own unless it is x: the final norm of
// x, divided by the width's factor.
Matrix StageTasks::HeadInput(const Pass& pass, const Matrix& x, NormLayer::Saved& norm) const {
  const NormLayer* final_norm = network_.FinalNorm();
  const double width = plan_.options.WidthFactor();
  if (final_norm == nullptr && width == 1) return x;
  if (final_norm != nullptr) final_norm->Allocate(pass, norm);
  const Matrix input = pass.Allocate(pass.lives.scratch, pass.Rows().Size(), plan_.options.dim);
  if (pass.Dry()) return input;
  if (final_norm != nullptr) final_norm->Forward(pass, x, norm, input);
  if (width != 1) kernels::Scale(pass.stream, final_norm != nullptr ? input : x, 1 / width, input);
  return input;
}

// The final norm, then the head's losses or what a reader computes.
void StageTasks::EvaluateHead(const Pass& pass, const Matrix& x) {
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  NormLayer::Saved norm;
  const Matrix input = HeadInput(pass, x, norm);
  const Matrix full =
      pass.tensor->Sharded() ? pass.Allocate(scratch, pass.Tokens(), plan_.options.dim) : input;
  if (!pass.Dry()) {
    pass.tensor->Gather(input, full);
    if (reader_ != nullptr) {
      reader_->Read(pass, full);
    } else {
      network_.Head().Loss(pass, full, {}, {});
    }
  }
  scratch->Release(mark);
}

// The final norm and the head: loss, and its gradient with respect to x. x, dx: [rows, dim].
void StageTasks::HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx) const {
  const NormLayer* final_norm = network_.FinalNorm();
  device::Arena* scratch = pass.lives.scratch;
  const std::int64_t mark = scratch->Mark();
  const std::int64_t dim = plan_.options.dim;
  const device::Scope scope(
      pass.Dry() ? nullptr : Trace(),
      {.name = device::SliceName::kHead, .phase = device::Phase::kBackward, .queues = true});
  NormLayer::Saved norm;
  const Matrix input = HeadInput(pass, x, norm);
  const Matrix dinput =
      final_norm == nullptr ? dx : pass.Allocate(scratch, pass.Rows().Size(), dim);
  Matrix full = input, dfull = dinput;
  if (pass.tensor->Sharded()) {
    full = pass.Allocate(scratch, pass.Tokens(), dim);
    dfull = pass.Allocate(scratch, pass.Tokens(), dim);
  }
  if (!pass.Dry()) {
    pass.tensor->Gather(input, full);
    network_.Head().Loss(pass, full, {plan_.label_smoothing, plan_.z_loss}, dfull);
    pass.tensor->Reduce(dfull, dinput);
    const double width = plan_.options.WidthFactor();
    if (width != 1) kernels::Scale(pass.stream, dinput, 1 / width, dinput);
    if (final_norm != nullptr) {
      final_norm->Backward(pass, norm, {.dy = dinput, .dx = dx});
    }
  }
  scratch->Release(mark);
}

// The loss and the gradients of head and final norm. The gradient of the final norm's input goes to
// the target stream's `residual`.
void StageTasks::HeadGradients(TaskEntries& entries, int chunk, bool report) {
  const bool tied = plan_.options.tie_embeddings;
  const int tail = network_.TailUnit(), token = network_.TokenUnit();
  const std::vector<int>& units = LayersOf(chunk).last_units;
  Use(units);
  BeginGradient(units);
  for (TaskEntry& entry : entries) {
    const ResidualStream& stream = entry.target;
    EnterLeaf(tail, Phase::kWhole, stream.pass);
    if (tied) EnterLeaf(token, Phase::kHead, stream.pass);
    HeadBackward(stream.pass, entry.live->head_input, stream.residual);
  }
  Done(units);
  EndGradient({&tail, 1});
  // With one stage, the embedding adds to the same gradient at the end of the backward pass.
  if (tied && local_.stages > 1) EndGradient({&token, 1});
  if (report) Report(tail);
}

void StageTasks::EmbeddingGradients(TaskEntries& entries, int chunk, ForEntry embed_backward) {
  const std::vector<int>& units = LayersOf(chunk).first_units;
  BeginGradient(units);
  for (TaskEntry& entry : entries) {
    for (const int unit : units) EnterLeaf(unit, Phase::kWhole, entry.target.pass);
    embed_backward(entry);
  }
  EndGradient(units);
}

// ChunkActivations: measures the slots and cuts memory into slots and frames.

ChunkActivations::ChunkActivations(const std::vector<Block>& blocks, const parallel::Slots& slots,
                                   int entries, bool recomputes)
    : blocks_(blocks),
      slots_(slots),
      entries_(entries),
      rotates_(slots.backward > 0 && !recomputes),
      passing_(MakeSaved()) {}

std::vector<Block::Saved> ChunkActivations::MakeSaved() const {
  std::vector<Block::Saved> saved;
  for (const Block& block : blocks_) saved.push_back(block.MakeSaved());
  return saved;
}

// Each block of each live entry gets a frame, in order; the last frame is the spare one.
void ChunkActivations::MakeLive(int weight_slots) {
  live_.clear();
  spare_ = 0;
  for (int entry = 0; entry < weight_slots * entries_; ++entry) {
    Live& live = live_.emplace_back();
    live.blocks = MakeSaved();
    for (std::size_t block = 0; block < blocks_.size(); ++block) live.frames.push_back(spare_++);
  }
}

ChunkActivations::Arenas ChunkActivations::BeginMeasuring() {
  MakeLive(1);
  for (std::vector<device::Arena>* arenas : {&input_, &weight_, &backward_}) {
    arenas->push_back(device::Arena::Measuring());
  }
  for (int frame = 0; frame <= spare_; ++frame) frames_.push_back(device::Arena::Measuring());
  return At({}, slots_.backward > 0);
}

void ChunkActivations::EndMeasuring() {
  input_bytes_ = input_.front().Peak();
  weight_bytes_ = weight_.front().Peak();
  backward_bytes_ = backward_.front().Peak();
  for (const device::Arena& frame : frames_) frame_bytes_ = std::max(frame_bytes_, frame.Peak());
  for (std::vector<device::Arena>* arenas : {&input_, &weight_, &backward_, &frames_}) {
    arenas->clear();
  }
  MakeLive(slots_.weight);
}

std::int64_t ChunkActivations::Bytes() const {
  return slots_.input * input_bytes_ + slots_.weight * weight_bytes_ +
         slots_.backward * backward_bytes_ + (rotates_ ? (spare_ + 1) * frame_bytes_ : 0);
}

char* ChunkActivations::Cut(char* memory) {
  const auto cut = [&memory](std::vector<device::Arena>& arenas, int count, std::int64_t size) {
    for (int slot = 0; slot < count; ++slot, memory += size) arenas.emplace_back(memory, size);
  };
  cut(input_, slots_.input, input_bytes_);
  cut(weight_, slots_.weight, weight_bytes_);
  cut(backward_, slots_.backward, backward_bytes_);
  if (rotates_) cut(frames_, spare_ + 1, frame_bytes_);
  return memory;
}

ChunkActivations::Arenas ChunkActivations::At(const parallel::Slots& slots, bool split) {
  return {&input_[static_cast<std::size_t>(slots.input)],
          &weight_[static_cast<std::size_t>(slots.weight)],
          split ? &backward_[static_cast<std::size_t>(slots.backward)] : nullptr};
}

void ChunkActivations::Clear(const parallel::Slots& slots) {
  input_[static_cast<std::size_t>(slots.input)].Release(0);
  weight_[static_cast<std::size_t>(slots.weight)].Release(0);
  if (!rotates_) return;
  for (int entry = 0; entry < entries_; ++entry) {
    for (const int frame : LiveAt(slots.weight, entry).frames) {
      frames_[static_cast<std::size_t>(frame)].Release(0);
    }
  }
}

}  // namespace trireme::model
