// TrainingState: construction, the collective tasks of a step, and what checkpoints hold.
#include "trireme/train/training_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/comm/same_everywhere.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/comm/node_memory.hpp"

namespace trireme::train {

TrainingState::TrainingState(const comm::ProcessGrid& grid, const TrainingPlan& plan,
                             const device::Stream& stream, const std::function<void()>& between)
    : grid_(grid),
      plan_(plan),
      model_(grid, plan.model, stream, between),
      drain_(stream, [&grid] { grid.GiveUp(); }) {
  // All ranks have the memory that they need, or all say which one has not.
  grid.World().Together([&] {
    if (kernels::Libraries* const libraries = kernels::LibrariesOf(stream)) {
      libraries->Reserve(LargestOperand(plan.model));
    }
    optimizer_ = std::make_unique<Optimizer>(plan.optimizer, model_.Parameters(),
                                                        model_.Stream());
    buckets_ = std::make_unique<parallel::GradientBuckets>(
        grid.Over(comm::Group::kData), grid.Over(comm::Group::kShard), model_.Parameters(),
        model_.Stream(), model_.LocalPlan().shard, &model_.Shared());
  });
}

BatchShare TrainingState::Share() const {
  const parallel::ShardedUnits& units = model_.Units();
  return plan_.ShareOf(grid_.Coordinates().data, grid_.Shape().data,
                       units.ValuesSharded() || units.GradientsSharded());
}

device::MemoryTerms TrainingState::Memory() const {
  device::MemoryTerms terms = MemoryOf(model_);
  terms.moments = optimizer_->Bytes();
  terms.exchange_buffers += buckets_->Bytes();
  terms.mpi_buffers = buckets_->LibraryBytes() + model_.Units().LibraryBytes();
  // A GPU's state is copied into the memory of the host.
  if (plan_.async_checkpoints && !Stream().OnGpu()) {
    terms.checkpoint_copy =
        checkpoint::CopyBytes(model_.Blocks()) + checkpoint::CopyBytes(MomentBlocks());
  }
  return terms;
}

void TrainingState::QueueGradients(model::StagedBatches::Taken entries) {
  model_.BeginStep();
  buckets_->Begin();
  model::GradientsReady ready;
  if (!plan_.model.canonical.On()) ready = [this](std::int64_t begin) { buckets_->Ready(begin); };
  model_.StartTrain(std::move(entries), ready);
  // The rest, the first stage's embedding for one; a rank without samples takes part with zeros.
  buckets_->Ready(0);
}

void TrainingState::QueueSums() {
  model_.Units().FinishGradients();
  buckets_->Wait();
  model_.SumSharedGradients();
  optimizer_->QueueSquares();
  if (kernels::Libraries* const libraries = kernels::LibrariesOf(Stream())) {
    libraries->QueueLargest(Stream());
  }
}

const std::string& TrainingState::NotFinite() const {
  return buckets_->NotFinite().empty() ? model_.Units().NotFinite() : buckets_->NotFinite();
}

void TrainingState::Agree(std::array<double, kAgreed>& sums) const {
  grid_.Over(comm::Group::kWorld).AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
}

// Every stage and slice of a replica has the same windows: those of the first count. Whole numbers,
// whose sum has no order.
void TrainingState::SumOfBatch(std::array<std::int64_t, kCounts>& counts) const {
  const bool counted = grid_.Coordinates().pipeline == 0 && grid_.Coordinates().tensor == 0;
  std::array<double, kCounts> sums{};
  if (counted) std::copy(counts.begin(), counts.end(), sums.begin());
  grid_.Over(comm::Group::kWorld).AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
  std::transform(sums.begin(), sums.end(), counts.begin(),
                 [](double sum) { return static_cast<std::int64_t>(sum); });
}

// Each element counts once: the sums of shards, stages and slices make up the replica's. A
// canonical sum is exact, so that no layout changes it.
double TrainingState::GradientNorm(std::int64_t targets) const {
  const bool exact = plan_.model.canonical.On();
  std::array<double, ExactSum::kNumbers> digits{};
  std::span<double> sums(digits);
  if (exact) {
    digits = optimizer_->ExactGradientSquares().Digits();
  } else {
    sums = sums.first(1);
    sums[0] = optimizer_->GradientSquares();
  }
  for (const comm::Group group : {comm::Group::kShard, comm::Group::kReplica}) {
    grid_.Over(group).OnHost().AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
  }
  const double mine = exact ? ExactSum::FromDigits(sums).Value() : sums.front();
  // Each replica has made the sum by itself, perhaps in another order: the clipping must be the
  // same. A sum that is not finite on this rank alone is kept: the agreement that follows needs it.
  double squares = mine;
  grid_.Over(comm::Group::kWorld).Broadcast(Dtype::kFloat64, &squares, 1, 0);
  if (!std::isfinite(mine)) squares = mine;
  return std::sqrt(squares) / static_cast<double>(targets);
}

void TrainingState::Update(std::int64_t step, double learning_rate, double norm,
                           std::int64_t targets) {
  optimizer_->Step(step, learning_rate, norm, targets, !plan_.keep_gradients);
  model_.Units().GatherUpdated();
  UpdateScales();
}

// A graph may have been recorded without the clearing that an update does.
void TrainingState::DropGradients() { model_.Parameters().DropGradients(); }

std::string TrainingState::FirstParameterNotFinite() {
  if (Stream().OnGpu()) return {};
  for (const kernels::StateBlock& block : model_.Blocks()) {
    const bool finite = DispatchDtype(block.dtype, [&](auto zero) {
      const auto* const values = static_cast<const decltype(zero)*>(block.data);
      return std::all_of(values, values + (block.end - block.begin),
                         [](auto value) { return std::isfinite(value); });
    });
    if (!finite) return block.name;
  }
  return {};
}

// Over all ranks: the scale of a tensor does not depend on which rank holds which part of it.
void TrainingState::UpdateScales() {
  kernels::Libraries* const libraries = kernels::LibrariesOf(Stream());
  if (libraries == nullptr) return;
  const std::span<float> largest = libraries->Largest();
  if (largest.empty()) return;
  grid_.Over(comm::Group::kWorld)
      .AllReduce(Dtype::kFloat32, largest.data(), std::ssize(largest), comm::Reduction::kMax);
  libraries->UpdateScales(Stream());
}

StateOnHost TrainingState::Unfetched(std::vector<kernels::StateBlock> blocks) const {
  return {Stream(), std::move(blocks)};
}

std::vector<kernels::StateBlock> TrainingState::MomentBlocks() const {
  return optimizer_->Blocks(grid_.Data().Rank(), grid_.Data().Size(), grid_.Shard().Size());
}

checkpoint::State TrainingState::CheckpointState() {
  return StateToRead(Stream(), model_.Blocks(), MomentBlocks());
}

checkpoint::State TrainingState::ReplicatedState() {
  const kernels::Registry& parameters = model_.Parameters();
  const int rank = grid_.Data().Rank(), ranks = grid_.Data().Size(), sharers = grid_.Shard().Size();
  std::vector<kernels::StateBlock> owned;
  if (parameters.Masters() != nullptr) owned = parameters.ValueBlocks(rank, ranks, sharers);
  for (kernels::StateBlock& master : owned) master.name = "master." + master.name;
  const std::vector<kernels::StateBlock> moments = MomentBlocks();
  owned.insert(owned.end(), moments.begin(), moments.end());
  return StateToRead(Stream(), parameters.StoredValueBlocks(rank, ranks, sharers),
                     std::move(owned));
}

checkpoint::State TrainingState::GradientState() const {
  return StateToRead(Stream(),
                     model_.Parameters().GradientBlocks(grid_.Data().Rank(), grid_.Data().Size(),
                                                        grid_.Shard().Size()),
                     {});
}

StateOnHost TrainingState::ModelBlocks() { return Unfetched(model_.Blocks()).Fetch(); }

StateOnHost TrainingState::OptimizerBlocks() const { return Unfetched(MomentBlocks()).Fetch(); }

StateOnHost TrainingState::GradientBlocks() const {
  return Unfetched(model_.Parameters().GradientBlocks(grid_.Data().Rank(), grid_.Data().Size(),
                                                      grid_.Shard().Size()))
      .Fetch();
}

void TrainingState::LoadWeights(const std::string& checkpoint,
                                const std::function<void()>& between) {
  const StateOnHost weights = Unfetched(model_.Blocks());
  checkpoint::ReadTensors(grid_.World(), checkpoint, "model", weights, between);
  StoreWeights(weights);
}

void TrainingState::StoreWeights(const StateOnHost& weights) {
  weights.Store();
  if (model_.Parameters().Masters() == nullptr) return;
  optimizer_->RoundMasters();
  model_.Units().GatherUpdated();
}

namespace {

// Collective. Whether the checkpoint has weights alone, as that of an imported model has. One whose
// file cannot be read has not: what reads it says why.
bool LacksMoments(const comm::Communicator& world, const std::string& checkpoint) {
  bool none = false;
  world.Together([&] {
    if (!world.IsRoot()) return;
    try {
      none = checkpoint::TensorReader(checkpoint, "optimizer").Tensors().empty();
    } catch (const Error&) {
      none = false;
    }
  });
  return world.Max(none ? std::int64_t{1} : 0) == 1;
}

}  // namespace

void TrainingState::Load(const std::string& checkpoint, const std::function<void()>& between) {
  LoadWeights(checkpoint, between);
  const StateOnHost moments = Unfetched(MomentBlocks());
  if (LacksMoments(grid_.World(), checkpoint)) {
    for (const kernels::StateBlock& block : moments.Blocks()) {
      if (block.begin == block.end) continue;
      const auto count = static_cast<std::size_t>(block.end - block.begin);
      std::memset(block.data, 0, count * SizeOf(block.dtype));
    }
  } else {
    checkpoint::ReadTensors(grid_.World(), checkpoint, "optimizer", moments, between);
  }
  moments.Store();
}

void TrainingState::Load(const Fill& fill) {
  const StateOnHost weights = Unfetched(model_.Blocks());
  fill("model", weights);
  StoreWeights(weights);
  const StateOnHost moments = Unfetched(MomentBlocks());
  fill("optimizer", moments);
  moments.Store();
}

std::int64_t LargestOperand(const model::ModelPlan& plan) {
  const model::Options& o = plan.options;
  const std::int64_t widest = std::max({o.dim, 2 * o.ffn, (o.heads + 2 * o.kv_heads) * o.head_dim});
  return widest * std::max(plan.micro_batch * plan.length, o.dim);
}

device::MemoryTerms MemoryOf(const model::ParallelModel& model) {
  const model::ModelMemory memory = model.Memory();
  device::MemoryTerms terms{.parameters = memory.parameters,
                             .gradients = memory.gradients,
                             .activations = memory.activations,
                             .vocabulary_tile = memory.vocabulary_tile,
                             .key_value_cache = memory.key_value_cache,
                             .packed_weights = memory.packed_weights,
                             .gathered_parameters = memory.gathered_parameters,
                             .gradients_under_way = memory.gradients_under_way,
                             .exchange_buffers = memory.exchange};
  if (!model.Stream().OnGpu()) return terms;
  terms.gpu_libraries = comm::kGpuLibraryBytes;
  // Two operands of a product, a byte per number.
  if (model.Stream().fp8) terms.fp8_operands = 2 * LargestOperand(model.Plan());
  return terms;
}

void CheckInstructionSets(const comm::Communicator& world) {
  if (comm::SameEverywhere(world, device::InstructionSet())) return;
  const std::vector<std::string> sets = world.Gather(device::InstructionSet());
  const auto other = std::find_if(sets.begin(), sets.end(),
                                  [&](const std::string& set) { return set != sets.front(); });
  throw AgreedError(
      ExitCode::kBadInput,
      fmt::format("run.canonical: rank 0 has {}, but rank {} has {}: the bits would depend on who "
                  "computes what",
                  sets.front(), other - sets.begin(), *other),
      "Use nodes of one kind, or run.canonical = none.");
}

}  // namespace trireme::train
