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

Model::Model(const ModelSetup& setup) : setup_(setup), staged_(setup.stream) {
  if (setup_.tensor == nullptr) setup_.tensor = &one_rank_;
  if (setup_.context == nullptr) setup_.context = &one_context_;
  if (setup_.chunks.empty()) setup_.chunks = {{0, setup_.options.layers}};
  if (setup_.slots.empty()) setup_.slots.assign(setup_.chunks.size(), {1, 1, 0});
  tensor::ParameterList list = ListParameters();
  tensor::Ownership owns = parallel::PlanOwnership(list, setup_.dtype, setup_.shard);
  registry_ = tensor::Registry(std::move(list), setup_.dtype, std::move(owns), setup_.training,
                               setup_.stream);
  PlanMemory();
  if (setup_.allocate) Allocate();
}

void Model::Allocate() {
  registry_.Initialise(setup_.seed);
  MakePositions();
  AllocateStorage();
}

// All parameters of the model in its order, on every rank; those of other stages are only listed.
tensor::ParameterList Model::ListParameters() {
  tensor::ParameterList list;
  const Options& options = setup_.options;
  const bool first = setup_.stage == 0, last = setup_.stage == setup_.stages - 1;
  Placement place{options, list, *setup_.tensor, true, setup_.stream};
  embedding_.emplace(place, first, last, setup_.stages == 1);
  token_unit_ = list.UnitOf(embedding_->Weight());
  if (embedding_->Positions() != tensor::kNoParameter) {
    position_unit_ = list.UnitOf(embedding_->Positions());
  }
  chunks_.resize(setup_.chunks.size());
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const auto here =
        std::find_if(setup_.chunks.begin(), setup_.chunks.end(),
                     [layer](const Part& part) { return part.begin <= layer && layer < part.end; });
    place.held = here != setup_.chunks.end();
    const int unit = list.BeginUnit(fmt::format("blocks.{}", layer), true);
    const Block block(place, static_cast<std::uint32_t>(layer));
    if (!place.held) continue;
    Chunk& chunk = chunks_[static_cast<std::size_t>(here - setup_.chunks.begin())];
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
  if (setup_.shard.canonical && options.tie_embeddings && first && last && setup_.training) {
    list.AddSecondGradient(embedding_->Weight());
  }
  return list;
}

// Columns of the fixed table: sinusoidal positions, or the angles of rotary ones; 0: none here.
std::int64_t Model::TableColumns() const {
  const Options& options = setup_.options;
  if (options.position == Position::kRope) return options.head_dim;
  // Sinusoidal positions go with the embedding.
  return options.position == Position::kSinusoidal && setup_.stage == 0 ? options.dim : 0;
}

void Model::MakePositions() {
  const std::int64_t columns = TableColumns();
  if (columns == 0) return;
  const bool rope = setup_.options.position == Position::kRope;
  const Dtype sums = registry_.SumType(), type = rope ? sums : setup_.dtype;
  positions_storage_ = device::AllocateZeroed(table_bytes_, setup_.stream.Where());
  Matrix table{positions_storage_.get(), type, setup_.length, columns, columns};
  (rope ? rope_ : positions_) = table;
  const auto size = static_cast<std::int64_t>(SizeOf(sums));
  const device::Buffer made = device::AllocateZeroed(table.Size() * size);
  table.data = made.get();
  table.dtype = sums;
  if (rope) {
    kernels::RopeTable(setup_.options.rope_theta, table);
  } else {
    kernels::SinusoidalPositions(table);
  }
  if (type == sums) {
    return device::CopyIn(setup_.stream, made.get(), positions_storage_.get(), table_bytes_);
  }
  std::vector<std::uint16_t> rounded(static_cast<std::size_t>(table.Size()));
  std::transform(table.As<float>(), table.As<float>() + table.Size(), rounded.begin(),
                 RoundToBfloat16);
  device::CopyIn(setup_.stream, rounded.data(), positions_storage_.get(), table_bytes_);
}

Pass Model::MakePass(const data::MicroBatch* batch, bool training) {
  Pass pass;
  pass.stream = setup_.stream;
  pass.registry = &registry_;
  pass.tensor = setup_.tensor;
  pass.ring = setup_.context;
  pass.progress = &setup_.progress;
  pass.workspace = workspace_;
  pass.batch = batch;
  if (batch != nullptr) pass.tokens = staged_.Of(*batch);
  pass.sequences = batch == nullptr ? setup_.micro_batch : batch->sequences;
  pass.length = batch == nullptr ? LocalLength() : batch->length;
  pass.positions = batch == nullptr ? setup_.context->Own() : batch->positions;
  pass.seed = setup_.seed;
  pass.training = training;
  pass.causal = setup_.causal;
  std::optional<device::Arena>& arena = training ? training_ : evaluation_;
  device::Arena* scratch = arena ? &*arena : nullptr;
  pass.lives = {scratch, scratch, scratch, scratch, scratch};
  return pass;
}

std::int64_t Model::LocalLength() const {
  return setup_.context->Active() ? setup_.context->Own().Count() : setup_.length;
}

void Model::AllocateWorkspace(Pass& pass, device::Arena& arena) const {
  const Options& o = setup_.options;
  const parallel::TensorGroup& tensor = *setup_.tensor;
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
  workspace.tile = head_->AllocateTile(pass, arena, setup_.training);
  const std::int64_t rows = head_->TileTokens(pass);
  workspace.losses = tensor::Allocate(arena, Dtype::kFloat64, 1, rows);
  workspace.statistics = tensor::Allocate(arena, Dtype::kFloat64, tensor.AllSlices(),
                                          kernels::kSoftmaxStatistics * rows);
}

// Units 0, 1, ... belong to the first live entry's blocks, and so on; the last is the spare.
void Model::NumberUnits(Chunk& chunk, int slots) const {
  const auto blocks = static_cast<int>(chunk.blocks.size());
  chunk.live.resize(static_cast<std::size_t>(slots * setup_.leaves));
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
  const bool split = setup_.slots[index].backward > 0;
  chunk.rotates = split && setup_.options.recompute == Recompute::kNone;
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
    const parallel::Slots& count = setup_.slots[i];
    const Chunk& chunk = chunks_[i];
    bytes += count.input * chunk.input_bytes + count.weight * chunk.weight_bytes +
             count.backward * chunk.backward_bytes;
    if (!chunk.rotates) continue;
    bytes += (std::ssize(chunk.blocks) * count.weight * setup_.leaves + 1) * chunk.unit_bytes;
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
    const parallel::Slots& count = setup_.slots[i];
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
                static_cast<std::int64_t>(SizeOf(setup_.dtype));
  std::int64_t slots = 0;
  if (setup_.training) {
    for (Chunk& chunk : chunks_) MeasureChunk(chunk, scratch);
    slots = SlotBytes();
  }
  const std::int64_t passes = std::max(scratch.Peak() + slots, EvaluationBytes());
  activation_bytes_ = shared.Peak() + passes - tile_bytes_;
  workspace_bytes_ = shared.Peak();
  scratch_bytes_ = scratch.Peak();
  storage_bytes_ = shared.Peak() + passes;
  const std::int64_t columns = TableColumns();
  const bool rope = setup_.options.position == Position::kRope;
  table_bytes_ = setup_.length * columns *
                 static_cast<std::int64_t>(SizeOf(rope ? registry_.SumType() : setup_.dtype));
}

// The planned memory, in one piece.
void Model::AllocateStorage() {
  storage_ = device::AllocateZeroed(storage_bytes_, setup_.stream.Where());
  char* begin = static_cast<char*>(storage_.get());
  device::Arena workspace(begin, workspace_bytes_);
  Pass pass = MakePass(nullptr, true);
  AllocateWorkspace(pass, workspace);
  workspace_ = pass.workspace;
  begin += workspace_bytes_;
  evaluation_.emplace(begin, storage_bytes_ - workspace_bytes_);
  if (!setup_.training) return;
  training_.emplace(begin, scratch_bytes_);
  CutSlots(begin + scratch_bytes_);
}

std::vector<std::pair<std::string, std::int64_t>> Model::MemoryPlan() const {
  return {{"parameters", registry_.ValueBytes()},
          {"gradients", registry_.GradientBytes()},
          {"activations", activation_bytes_ + table_bytes_},
          {"vocabulary tile", tile_bytes_}};
}

}  // namespace trireme::model
