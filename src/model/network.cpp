// Network: the groups of every parallelism, the registration of parameters, the use of units.
#include "trireme/model/network.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <map>

#include "trireme/base/error.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::model {

namespace {

device::Stream StreamOf(const ModelPlan& plan, device::Stream stream) {
  stream.canonical = plan.canonical.On();
  return stream;
}

// The tensor group; in canonical arithmetic it gets a buffer for tree sums over its ranks.
parallel::TensorGroup MakeTensorGroup(const comm::ProcessGrid& grid, const ModelPlan& plan,
                                      const StagePlan& local, const device::Stream& stream) {
  const comm::Collectives transfers = grid.Over(comm::Group::kTensor);
  if (!plan.canonical.On()) return {transfers, grid.SequenceParallel()};
  const std::int64_t ranks = grid.Shape().tensor;
  const std::int64_t most = CeilDivide(local.tokens, ranks) * ranks * plan.options.dim;
  return {transfers, grid.SequenceParallel(), plan.canonical.slices,
          parallel::TreeCollectives(transfers, stream, plan.dtype, most)};
}

}  // namespace

Network::Network(const comm::ProcessGrid& grid, const ModelPlan& plan, const device::Stream& stream)
    : grid_(grid),
      plan_(plan),
      local_plan_(PlanStage(plan, grid.Shape(), grid.Options(), grid.World().Rank())),
      stream_(StreamOf(plan, stream)) {}

// Every parallelism of the model in one place: which ranks take part in each, and what they do
// together. This rank's part of each (stage, positions, rows, shard) is in local_plan_.
void Network::Parallelise() {
  using comm::Group;
  const comm::Collectives tensor = grid_.Over(Group::kTensor), data = grid_.Over(Group::kData),
                          shard = grid_.Over(Group::kShard);
  const bool sharded = local_plan_.shard.sharding != comm::Sharding::kNone;
  const bool canonical = plan_.canonical.On();
  // Context: each rank has a part of every sequence; keys and values travel around a ring.
  context_ = parallel::RingAttention(grid_.Over(Group::kContext), plan_.length);
  // The tensor ranks that hold the same key/value head, if there are more ranks than heads.
  key_value_ = grid_.KeyValueGroup(plan_.options.kv_heads);
  key_value_channel_ = grid_.ChannelOver(key_value_, Group::kKeyValue);
  const comm::Collectives key_value(key_value_, Group::kKeyValue, grid_.Traffic(),
                                    key_value_channel_.get());
  grid_.World().Together([&] {
    // Tensor: each rank has a slice of every matrix. The outputs of attention and feed-forward
    // layers are all-reduced, or with sequence parallelism reduce-scattered by rows.
    tensor_ = MakeTensorGroup(grid_, plan_, local_plan_, stream_);
    // Pipeline: each rank has a stage; it holds its tensor rank's slices of its stage's layers.
    kernels::ParameterList list = ListParameters();
    kernels::Ownership owns = parallel::PlanOwnership(list, plan_.dtype, local_plan_.shard);
    registry_ =
        kernels::Registry(std::move(list), plan_.dtype, std::move(owns), plan_.training, stream_);
    // Some gradients are sums over ranks of a replica: those of norms and biases over the tensor
    // group, of shared key/value heads over the ranks that hold them, of a tied table over the
    // first and last stage. Then all copies of a parameter get one rank's bits.
    std::map<kernels::GradientSum, comm::Collectives> sums;
    if (plan_.training) {
      sums = {{kernels::GradientSum::kTensor, tensor},
              {kernels::GradientSum::kKeyValue, key_value},
              {kernels::GradientSum::kTied, grid_.Over(Group::kEmbedding)}};
      copied_ = std::make_unique<parallel::CopiedGradients>(
          registry_, parallel::CopyGroups{tensor, key_value, data, shard}, sharded, canonical,
          stream_);
    }
    shared_ = std::make_unique<parallel::SharedGradients>(registry_, sums, sharded, stream_);
    // Shard (ZeRO): each rank owns a part of every unit's moments, gradients or values. Values are
    // gathered where they are used, and gradients reduce-scattered.
    units_ = std::make_unique<parallel::ShardedUnits>(shard, registry_, stream_, local_plan_.shard,
                                                      shared_.get());
    // Data: each rank has its own windows; gradients are summed in buckets during the backward
    // pass.
    if (plan_.training) {
      buckets_ = std::make_unique<parallel::GradientBuckets>(data, shard, registry_, stream_,
                                                             local_plan_.shard, shared_.get());
    }
  });
}

// All ranks call `between` equally often, as often as the rank with most to draw.
void Network::DrawWeights(const std::function<void()>& between) {
  if (!between) return registry_.Initialise(plan_.seed);
  const std::int64_t pauses = grid_.World().Max(registry_.InitialPieces());
  std::int64_t taken = 0;
  registry_.Initialise(plan_.seed, [&] {
    ++taken;
    between();
  });
  for (; taken < pauses; ++taken) between();
}

void Network::BeginStep() {
  // Sharded gradients are cleared by ShardedUnits.
  if (!units_->GradientsSharded()) registry_.ZeroGradients();
  units_->BeginStep();
}

void Network::SumSharedGradients() {
  AddSecondGradient();
  shared_->Sum();
  if (copied_) copied_->Share();
}

// Adds the second gradient of a tied table to its first one.
void Network::AddSecondGradient() const {
  const kernels::ParameterId id = registry_.SecondOf();
  if (id == kernels::kNoParameter) return;
  const kernels::Owned to = registry_.OwnedOf(id);
  const kernels::Parameter& parameter = registry_.Parameters().at(static_cast<std::size_t>(id));
  for (const kernels::Piece& piece : registry_.Owns().pieces) {
    if (piece.range.begin < registry_.SecondRange().begin || piece.own.Size() == 0) continue;
    if (piece.own.begin - registry_.Size() != to.flat.begin - parameter.offset ||
        piece.own.Size() < to.flat.Size()) {
      throw RunError("the two gradients of a tied table are owned differently",
                     "This is a bug in Trireme.");
    }
    const Dtype type = registry_.SumType();
    kernels::Accumulate(stream_, type, to.flat.Size(),
                        ElementAt(registry_.Gradients(), type, piece.gradient),
                        ElementAt(registry_.Gradients(), type, to.gradient));
  }
}

std::vector<kernels::StateBlock> Network::Blocks() const {
  units_->FinishUpdated();
  return registry_.ValueBlocks(grid_.Data().Rank(), grid_.Data().Size(), grid_.Shard().Size());
}

std::vector<kernels::Linear> Network::SteadyLayers() const {
  std::vector<kernels::Linear> layers;
  if (units_->ValuesSharded()) return layers;
  for (const Chunk& chunk : chunks_) {
    for (const Block& block : chunk.blocks) block.AddLayers(registry_, layers);
  }
  return layers;
}

void Network::AddMemory(device::MemoryTerms& memory) const {
  memory.parameters += registry_.ValueBytes();
  memory.gradients += registry_.GradientBytes();
  memory.gathered_parameters += units_->GatherBytes();
  memory.gradients_under_way += units_->GradientBytes();
  memory.exchange_buffers += shared_->Bytes() + tensor_.Bytes();
  if (plan_.training) memory.exchange_buffers += copied_->Bytes() + buckets_->Bytes();
}

// Lists all parameters of the model in order, on every rank; those of other stages get no memory.
kernels::ParameterList Network::ListParameters() {
  const bool last = local_plan_.Last(), tied = plan_.options.tie_embeddings;
  kernels::ParameterList list;
  ParameterPlace place{plan_.options, list, tensor_, true, stream_};
  chunks_.resize(local_plan_.chunks.size());
  AddEmbeddings(place);
  AddBlocks(place);
  tail_unit_ = list.BeginUnit("head");
  place.held = last;
  if (plan_.options.norm_position == NormPosition::kPre) norm_.emplace(place, "norm");
  head_.emplace(place, embedding_->Weight());
  if (last) chunks_.back().last_units = {tail_unit_};
  if (last && tied) chunks_.back().last_units.push_back(token_unit_);
  // One rank that uses a tied table twice adds its two gradients where two stages would.
  if (local_plan_.shard.canonical && tied && local_plan_.First() && last && plan_.training) {
    list.AddSecondGradient(embedding_->Weight());
  }
  return list;
}

void Network::AddEmbeddings(const ParameterPlace& place) {
  const bool first = local_plan_.First();
  std::vector<int> units;
  const auto add = [&](ParameterId id) {
    if (id != kernels::kNoParameter) units.push_back(place.parameters.UnitOf(id));
  };
  embedding_.emplace(place, first, local_plan_.Last(), local_plan_.stages == 1);
  token_unit_ = place.parameters.UnitOf(embedding_->Weight());
  add(embedding_->Weight());
  add(embedding_->Positions());
  if (plan_.options.Translates()) {
    source_embedding_.emplace(place, first, *embedding_);
    if (source_embedding_->Weight() != embedding_->Weight()) add(source_embedding_->Weight());
    add(source_embedding_->Positions());
  }
  if (first) chunks_.front().first_units = units;
}

void Network::AddBlocks(ParameterPlace place) {
  const std::int64_t encoders = plan_.options.encoder_layers;
  for (std::int64_t layer = 0; layer < plan_.options.Blocks(); ++layer) {
    const auto here =
        std::find_if(local_plan_.chunks.begin(), local_plan_.chunks.end(),
                     [layer](const Part& part) { return part.begin <= layer && layer < part.end; });
    place.held = here != local_plan_.chunks.end();
    const int unit = place.parameters.BeginUnit(fmt::format("blocks.{}", layer), true);
    Block block(place, static_cast<std::uint32_t>(layer), encoders > 0 && layer >= encoders);
    const bool ends = layer + 1 == encoders;
    if (ends && plan_.options.norm_position == NormPosition::kPre) {
      encoder_norm_.emplace(place, "encoder.norm", true);
    }
    if (!place.held) continue;
    Chunk& chunk = chunks_[static_cast<std::size_t>(here - local_plan_.chunks.begin())];
    chunk.units.push_back(unit);
    chunk.blocks.push_back(std::move(block));
    if (layer < encoders) ++chunk.encoders;
    chunk.ends_encoder = chunk.ends_encoder || ends;
  }
  chunks_.front().first = local_plan_.First();
  chunks_.back().last = local_plan_.Last();
}

bool Network::Has(int unit) const {
  return unit >= 0 && registry_.Units()[static_cast<std::size_t>(unit)].range.Size() > 0;
}

void Network::AppendUses(const parallel::Task& task) {
  if (task.kind == parallel::TaskKind::kBackwardWeight) return;
  const Chunk& chunk = chunks_[static_cast<std::size_t>(task.chunk)];
  const auto append = [&](std::span<const int> units) {
    for (const int unit : units) {
      if (Has(unit)) uses_.push_back(unit);
    }
  };
  const bool forward =
      task.kind == parallel::TaskKind::kForward || task.kind == parallel::TaskKind::kEvaluate;
  append(forward ? chunk.first_units : chunk.last_units);
  const auto before = static_cast<std::ptrdiff_t>(uses_.size());
  append(chunk.units);
  if (!forward) std::reverse(uses_.begin() + before, uses_.end());
  if (task.kind == parallel::TaskKind::kEvaluate) append(chunk.last_units);
}

const std::vector<int>& Network::UsesOf(const parallel::Program& program) {
  uses_.clear();
  for (const parallel::Operation& operation : program.operations) {
    if (operation.action != parallel::Action::kCompute) continue;
    AppendUses(program.tasks[static_cast<std::size_t>(operation.task)].task);
  }
  return uses_;
}

}  // namespace trireme::model
