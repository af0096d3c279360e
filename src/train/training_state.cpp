// TrainingState: construction, the collective tasks of a step, and the content of checkpoints.
#include "trireme/train/training_state.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "trireme/base/dtype.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::train {

TrainingState::TrainingState(const comm::ProcessGrid& grid, const TrainingPlan& plan,
                             const device::Stream& stream, const std::function<void()>& between)
    : grid_(grid),
      plan_(plan),
      model_(grid, plan.model, stream, between),
      drain_(stream, [&grid] { grid.GiveUp(); }) {
  // If the memory of one rank does not suffice, all ranks throw and name that rank.
  grid.World().Together([&] {
    if (kernels::Libraries* const libraries = kernels::LibrariesOf(stream)) {
      libraries->Reserve(LargestOperand(plan.model));
      libraries->KeepWeights(model_.SteadyLayers());
    }
    optimizer_ = std::make_unique<Optimizer>(plan.options.optimizer, model_.Parameters(),
                                             model_.Stream(), grid.Over(comm::Group::kTensor));
  });
}

BatchShare TrainingState::Share() const {
  const parallel::ShardedUnits& units = model_.Units();
  return {.rank = grid_.Coordinates().data,
          .ranks = grid_.Shape().data,
          .batch = plan_.Batch(),
          .micro_batch = plan_.model.micro_batch,
          .leaves = plan_.model.leaves,
          .alike = units.ValuesSharded() || units.GradientsSharded(),
          .canonical = plan_.model.canonical,
          .pipeline = plan_.model.pipeline};
}

device::MemoryTerms TrainingState::Memory() const {
  device::MemoryTerms terms = MemoryOf(model_);
  terms.moments = optimizer_->Bytes();
  terms.mpi_buffers = model_.Buckets().LibraryBytes() + model_.Units().LibraryBytes();
  if (Stream().fp8) terms.fp8_operands += kernels::KeptWeightBytes(model_.SteadyLayers());
  // (The state of a GPU is copied to the host, which is not counted.)
  if (plan_.options.async_checkpoints && !Stream().OnGpu()) {
    terms.checkpoint_copy =
        checkpoint::CopyBytes(model_.Blocks()) + checkpoint::CopyBytes(MomentBlocks());
  }
  return terms;
}

void TrainingState::QueueGradients(model::StagedBatches::Taken entries) {
  model_.BeginStep();
  parallel::GradientBuckets* const buckets = &model_.Buckets();
  buckets->Begin();
  model::GradientsReady ready;
  if (!plan_.model.canonical.On()) ready = [=](std::int64_t begin) { buckets->Ready(begin); };
  model_.Tasks().StartTrain(std::move(entries), ready);
  // Sums the rest, such as the first stage's embedding. A rank without samples contributes zeros.
  buckets->Ready(0);
}

void TrainingState::QueueSums(std::int64_t step) {
  model_.Units().FinishGradients();
  model_.Buckets().Wait();
  model_.SumSharedGradients();
  optimizer_->DropGradients({plan_.model.options.weight_dropout, plan_.model.seed, step});
  optimizer_->QueueSquares();
  if (kernels::Libraries* const libraries = kernels::LibrariesOf(Stream())) {
    libraries->QueueLargest(Stream());
  }
}

const std::string& TrainingState::NotFinite() const {
  const std::string& summed = model_.Buckets().NotFinite();
  return summed.empty() ? model_.Units().NotFinite() : summed;
}

void TrainingState::Agree(std::array<double, kAgreed>& sums) const {
  grid_.Over(comm::Group::kWorld).AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
}

// All stages and tensor ranks of a replica have the same windows, so only the first ones count.
// Sums of integers below 2^53 are exact in any order.
void TrainingState::SumOfBatch(std::array<std::int64_t, kCounts>& counts) const {
  const bool counted = grid_.Coordinates().pipeline == 0 && grid_.Coordinates().tensor == 0;
  std::array<double, kCounts> sums{};
  if (counted) std::copy(counts.begin(), counts.end(), sums.begin());
  grid_.Over(comm::Group::kWorld).AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
  std::transform(sums.begin(), sums.end(), counts.begin(),
                 [](double sum) { return static_cast<std::int64_t>(sum); });
}

// Each element counts once: sums over shard and replica groups cover all shards, stages and slices.
// With run.canonical the sum is exact, and so the same in every layout.
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
  // Each replica has its own sum, perhaps in another order, but all must clip alike: rank 0's sum
  // is broadcast. A sum that is not finite on this rank alone is kept for the following agreement.
  double squares = mine;
  grid_.Over(comm::Group::kWorld).Broadcast(Dtype::kFloat64, &squares, 1, 0);
  if (!std::isfinite(mine)) squares = mine;
  return std::sqrt(squares) / static_cast<double>(targets);
}

void TrainingState::Update(std::int64_t step, double learning_rate, double norm,
                           std::int64_t targets) {
  FinishUpdate();  // without samples, no forward pass has waited for the previous step's gathers
  optimizer_->Step(step, learning_rate, norm, targets, !plan_.options.keep_gradients);
  model_.Units().GatherUpdated();
  UpdateScales();
}

void TrainingState::ExchangeAverage() {
  if (!Averages()) return;
  FinishUpdate();
  optimizer_->ExchangeAverage();
  model_.Units().GatherUpdated();
  FinishUpdate();
}

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

// Maxima over all ranks: a tensor's scale must not depend on which rank holds which part of it.
void TrainingState::UpdateScales() {
  kernels::Libraries* const libraries = kernels::LibrariesOf(Stream());
  if (libraries == nullptr) return;
  const std::span<float> largest = libraries->Largest();
  if (largest.empty()) return;
  grid_.Over(comm::Group::kWorld)
      .AllReduce(Dtype::kFloat32, largest.data(), std::ssize(largest), comm::Reduction::kMax);
  libraries->UpdateScales(Stream());
}

std::vector<kernels::StateBlock> TrainingState::MomentBlocks() const {
  return optimizer_->Blocks(grid_.Data().Rank(), grid_.Data().Size(), grid_.Shard().Size());
}

checkpoint::State TrainingState::CheckpointState() {
  return StateToRead(Stream(), model_.Blocks(), MomentBlocks());
}

checkpoint::State TrainingState::ReplicatedState() {
  FinishUpdate();
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

std::vector<kernels::StateBlock> TrainingState::SumBlocks() const {
  return model_.Parameters().GradientBlocks(grid_.Data().Rank(), grid_.Data().Size(),
                                            grid_.Shard().Size());
}

checkpoint::State TrainingState::GradientState() const {
  return StateToRead(Stream(), SumBlocks(), {});
}

StateOnHost TrainingState::ModelBlocks() { return StateOnHost(Stream(), model_.Blocks()).Fetch(); }
StateOnHost TrainingState::OptimizerBlocks() const {
  return StateOnHost(Stream(), MomentBlocks()).Fetch();
}
StateOnHost TrainingState::GradientBlocks() const {
  return StateOnHost(Stream(), SumBlocks()).Fetch();
}

bool TrainingState::LoadWeights(const std::string& checkpoint,
                                const std::function<void()>& between) {
  const StateOnHost weights(Stream(), model_.Blocks());
  const bool averages = checkpoint::ReadWeights(grid_.World(), checkpoint, weights, between);
  StoreWeights(weights);
  return averages;
}

void TrainingState::StoreWeights(const StateOnHost& weights) {
  FinishUpdate();
  weights.Store();
  optimizer_->FollowWeights();
  if (model_.Parameters().Masters() == nullptr) return;
  optimizer_->RoundMasters();
  model_.Units().GatherUpdated();
  FinishUpdate();
}

namespace {

// Whether the checkpoint has no tensors of `file`: of "optimizer", if it has weights only, like
// that of an imported model. Collective. False if they cannot be read: reading them later gives the
// reason.
bool Lacks(const comm::Communicator& world, const std::string& checkpoint,
           const std::string& file) {
  bool none = false;
  world.Together([&] {
    if (!world.IsRoot()) return;
    try {
      none = checkpoint::TensorReader(checkpoint, file).Tensors().empty();
    } catch (const Error&) {
    }
  });
  return world.Max(std::int64_t{none}) == 1;
}

constexpr std::int64_t kAlignment = 64;  // bytes, of each block's copy

std::int64_t Bytes(const kernels::StateBlock& block) {
  return (block.end - block.begin) * static_cast<std::int64_t>(SizeOf(block.dtype));
}

// Reads blocks from the device's memory through two page-locked buffers: the host empties one while
// the device fills the other.
class DeviceReader {
 public:
  DeviceReader(const device::Stream& stream, const std::vector<kernels::StateBlock>& blocks)
      : stream_(stream) {
    for (const kernels::StateBlock& block : blocks) stored_[block.data] = block.dtype;
    for (device::PinnedBuffer& buffer : buffers_) {
      buffer = device::AllocatePinned(kBounceBytes, stream.Where());
    }
  }

  // Reads elements [first, last) of a block into `to`, in the type of sums (SumTypeOf).
  void Read(const kernels::StateBlock& block, std::int64_t first, std::int64_t last, void* to) {
    const Dtype stored = stored_.at(block.data);
    const auto size = static_cast<std::int64_t>(SizeOf(stored));
    const auto wide = static_cast<std::int64_t>(SizeOf(block.dtype));
    const std::int64_t step = kBounceBytes / size;
    const auto start = [&](std::int64_t at, std::size_t buffer) {
      const std::int64_t count = std::min(step, last - at);
      device::StartCopyOut(stream_,
                           static_cast<const std::byte*>(block.data) + (at - block.begin) * size,
                           buffers_[buffer].get(), count * size);
    };
    if (first < last) start(first, 0);
    std::size_t buffer = 0;
    for (std::int64_t at = first; at < last; at += step, buffer = 1 - buffer) {
      device::Synchronise(stream_);
      if (at + step < last) start(at + step, 1 - buffer);
      const std::int64_t count = std::min(step, last - at);
      auto* out = static_cast<std::byte*>(to) + (at - first) * wide;
      const void* in = buffers_[buffer].get();
      if (stored == block.dtype) {
        std::memcpy(out, in, static_cast<std::size_t>(count * size));
      } else {
        const auto* narrow = static_cast<const std::uint16_t*>(in);
        std::transform(narrow, narrow + count, reinterpret_cast<float*>(out), FromBfloat16);
      }
    }
  }

 private:
  static constexpr std::int64_t kBounceBytes = std::int64_t{1} << 20;

  device::Stream stream_;
  std::map<const void*, Dtype> stored_;  // type of each block on the device
  std::array<device::PinnedBuffer, 2> buffers_;
};

}  // namespace

void TrainingState::Load(const std::string& checkpoint, const std::function<void()>& between) {
  const comm::Communicator& world = grid_.World();
  const bool has_average = Averages() && !Lacks(world, checkpoint, checkpoint::kAverage);
  const auto fill = [&](const std::string& file, const std::vector<kernels::StateBlock>& blocks) {
    if (file == "model" || !Lacks(world, checkpoint, file)) {
      return checkpoint::ReadTensors(world, checkpoint, file, blocks, between);
    }
    for (const kernels::StateBlock& block : blocks) {
      if (block.begin < block.end)
        std::memset(block.data, 0, static_cast<std::size_t>(Bytes(block)));
    }
  };
  Load(fill, has_average);
}

void TrainingState::Load(const Fill& fill, bool has_average) {
  const StateOnHost weights(Stream(), model_.Blocks());
  fill("model", weights);
  StoreWeights(weights);
  const StateOnHost moments(Stream(), MomentBlocks());
  std::vector<kernels::StateBlock> wanted = moments.Blocks();
  const bool begins = Averages() && !has_average;
  if (begins) {  // the average's blocks come first
    wanted.erase(wanted.begin(), wanted.begin() + std::ssize(model_.Parameters().Parameters()));
  }
  fill("optimizer", wanted);
  moments.Store();
  if (begins) optimizer_->FollowWeights();
}

std::int64_t LargestOperand(const model::ModelPlan& plan) {
  const model::Options& o = plan.options;
  const std::int64_t widest = std::max({o.dim, 2 * o.ffn, (o.heads + 2 * o.kv_heads) * o.head_dim});
  return widest * std::max(plan.micro_batch * plan.length, o.dim);
}

device::MemoryTerms MemoryOf(const model::ParallelModel& model) {
  device::MemoryTerms terms = model.Memory();
  if (!model.Stream().OnGpu()) return terms;
  terms.gpu_libraries = comm::kGpuLibraryBytes;
  // Two operands of a product, one byte per element.
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

StateOnHost::StateOnHost(const device::Stream& stream, std::vector<kernels::StateBlock> blocks)
    : stream_(stream), there_(std::move(blocks)), here_(there_) {
  if (!stream.OnGpu()) return;
  std::int64_t bytes = 0;
  for (kernels::StateBlock& block : here_) {
    block.dtype = SumTypeOf(block.dtype);
    bytes += CeilDivide(Bytes(block), kAlignment) * kAlignment;
  }
  memory_ = device::AllocateZeroed(bytes);
  auto* next = static_cast<std::byte*>(memory_.get());
  for (kernels::StateBlock& block : here_) {
    block.data = next;
    next += CeilDivide(Bytes(block), kAlignment) * kAlignment;
  }
}

StateOnHost StateOnHost::Fetch() && {
  for (std::size_t i = 0; stream_.OnGpu() && i < here_.size(); ++i) {
    const kernels::StateBlock &from = there_[i], &to = here_[i];
    if (from.dtype == to.dtype) {
      device::CopyOut(stream_, from.data, to.data, Bytes(from));
      continue;
    }
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(from.end - from.begin));
    device::CopyOut(stream_, from.data, narrow.data(), Bytes(from));
    std::ranges::transform(narrow, static_cast<float*>(to.data), FromBfloat16);
  }
  return std::move(*this);
}

void StateOnHost::Store() const {
  for (std::size_t i = 0; stream_.OnGpu() && i < here_.size(); ++i) {
    const kernels::StateBlock &to = there_[i], &from = here_[i];
    if (from.dtype == to.dtype) {
      device::CopyIn(stream_, from.data, to.data, Bytes(to));
      continue;
    }
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(from.end - from.begin));
    std::transform(static_cast<const float*>(from.data),
                   static_cast<const float*>(from.data) + narrow.size(), narrow.begin(),
                   RoundToBfloat16);
    device::CopyIn(stream_, narrow.data(), to.data, Bytes(to));
  }
}

checkpoint::State StateToRead(const device::Stream& stream, std::vector<kernels::StateBlock> model,
                              std::vector<kernels::StateBlock> optimizer) {
  if (!stream.OnGpu()) return {std::move(model), std::move(optimizer), {}};
  std::vector<kernels::StateBlock> all = model;
  all.insert(all.end(), optimizer.begin(), optimizer.end());
  const auto reader = std::make_shared<DeviceReader>(stream, all);
  for (auto* blocks : {&model, &optimizer}) {
    for (kernels::StateBlock& block : *blocks) block.dtype = SumTypeOf(block.dtype);
  }
  return {std::move(model), std::move(optimizer),
          [reader](const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                   void* to) { reader->Read(block, first, last, to); }};
}

}  // namespace trireme::train
