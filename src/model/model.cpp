// Model: its memory, its batches, and the entries of a task. The tasks stand in model_forward.cpp,
// model_backward.cpp and model_ends.cpp.
#include "trireme/model/model.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/bfloat16.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "workspace.hpp"

namespace trireme::model {

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

}  // namespace trireme::model
