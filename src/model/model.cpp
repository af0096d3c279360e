// Model: its parameters and its memory. What runs on them stands in model_tasks.cpp.
#include "trireme/model/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "slice_sums.hpp"
#include "trireme/base/bfloat16.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/cross_entropy.hpp"
#include "trireme/kernels/embedding.hpp"

namespace trireme::model {

Model::Model(const ModelPlan& plan, const StagePlan& local, const Collaborators& with)
    : plan_(plan), local_(local), with_(with), staged_(with.stream) {
  tensor::ParameterList list = ListParameters();
  tensor::Ownership owns = parallel::PlanOwnership(list, plan_.dtype, local_.shard);
  registry_ =
      tensor::Registry(std::move(list), plan_.dtype, std::move(owns), plan_.training, with_.stream);
  PlanMemory();
  registry_.Initialise(plan_.seed);
  MakePositions();
  AllocateStorage();
}

// All parameters of the model in its order, on every rank; those of other stages are only listed.
tensor::ParameterList Model::ListParameters() {
  tensor::ParameterList list;
  const Options& options = plan_.options;
  const bool first = local_.First(), last = local_.Last();
  Placement place{options, list, with_.tensor, true, with_.stream};
  embedding_.emplace(place, first, last, local_.stages == 1);
  token_unit_ = list.UnitOf(embedding_->Weight());
  if (embedding_->Positions() != tensor::kNoParameter) {
    position_unit_ = list.UnitOf(embedding_->Positions());
  }
  chunks_.resize(local_.chunks.size());
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const auto here =
        std::find_if(local_.chunks.begin(), local_.chunks.end(),
                     [layer](const Part& part) { return part.begin <= layer && layer < part.end; });
    place.held = here != local_.chunks.end();
    const int unit = list.BeginUnit(fmt::format("blocks.{}", layer), true);
    const Block block(place, static_cast<std::uint32_t>(layer));
    if (!place.held) continue;
    Chunk& chunk = chunks_[static_cast<std::size_t>(here - local_.chunks.begin())];
    chunk.parameters.push_back(unit);
    chunk.blocks.push_back(block);
  }
  chunks_.front().first = first;
  chunks_.back().last = last;
  tail_unit_ = list.BeginUnit("head");
  place.held = last;
  if (options.norm_position == NormPosition::kPre) norm_.emplace(place, "norm");
  head_.emplace(place, embedding_->Weight());
  // Where a tied table is used twice on one rank, the two gradients meet where two stages' would.
  if (local_.shard.canonical && options.tie_embeddings && first && last && plan_.training) {
    list.AddSecondGradient(embedding_->Weight());
  }
  return list;
}

// Columns of the fixed table: sinusoidal positions, or the angles of rotary ones; 0: none here.
std::int64_t Model::TableColumns() const {
  const Options& options = plan_.options;
  if (options.position == Position::kRope) return options.head_dim;
  // Sinusoidal positions go with the embedding.
  return options.position == Position::kSinusoidal && local_.First() ? options.dim : 0;
}

void Model::MakePositions() {
  const std::int64_t columns = TableColumns();
  if (columns == 0) return;
  const bool rope = plan_.options.position == Position::kRope;
  const Dtype sums = registry_.SumType(), type = rope ? sums : plan_.dtype;
  positions_storage_ = device::AllocateZeroed(table_bytes_, with_.stream.Where());
  Matrix table{positions_storage_.get(), type, plan_.length, columns, columns};
  (rope ? rope_ : positions_) = table;
  const auto size = static_cast<std::int64_t>(SizeOf(sums));
  const device::Buffer made = device::AllocateZeroed(table.Size() * size);
  table.data = made.get();
  table.dtype = sums;
  if (rope) {
    kernels::RopeTable(plan_.options.rope_theta, table);
  } else {
    kernels::SinusoidalPositions(table);
  }
  if (type == sums) {
    return device::CopyIn(with_.stream, made.get(), positions_storage_.get(), table_bytes_);
  }
  std::vector<std::uint16_t> rounded(static_cast<std::size_t>(table.Size()));
  std::transform(table.As<float>(), table.As<float>() + table.Size(), rounded.begin(),
                 RoundToBfloat16);
  device::CopyIn(with_.stream, rounded.data(), positions_storage_.get(), table_bytes_);
}

Pass Model::MakePass(const data::MicroBatch* batch, bool training) {
  Pass pass;
  pass.stream = with_.stream;
  pass.registry = &registry_;
  pass.tensor = &with_.tensor;
  pass.ring = &with_.ring;
  pass.progress = &with_.progress;
  pass.workspace = workspace_;
  pass.batch = batch;
  if (batch != nullptr) pass.tokens = staged_.Of(*batch);
  pass.sequences = batch == nullptr ? plan_.micro_batch : batch->sequences;
  pass.length = batch == nullptr ? local_.Length() : batch->length;
  pass.positions = batch == nullptr ? local_.positions : batch->positions;
  pass.seed = plan_.seed;
  pass.training = training;
  pass.causal = plan_.causal;
  std::optional<device::Arena>& arena = training ? training_ : evaluation_;
  device::Arena* scratch = arena ? &*arena : nullptr;
  pass.lives = {scratch, scratch, scratch, scratch, scratch};
  return pass;
}

void Model::AllocateWorkspace(Pass& pass, device::Arena& arena) const {
  const Options& o = plan_.options;
  const parallel::TensorGroup& tensor = with_.tensor;
  Workspace& workspace = pass.workspace;
  // As on one rank of the tensor group: a slice of the heads needs no more.
  const kernels::AttentionShape shape{.sequences = pass.sequences,
                                      .length = pass.length,
                                      .heads = o.heads,
                                      .kv_heads = o.kv_heads,
                                      .head_dim = o.head_dim,
                                      .first_head = 0,
                                      .causal = true,
                                      .positions = pass.positions};
  kernels::AttentionShape mine = shape;
  if (pass.stream.OnGpu()) {
    // A library's scratch memory is that of the very shape.
    mine.heads = std::max<std::int64_t>(1, o.heads / tensor.Size());
    mine.kv_heads = std::max<std::int64_t>(1, o.kv_heads / tensor.Size());
  }
  const bool dropout = kernels::Dropout{.probability = o.attention_dropout}.Active();
  workspace.attention = pass.AllocateSums(
      &arena, 1, pass.ring->BufferElements(pass.stream, mine, pass.Type(), dropout));
  const std::int64_t widest = std::max({2 * o.dim, 2 * o.ffn, shape.Width()});
  workspace.reduction = pass.AllocateSums(&arena, kernels::kReductionBlocks, widest);
  if (const int levels = SliceLevels(tensor.Slices()); levels > 0) {
    workspace.slices = pass.Allocate(&arena, levels * pass.Tokens(), o.dim);
  }
  if (tensor.Canonical()) {
    workspace.norm_parts = pass.Allocate(&arena, tensor.AllSlices(), 2 * o.dim);
  }
  if (!chunks_.back().last) return;
  workspace.tile = head_->AllocateTile(pass, arena, plan_.training);
  const std::int64_t rows = head_->TileTokens(pass);
  workspace.losses = tensor::Allocate(arena, Dtype::kFloat64, 1, rows);
  workspace.statistics = tensor::Allocate(arena, Dtype::kFloat64, tensor.AllSlices(),
                                          kernels::kSoftmaxStatistics * rows);
}

// Units 0, 1, ... belong to the first live entry's blocks, and so on; the last is the spare.
void Model::NumberUnits(Chunk& chunk, int slots) const {
  const auto blocks = static_cast<int>(chunk.blocks.size());
  chunk.live.resize(static_cast<std::size_t>(slots * plan_.leaves));
  int next = 0;
  for (Live& live : chunk.live) {
    live.units.clear();
    for (int block = 0; block < blocks; ++block) live.units.push_back(next++);
  }
  chunk.spare = next;
}

// All allocations of the largest micro-batch's training tasks on a chunk, on measuring arenas.
void Model::MeasureChunk(Chunk& chunk, device::Arena& scratch) {
  const auto index = static_cast<std::size_t>(&chunk - chunks_.data());
  device::Arena input = device::Arena::Measuring(), weight = device::Arena::Measuring(),
                backward = device::Arena::Measuring();
  const bool split = local_.slots[index].backward > 0;
  chunk.rotates = split && plan_.options.recompute == Recompute::kNone;
  NumberUnits(chunk, 1);
  const std::size_t units = static_cast<std::size_t>(chunk.spare) + 1;
  for (std::size_t unit = 0; unit < units; ++unit) {
    chunk.units.push_back(device::Arena::Measuring());
  }
  std::vector<Leaf> leaves = MeasuringLeaves(chunk, true, scratch);
  Forward(leaves, chunk, {&input, &weight, nullptr});
  Backward(leaves, chunk, {&input, &weight, split ? &backward : nullptr}, false);
  chunk.input_bytes = input.Peak();
  chunk.weight_bytes = weight.Peak();
  chunk.backward_bytes = backward.Peak();
  for (const device::Arena& unit : chunk.units) {
    chunk.unit_bytes = std::max(chunk.unit_bytes, unit.Peak());
  }
  chunk.units.clear();
}

std::int64_t Model::EvaluationBytes() {
  device::Arena scratch = device::Arena::Measuring();
  for (Chunk& chunk : chunks_) {
    std::vector<Leaf> leaves = MeasuringLeaves(chunk, false, scratch);
    Evaluate(leaves, chunk);
  }
  return scratch.Peak();
}

std::int64_t Model::SlotBytes() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const parallel::Slots& count = local_.slots[i];
    const Chunk& chunk = chunks_[i];
    bytes += count.input * chunk.input_bytes + count.weight * chunk.weight_bytes +
             count.backward * chunk.backward_bytes;
    if (!chunk.rotates) continue;
    bytes += (std::ssize(chunk.blocks) * count.weight * plan_.leaves + 1) * chunk.unit_bytes;
  }
  return bytes;
}

// Cuts the memory at `next` into the slots of all chunks.
void Model::CutSlots(char* next) {
  const auto cut = [&next](std::vector<device::Arena>& arenas, std::int64_t count,
                           std::int64_t size) {
    for (std::int64_t slot = 0; slot < count; ++slot, next += size) arenas.emplace_back(next, size);
  };
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const parallel::Slots& count = local_.slots[i];
    Chunk& chunk = chunks_[i];
    cut(chunk.input, count.input, chunk.input_bytes);
    cut(chunk.weight, count.weight, chunk.weight_bytes);
    cut(chunk.backward, count.backward, chunk.backward_bytes);
    NumberUnits(chunk, count.weight);
    if (chunk.rotates) cut(chunk.units, chunk.spare + 1, chunk.unit_bytes);
  }
}

// Makes all allocations of the largest micro-batch once on measuring arenas: no step allocates any
// memory. First the workspace, behind it what training needs, scratch and slots; evaluation, which
// never runs while slots are in use, has all of that again.
void Model::PlanMemory() {
  device::Arena shared = device::Arena::Measuring(), scratch = device::Arena::Measuring();
  Pass pass = MakePass(nullptr, true);
  AllocateWorkspace(pass, shared);
  tile_bytes_ = pass.workspace.tile.rows * pass.workspace.tile.stride *
                static_cast<std::int64_t>(SizeOf(plan_.dtype));
  std::int64_t slots = 0;
  if (plan_.training) {
    for (Chunk& chunk : chunks_) MeasureChunk(chunk, scratch);
    slots = SlotBytes();
  }
  const std::int64_t passes = std::max(scratch.Peak() + slots, EvaluationBytes());
  workspace_bytes_ = shared.Peak();
  scratch_bytes_ = scratch.Peak();
  storage_bytes_ = shared.Peak() + passes;
  const std::int64_t columns = TableColumns();
  const bool rope = plan_.options.position == Position::kRope;
  table_bytes_ = plan_.length * columns *
                 static_cast<std::int64_t>(SizeOf(rope ? registry_.SumType() : plan_.dtype));
}

// The planned memory, in one piece.
void Model::AllocateStorage() {
  storage_ = device::AllocateZeroed(storage_bytes_, with_.stream.Where());
  char* begin = static_cast<char*>(storage_.get());
  device::Arena workspace(begin, workspace_bytes_);
  Pass pass = MakePass(nullptr, true);
  AllocateWorkspace(pass, workspace);
  workspace_ = pass.workspace;
  begin += workspace_bytes_;
  evaluation_.emplace(begin, storage_bytes_ - workspace_bytes_);
  if (!plan_.training) return;
  training_.emplace(begin, scratch_bytes_);
  CutSlots(begin + scratch_bytes_);
}

ModelMemory Model::Memory() const {
  return {.parameters = registry_.ValueBytes(),
          .gradients = registry_.GradientBytes(),
          .activations =
              storage_bytes_ - tile_bytes_ + (table_bytes_ > 0 ? BufferBytes(table_bytes_) : 0),
          .vocabulary_tile = tile_bytes_};
}

}  // namespace trireme::model
