// Model: its parameters and its memory. What runs on them stands in model_tasks.cpp.
#include "trireme/model/model.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/kernels/cross_entropy.hpp"
#include "trireme/kernels/embedding.hpp"

namespace trireme::model {

Model::Model(const ModelSetup& setup) : setup_(setup) {
  if (setup_.tensor == nullptr) setup_.tensor = &one_rank_;
  if (setup_.chunks.empty()) setup_.chunks = {{0, setup_.options.layers}};
  if (setup_.slots.empty()) setup_.slots.assign(setup_.chunks.size(), {1, 1, 0});
  RegisterParameters();
  registry_.Allocate(setup_.dtype, setup_.training);
  registry_.Initialise(setup_.seed);
  MakePositions();
  PlanMemory();
}

// All parameters of the model in its order, on every rank; those of other stages are only listed.
void Model::RegisterParameters() {
  const Options& options = setup_.options;
  const bool first = setup_.stage == 0, last = setup_.stage == setup_.stages - 1;
  Placement place{options, registry_, *setup_.tensor, true};
  embedding_.emplace(place, first, last, setup_.stages == 1);
  chunks_.resize(setup_.chunks.size());
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const auto here =
        std::find_if(setup_.chunks.begin(), setup_.chunks.end(),
                     [layer](const Part& part) { return part.begin <= layer && layer < part.end; });
    place.held = here != setup_.chunks.end();
    const std::int64_t begin = registry_.Size();
    const Block block(place, static_cast<std::uint32_t>(layer));
    if (!place.held) continue;
    Chunk& chunk = chunks_[static_cast<std::size_t>(here - setup_.chunks.begin())];
    chunk.begin.push_back(begin);
    chunk.blocks.push_back(block);
  }
  chunks_.front().first = first;
  chunks_.back().last = last;
  tail_begin_ = registry_.Size();
  place.held = last;
  if (options.norm_position == NormPosition::kPre) norm_.emplace(place, "norm");
  head_.emplace(place, embedding_->Weight());
}

// The fixed tables: sinusoidal positions, or the angles of rotary ones.
void Model::MakePositions() {
  const Options& options = setup_.options;
  if (options.position == Position::kLearned) return;
  const bool rope = options.position == Position::kRope;
  if (!rope && setup_.stage != 0) return;  // they go with the embedding
  const std::int64_t columns = rope ? options.head_dim : options.dim;
  const std::int64_t bytes =
      setup_.length * columns * static_cast<std::int64_t>(SizeOf(setup_.dtype));
  positions_storage_ = device::AllocateZeroed(bytes);
  table_bytes_ = bytes;
  const Matrix table{positions_storage_.get(), setup_.dtype, setup_.length, columns, columns};
  if (rope) {
    kernels::RopeTable(options.rope_theta, table);
    rope_ = table;
  } else {
    kernels::SinusoidalPositions(table);
    positions_ = table;
  }
}

Pass Model::MakePass(const data::MicroBatch* batch, bool training) {
  Pass pass;
  pass.stream = setup_.stream;
  pass.registry = &registry_;
  pass.tensor = setup_.tensor;
  pass.workspace = workspace_;
  pass.batch = batch;
  pass.sequences = batch == nullptr ? setup_.micro_batch : batch->sequences;
  pass.length = batch == nullptr ? setup_.length : batch->length;
  pass.seed = setup_.seed;
  pass.training = training;
  pass.causal = setup_.causal;
  std::optional<device::Arena>& arena = training ? training_ : evaluation_;
  device::Arena* scratch = arena ? &*arena : nullptr;
  pass.lives = {scratch, scratch, scratch, scratch, scratch};
  return pass;
}

void Model::AllocateWorkspace(Pass& pass, device::Arena& arena) const {
  constexpr std::int64_t kVector = 32;  // a row of the tile starts on a boundary of 128 bytes
  const Options& o = setup_.options;
  const auto tensor_ranks = static_cast<std::int64_t>(setup_.tensor->Size());
  Workspace& workspace = pass.workspace;
  // As on one rank: a slice of the heads needs no more.
  const kernels::AttentionShape shape{pass.sequences, pass.length, o.heads, o.kv_heads,
                                      o.head_dim,     0,           true};
  workspace.attention =
      pass.Allocate(&arena, 1, kernels::AttentionScratch(shape, pass.stream.threads));
  const std::int64_t widest = std::max({2 * o.dim, 2 * o.ffn, shape.Width()});
  workspace.reduction = pass.Allocate(&arena, kernels::kReductionBlocks, widest);
  if (!chunks_.back().last) return;
  const std::int64_t columns = head_->Slice().Size();
  const std::int64_t rows = std::min(HeadLayer::kTileTokens, pass.Tokens());
  workspace.tile = pass.Allocate(&arena, rows, (columns + kVector - 1) / kVector * kVector);
  workspace.tile.columns = columns;
  if (tensor_ranks == 1) return;
  workspace.statistics = tensor::Allocate(arena, Dtype::kFloat64, tensor_ranks,
                                          kernels::kSoftmaxStatistics * HeadLayer::kTileTokens);
}

// Units 0, 1, ... belong to the first micro-batch's blocks, and so on; the last is the spare.
void Model::NumberUnits(Chunk& chunk, int lives) {
  const auto blocks = static_cast<int>(chunk.blocks.size());
  chunk.live.resize(static_cast<std::size_t>(lives));
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
  Pass pass = MakePass(nullptr, true);
  pass.lives = {&scratch, &scratch, &scratch, &scratch, &scratch};
  const bool split = setup_.slots[index].backward > 0;
  chunk.rotates = split && setup_.options.recompute == Recompute::kNone;
  NumberUnits(chunk, 1);
  for (std::size_t unit = 0; unit <= chunk.blocks.size(); ++unit) {
    chunk.units.push_back(device::Arena::Measuring());
  }
  Live& live = chunk.live.front();
  Forward(pass, chunk, live, {&input, &weight, nullptr}, {}, {});
  Backward(pass, chunk, live, {&input, &weight, split ? &backward : nullptr}, {}, {}, false);
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
  Pass pass = MakePass(nullptr, false);
  pass.lives = {&scratch, &scratch, &scratch, &scratch, &scratch};
  for (const Chunk& chunk : chunks_) Evaluate(pass, chunk, {}, {}, nullptr);
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
    bytes += (std::ssize(chunk.blocks) * count.weight + 1) * chunk.unit_bytes;
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

// Makes all allocations of the largest micro-batch once on measuring arenas, then takes that
// memory, in one piece: no step allocates any. First the workspace, behind it what training needs,
// scratch and slots; evaluation, which never runs while slots are in use, has all of that again.
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
  storage_ = device::AllocateZeroed(shared.Peak() + passes);
  char* begin = static_cast<char*>(storage_.get());
  device::Arena workspace(begin, shared.Peak());
  AllocateWorkspace(pass, workspace);
  workspace_ = pass.workspace;
  begin += shared.Peak();
  evaluation_.emplace(begin, passes);
  if (!setup_.training) return;
  training_.emplace(begin, scratch.Peak());
  CutSlots(begin + scratch.Peak());
}

std::vector<std::pair<std::string, std::int64_t>> Model::MemoryPlan() const {
  const std::int64_t weights =
      registry_.Size() * static_cast<std::int64_t>(SizeOf(registry_.Type()));
  return {{"parameters", weights},
          {"gradients", setup_.training ? weights : 0},
          {"activations", activation_bytes_ + table_bytes_},
          {"vocabulary tile", tile_bytes_}};
}

}  // namespace trireme::model
