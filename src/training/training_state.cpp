#include "trireme/training/training_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/machine/node_memory.hpp"
#include "trireme/monitor/monitor.hpp"

namespace trireme::training {

namespace {

data::Sampler MakeSampler(std::int64_t tokens, const TrainingSetup& setup) {
  const std::int64_t length = setup.model.length;
  return data::Sampler({tokens, length, setup.stride == 0 ? length : setup.stride, setup.batch,
                        setup.model.seed, true});
}

// "moments and gradients", of what is stored once a shard group.
const char* WhatIsSharded(comm::Sharding sharding) {
  switch (sharding) {
    case comm::Sharding::kOptimizer:
      return "moments";
    case comm::Sharding::kGradients:
      return "moments and gradients";
    default:
      return "moments, gradients and parameters";
  }
}

// Of gradients on a GPU, whose network is faster: enough to fill it.
constexpr double kGpuBucketMib = 32;

// Micro-batches enough for a pipeline's bubble to stay small: (P - 1) / (M + P - 1) under a fifth.
constexpr std::int64_t kMicroBatchesAStage = 4;

// The micro-batch for a data rank's share of the batch: the deck's, no larger than the share; an
// automatic one is of whole units (canonical leaves), and such that a pipeline has enough of them.
std::int64_t ChooseMicroBatch(const input::Deck& deck, std::int64_t size, std::int64_t share,
                              std::int64_t unit, const parallel::PipelineShape& pipeline) {
  if (deck.Integer("data.micro_batch") != 0) return std::min(size, share);
  const std::int64_t all = CeilDivide(share, unit);  // in units from here on
  std::int64_t units = std::clamp<std::int64_t>(size / unit, 1, all);
  const auto sequences = [&] { return std::min(units * unit, share); };
  if (pipeline.stages == 1) return sequences();
  units = std::clamp<std::int64_t>(all / (kMicroBatchesAStage * pipeline.stages), 1, units);
  if (pipeline.kind != parallel::ScheduleKind::kInterleaved) return sequences();
  const auto fits = [&](std::int64_t candidate) {
    return CeilDivide(all, candidate) % pipeline.stages == 0;
  };
  const std::int64_t wanted = units;
  for (; units >= 1; --units) {
    if (fits(units)) return sequences();
  }
  for (units = wanted + 1; units <= all; ++units) {
    if (fits(units)) return sequences();
  }
  units = wanted;
  return sequences();  // none fits: CheckMicroBatches says so
}

}  // namespace

std::int64_t LargestShare(std::int64_t batch, int data_ranks, const model::Canonical& canonical) {
  if (!canonical.On()) return CeilDivide(batch, data_ranks);
  return std::min(batch, CanonicalShare(batch, 0, data_ranks, canonical).end);
}

Part CanonicalShare(std::int64_t batch, int rank, int data_ranks,
                    const model::Canonical& canonical) {
  const std::int64_t groups = canonical.data_groups / data_ranks;
  const std::int64_t size = groups * LeavesOfGroup(batch, canonical) * canonical.leaf;
  return {rank * size, (rank + 1) * size};
}

std::int64_t LeavesOfGroup(std::int64_t batch, const model::Canonical& canonical) {
  return CeilDivide(CeilDivide(batch, canonical.leaf), canonical.data_groups);
}

std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch,
                          const model::Canonical& canonical) {
  return CeilDivide(LargestShare(batch, data_ranks, canonical), micro_batch);
}

std::int64_t LargestOperand(const model::ModelSetup& setup) {
  const model::Options& o = setup.options;
  const std::int64_t widest = std::max({o.dim, 2 * o.ffn, (o.heads + 2 * o.kv_heads) * o.head_dim});
  return widest * std::max(setup.micro_batch * setup.length, o.dim);
}

void AddGpuTerms(const model::ModelSetup& setup,
                 std::vector<std::pair<std::string, std::int64_t>>& plan) {
  if (!setup.stream.OnGpu()) return;
  plan.emplace_back("GPU libraries", machine::kGpuLibraryBytes);
  // Two operands of a product, a byte a number.
  if (setup.stream.fp8) plan.emplace_back("fp8 operands", 2 * LargestOperand(setup));
}

TrainingSetup ReadTraining(job::Job& job, const comm::GridShape& grid, std::int64_t vocabulary,
                           std::int64_t tokens) {
  constexpr double kMib = 1024 * 1024;
  TrainingSetup setup;
  setup.pipeline = parallel::ReadPipeline(job.deck, grid.pipeline);
  const job::DataShape shape = job::ReadDataShape(job);
  setup.model = job::ReadModelSetup(job, vocabulary, shape);
  setup.stride = shape.stride;
  setup.batch = shape.batch;
  const data::Sampler sampler = MakeSampler(tokens, setup);
  const std::int64_t batch = std::min(shape.batch, sampler.Windows());
  setup.canonical = ReadCanonical(job.deck, setup.model.options, grid, batch, shape.length);
  const std::int64_t share = LargestShare(batch, grid.data, setup.canonical);
  std::int64_t& micro_batch = setup.model.micro_batch;
  const std::int64_t unit = setup.canonical.On() ? setup.canonical.leaf : 1;
  CheckLeaves(job.deck, setup.canonical);
  micro_batch = ChooseMicroBatch(job.deck, micro_batch, share, unit, setup.pipeline);
  model::CheckLayout(job.deck, setup.model.options, grid, setup.pipeline);
  model::CheckMicroBatches(job.deck, setup.pipeline, grid.data, share, micro_batch, unit);
  setup.optimizer = optimizer::ReadOptimizer(job.deck);
  setup.model.label_smoothing = setup.optimizer.label_smoothing;
  setup.schedule =
      optimizer::ReadSchedule(job.deck, setup.optimizer.learning_rate, sampler.StepsPerEpoch());
  const bool given = job.deck.Given("grid.bucket_mib") || !job.stream.OnGpu();
  const double mib = given ? job.deck.Real("grid.bucket_mib") : kGpuBucketMib;
  setup.bucket_bytes = static_cast<std::int64_t>(mib * kMib);
  setup.prefetch = static_cast<int>(job.deck.Integer("grid.prefetch"));
  setup.overlap = job.deck.Switch("grid.overlap");
  setup.keep_gradients = false;
  setup.products_file = job.deck.Text("run.products");
  setup.graphs = job.deck.Text("run.graphs") == "auto";
  return setup;
}

std::string DescribeLayout(const comm::ProcessGrid& grid, const TrainingSetup& setup,
                           std::int64_t micro_batches) {
  std::string text = comm::Describe(grid.Shape());
  if (grid.SequenceParallel()) text += ", sequence parallel";
  if (grid.Shards() != comm::Sharding::kNone) {
    const int ranks = grid.Shard().Size(), copies = grid.SameShard().Size();
    text += fmt::format("; {} sharded over {} rank{}", WhatIsSharded(grid.Shards()), ranks,
                        ranks == 1 ? "" : "s");
    if (copies > 1) text += fmt::format(", {} copies", copies);
  }
  const parallel::PipelineShape& pipeline = setup.pipeline;
  if (grid.Shape().pipeline > 1) {
    text += fmt::format("; {}", parallel::NameOf(pipeline.kind));
    if (pipeline.chunks > 1) text += fmt::format(" of {} chunks", pipeline.chunks);
    text += fmt::format(", {} micro-batch{}", monitor::WithThousands(micro_batches),
                        micro_batches == 1 ? "" : "es");
  }
  if (setup.model.options.recompute != model::Recompute::kNone) {
    text += fmt::format("; recompute {}", model::NameOf(setup.model.options.recompute));
  }
  return text;
}

TrainingState::TrainingState(const comm::ProcessGrid& grid, const data::TokenFile& tokens,
                             const TrainingSetup& setup)
    : grid_(grid),
      sampler_(MakeSampler(tokens.Size(data::Split::kTrain), setup)),
      schedule_(setup.schedule),
      drain_(setup.model.stream, [&grid] { grid.GiveUp(); }) {
  if (setup.canonical.On()) CheckInstructionSets(grid.World());
  const int data_ranks = grid.Shape().data;
  const model::Canonical& canonical = setup.canonical;
  model::ModelSetup model = setup.model;
  const std::int64_t batch = std::min(setup.batch, sampler_.Windows());  // the most of any step
  model.micro_batch = std::min(model.micro_batch, LargestShare(batch, data_ranks, canonical));
  parallel::PipelineShape pipeline = setup.pipeline;
  pipeline.stages = grid.Shape().pipeline;
  pipeline.micro_batches =
      static_cast<int>(MicroBatches(batch, data_ranks, model.micro_batch, canonical));
  if (canonical.On()) {
    model.leaves = static_cast<int>(CeilDivide(model.micro_batch, canonical.leaf));
    model.micro_batch = std::min(model.micro_batch, canonical.leaf);
  }
  model.shard.bucket_bytes = setup.bucket_bytes;
  model.shard.prefetch = setup.prefetch;
  model.shard.overlap = setup.overlap;
  model.shard.whole_parameters = optimizer::NeedsWholeParameters(setup.optimizer.kind);
  model.allocate = false;
  model_ = std::make_unique<model::ParallelModel>(grid, model, pipeline, canonical);
  grid.World().Together([&] {
    model_->Allocate();
    kernels::Products* const products = model_->Setup().stream.products;
    if (products != nullptr) products->Reserve(LargestOperand(model_->Setup()));
    optimizer_ = std::make_unique<optimizer::Optimizer>(setup.optimizer, model_->Parameters(),
                                                        model_->Setup().stream);
    buckets_ = std::make_unique<parallel::GradientBuckets>(
        grid.Over(comm::Group::kData), grid.Over(comm::Group::kShard), model_->Parameters(),
        model_->Setup().stream, model_->Setup().shard, &model_->Shared());
    step_ = std::make_unique<TrainingStep>(tokens, sampler_, *model_, *optimizer_, schedule_,
                                           *buckets_, batch, setup.keep_gradients, setup.graphs,
                                           setup.products_file);
  });
  CheckMemory(setup);
}

std::vector<std::pair<std::string, std::int64_t>> TrainingState::MemoryPlan() const {
  auto plan = model_->MemoryPlan();
  plan.insert(plan.begin() + 2, {"moments", optimizer_->Bytes()});
  const std::int64_t exchange = buckets_->Bytes();
  AddGpuTerms(model_->Setup(), plan);
  if (exchange == 0) return plan;
  const char* const name = "exchange buffers";
  const auto model =
      std::find_if(plan.begin(), plan.end(), [&](const auto& term) { return term.first == name; });
  if (model == plan.end()) {
    plan.emplace_back(name, exchange);
  } else {
    model->second += exchange;
  }
  return plan;
}

void TrainingState::CheckMemory(const TrainingSetup& setup) const {
  if (setup.node == nullptr) return;
  const machine::NodeDemand demand =
      machine::DemandOf(*setup.node, MemoryPlan(), setup.model.stream);
  grid_.World().Together([&] { machine::CheckNodeMemory(demand, grid_, setup.canonical.On()); });
}

StepResult TrainingState::Run(std::int64_t step, const Requests& mine) {
  return step_->Run(step, mine);
}

StateOnHost TrainingState::Unfetched(std::vector<tensor::StateBlock> blocks) const {
  return {model_->Setup().stream, std::move(blocks)};
}

std::vector<tensor::StateBlock> TrainingState::MomentBlocks() const {
  return optimizer_->Blocks(grid_.Data().Rank(), grid_.Data().Size(), grid_.Shard().Size());
}

StateOnHost TrainingState::ModelBlocks() { return Unfetched(model_->Blocks()).Fetch(); }

StateOnHost TrainingState::OptimizerBlocks() const { return Unfetched(MomentBlocks()).Fetch(); }

StateOnHost TrainingState::GradientBlocks() const {
  return Unfetched(model_->Parameters().GradientBlocks(grid_.Data().Rank(), grid_.Data().Size(),
                                                       grid_.Shard().Size()))
      .Fetch();
}

void TrainingState::LoadWeights(const std::string& checkpoint) {
  const StateOnHost weights = Unfetched(model_->Blocks());
  checkpoint::ReadTensors(grid_.World(), checkpoint, "model", weights);
  weights.Store();
  if (model_->Parameters().Masters() == nullptr) return;
  optimizer_->RoundMasters();
  model_->Units().GatherUpdated();
}

void TrainingState::Load(const std::string& checkpoint) {
  LoadWeights(checkpoint);
  const StateOnHost moments = Unfetched(MomentBlocks());
  checkpoint::ReadTensors(grid_.World(), checkpoint, "optimizer", moments);
  moments.Store();
}

}  // namespace trireme::training
