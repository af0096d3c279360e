#include "trireme/model/parallel_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/kernels/products.hpp"

namespace trireme::model {

namespace {

// This stage's blocks, chunk by chunk.
std::vector<Part> ChunksOf(const Options& options, std::int64_t length,
                           const parallel::PipelineShape& shape, int stage) {
  const PartCosts costs = CostsPerToken(options, length);
  const std::vector<Part> parts = parallel::BalanceStages(options.layers, shape.VirtualStages(),
                                                          costs.block, costs.embedding, costs.head);
  std::vector<Part> chunks;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    chunks.push_back(parts.at(static_cast<std::size_t>(chunk * shape.stages + stage)));
  }
  return chunks;
}

// Whether what follows is learned from.
void SetTraining(const ModelSetup& setup, bool training) {
  if (setup.stream.products != nullptr) setup.stream.products->SetTraining(training);
}

}  // namespace

namespace {

// Elements of a stream between tensor ranks, counting the largest part for each rank.
std::int64_t ExchangeElements(const comm::ProcessGrid& grid, const ModelSetup& setup) {
  const comm::GridShape& shape = grid.Shape();
  const Positions own = PositionsOf(setup.length, grid.Coordinates().context, shape.context);
  const std::int64_t rows = setup.micro_batch * own.Count();
  return CeilDivide(rows, shape.tensor) * shape.tensor * setup.options.dim;
}

parallel::TensorGroup TensorGroupOf(const comm::ProcessGrid& grid, const ModelSetup& setup,
                                    const Canonical& canonical) {
  const comm::Collectives over = grid.Over(comm::Group::kTensor);
  if (!canonical.On()) return {over, grid.SequenceParallel()};
  return {
      over, grid.SequenceParallel(), canonical.slices,
      parallel::TreeCollectives(over, setup.stream, setup.dtype, ExchangeElements(grid, setup))};
}

}  // namespace

ParallelModel::ParallelModel(const comm::ProcessGrid& grid, ModelSetup setup,
                             const parallel::PipelineShape& pipeline, const Canonical& canonical)
    : grid_(grid),
      canonical_(canonical),
      tensor_(TensorGroupOf(grid, setup, canonical)),
      context_(grid.Over(comm::Group::kContext), setup.length),
      key_value_(grid.KeyValueGroup(setup.options.kv_heads)),
      done_(setup.stream),
      key_value_channel_(grid.ChannelOver(key_value_, comm::Group::kKeyValue)),
      drain_(setup.stream, [&grid] { grid.GiveUp(); }) {
  grid.World().Together([&] {
    parallel::PipelineShape shape = pipeline;
    shape.stages = grid.Shape().pipeline;
    setup.tensor = &tensor_;
    setup.context = &context_;
    setup.stage = grid.Coordinates().pipeline;
    setup.stages = shape.stages;
    setup.chunks = ChunksOf(setup.options, setup.length, shape, setup.stage);
    setup.stream.canonical = canonical.On();
    setup.groups = canonical.On() ? canonical.data_groups / grid.Shape().data : 1;
    parallel::ShardSetup& shard = setup.shard;
    // A model that does not learn has nothing to share out but its parameters.
    shard.sharding = setup.training || grid.Shards() == comm::Sharding::kParameters
                         ? grid.Shards()
                         : comm::Sharding::kNone;
    shard.training = setup.training;
    shard.rank = grid.Shard().Rank();
    shard.ranks = grid.Shard().Size();
    shard.tensor_ranks = grid.Shape().tensor;
    shard.canonical = canonical.On();
    shard.gradient_levels = parallel::LeafSums::Levels(setup.groups);
    pipeline_ = std::make_unique<parallel::Pipeline>(grid.Over(comm::Group::kPipeline), shape,
                                                     setup.dtype, StreamRows(setup) * setup.leaves,
                                                     setup.options.dim, setup.stream.Where());
    setup.slots = pipeline_->TrainingProgram(pipeline_->Shape().micro_batches).slots;
    setup.progress = [this] {
      pipeline_->Progress();
      units_->Progress();
    };
    const bool allocate = std::exchange(setup.allocate, false);
    part_ = std::make_unique<Model>(setup);
    std::map<tensor::GradientSum, comm::Collectives> groups;  // a model that learns has gradients
    if (setup.training) {
      groups = {{tensor::GradientSum::kTensor, grid.Over(comm::Group::kTensor)},
                {tensor::GradientSum::kKeyValue,
                 {key_value_, comm::Group::kKeyValue, grid.Traffic(), key_value_channel_.get()}},
                {tensor::GradientSum::kTied, grid.Over(comm::Group::kEmbedding)}};
    }
    shared_ = std::make_unique<parallel::SharedGradients>(
        part_->Parameters(), groups, shard.sharding != comm::Sharding::kNone, setup.stream);
    units_ = std::make_unique<parallel::ShardedUnits>(
        grid.Over(comm::Group::kShard), part_->Parameters(), setup.stream, shard, shared_.get());
    part_->SetAccess(units_.get());
    if (allocate) Allocate();
  });
}

void ParallelModel::Allocate() { part_->Allocate(); }

std::int64_t ParallelModel::LengthHere(const ModelSetup& setup) const {
  return context_.Active() ? context_.Own().Count() : setup.length;
}

std::int64_t ParallelModel::StreamRows(const ModelSetup& setup) const {
  return tensor_.MostRows(setup.micro_batch * LengthHere(setup));
}

void ParallelModel::BeginStep() {
  // Sharded gradients are cleared by who collects them.
  if (!units_->GradientsSharded()) part_->Parameters().ZeroGradients();
  units_->BeginStep();
}

ExactSum ParallelModel::FinishLoss() {
  if (const device::Stream& stream = Setup().stream; stream.OnGpu()) {
    done_.Record(stream.gpu->queue);
    grid_.Await(done_);
  }
  return grid_.LastStage() && tensor_.Rank() == 0 ? part_->SummedLoss() : ExactSum();
}

int ParallelModel::MicroBatches(std::span<const data::MicroBatch> batches) const {
  return static_cast<int>(std::ssize(batches)) / Setup().leaves;
}

// What will be gathered, and when.
void ParallelModel::Announce(const parallel::Program& program) {
  if (units_->ValuesSharded()) units_->BeginTasks(part_->UsesOf(program));
}

ExactSum ParallelModel::Train(std::span<const data::MicroBatch> batches,
                              const GradientsReady& ready) {
  if (batches.empty()) return {};
  StartTrain(batches, ready);
  return FinishLoss();
}

void ParallelModel::StartTrain(std::span<const data::MicroBatch> batches,
                               const GradientsReady& ready) {
  if (batches.empty()) return;  // all ranks of the replica see this
  const int count = MicroBatches(batches);
  SetTraining(Setup(), true);
  part_->Begin(batches, ready, nullptr);
  Announce(pipeline_->TrainingProgram(count));
  pipeline_->Train(count, *part_);
  part_->FinishLeaves();
}

void ParallelModel::Evaluate(std::span<const data::MicroBatch> batches) {
  const int count = MicroBatches(batches);
  SetTraining(Setup(), false);
  Announce(pipeline_->EvaluationProgram(count));
  pipeline_->ReceiveLate(Setup().stream.OnGpu());
  pipeline_->Evaluate(count, *part_);
}

ExactSum ParallelModel::Loss(std::span<const data::MicroBatch> batches, double* losses) {
  if (batches.empty()) return {};
  part_->Begin(batches, {}, losses);
  Evaluate(batches);
  return FinishLoss();
}

// What this context rank holds of a batch of one whole sequence, padded to the length of the
// ring's.
data::MicroBatch ParallelModel::LocalPart(const data::MicroBatch& batch) const {
  data::MicroBatch local = batch;
  local.positions = context_.Own();
  local.length = local.positions.Count();
  local.inputs.clear();
  local.targets.assign(static_cast<std::size_t>(local.length), data::kMasked);
  for (std::int64_t p = 0; p < local.length; ++p) {
    const std::int64_t at = local.positions.At(p);
    local.inputs.push_back(at < batch.length ? batch.inputs[static_cast<std::size_t>(at)] : 0);
  }
  return local;
}

// The context rank that holds a position, and where in its part.
std::pair<int, std::int64_t> ParallelModel::Find(std::int64_t position) const {
  for (int rank = 0; rank < context_.Size(); ++rank) {
    const Positions held = PositionsOf(Setup().length, rank, context_.Size());
    for (std::int64_t p = 0; p < held.Count(); ++p) {
      if (held.At(p) == position) return {rank, p};
    }
  }
  throw RunError(fmt::format("no rank holds position {}", position));
}

std::vector<double> ParallelModel::Logits(const data::MicroBatch& batch, std::int64_t position) {
  int owner = 0;
  std::vector<data::MicroBatch> entries(static_cast<std::size_t>(Setup().leaves));
  entries.front() = batch;
  if (context_.Active()) {
    entries.front() = LocalPart(batch);
    std::tie(owner, position) = Find(position);
    if (grid_.Coordinates().context != owner) position = 0;  // something; not looked at
  }
  part_->BeginLogits(entries, position);
  Evaluate(entries);
  const std::int64_t vocabulary = Setup().options.vocabulary;
  std::vector<double> logits(static_cast<std::size_t>(vocabulary));
  if (grid_.LastStage()) {
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < tensor_.Size(); ++rank) {
      counts.push_back(PartOf(vocabulary, rank, tensor_.Size()).Size());
    }
    std::ranges::copy(part_->LogitsSlice(), logits.data() + part_->VocabularySlice().begin);
    tensor_.Transfers().OnHost().AllGatherInPlace(Dtype::kFloat64, logits.data(), counts);
  }
  grid_.Over(comm::Group::kPipeline)
      .OnHost()
      .Broadcast(Dtype::kFloat64, logits.data(), vocabulary, grid_.Shape().pipeline - 1);
  grid_.Over(comm::Group::kContext)
      .OnHost()
      .Broadcast(Dtype::kFloat64, logits.data(), vocabulary, owner);
  return logits;
}

void ParallelModel::SumSharedGradients() {
  part_->AddSecondGradient();
  shared_->Sum();
}

std::vector<tensor::StateBlock> ParallelModel::Blocks() {
  return part_->Parameters().ValueBlocks(grid_.Data().Rank(), grid_.Data().Size(),
                                         grid_.Shard().Size());
}

std::vector<std::pair<std::string, std::int64_t>> ParallelModel::MemoryPlan() const {
  auto plan = part_->MemoryPlan();
  const auto add = [&plan](const char* term, std::int64_t bytes) {
    if (bytes > 0) plan.emplace_back(term, bytes);
  };
  add("gathered parameters", units_->GatherBytes());
  add("gradients under way", units_->GradientBytes());
  add("exchange buffers", pipeline_->Bytes() + shared_->Bytes() + tensor_.Bytes());
  return plan;
}

}  // namespace trireme::model
