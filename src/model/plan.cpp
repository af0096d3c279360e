// One rank's part of a model, from the plan of the whole.
#include "trireme/model/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/device/arena.hpp"

namespace trireme::model {

namespace {

constexpr std::int64_t kRoundsAStage = 8;  // micro-batches of an evaluation at once

// Blocks of each of a stage's chunks, by what blocks, embedding and head cost.
std::vector<Part> ChunksOf(const ModelPlan& plan, int stage) {
  const parallel::PipelineShape& shape = plan.pipeline;
  const PartCosts costs = CostsPerToken(plan.options, plan.length);
  const std::vector<Part> parts = parallel::BalanceStages(
      plan.options.Blocks(), shape.VirtualStages(), costs.block, costs.embedding, costs.head);
  std::vector<Part> chunks;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    chunks.push_back(parts.at(static_cast<std::size_t>(chunk * shape.stages + stage)));
  }
  return chunks;
}

parallel::ShardSetup ShardOf(const ModelPlan& plan, const comm::GridShape& grid,
                             const comm::GridOptions& options, const comm::GridShape& at) {
  parallel::ShardSetup shard;
  // A model that does not learn has nothing to share out but its parameters.
  if (plan.training || options.sharding == comm::Sharding::kParameters) {
    shard.sharding = options.sharding;
  }
  shard.ranks = comm::ShardRanks(grid, options);
  shard.rank = (at.data * grid.context + at.context) % shard.ranks;
  shard.tensor_ranks = grid.tensor;
  shard.bucket_bytes = plan.bucket_bytes;
  shard.whole_parameters = plan.whole_parameters;
  shard.prefetch = plan.prefetch;
  shard.overlap = plan.overlap;
  shard.canonical = plan.canonical.On();
  shard.training = plan.training;
  return shard;
}

void PlanCheck(const ModelPlan& plan, const comm::GridShape& grid) {
  if (plan.pipeline.stages != grid.pipeline) {
    throw RunError(fmt::format("a model planned for {} pipeline stages on a grid of {}",
                               plan.pipeline.stages, comm::Describe(grid)),
                   "This is a bug in Trireme.");
  }
  if (plan.canonical.On() && plan.canonical.data_groups % grid.data != 0) {
    throw RunError(fmt::format("{} canonical groups of leaves on {} data ranks",
                               plan.canonical.data_groups, grid.data),
                   "This is a bug in Trireme.");
  }
}

}  // namespace

StagePlan PlanStage(const ModelPlan& plan, const comm::GridShape& grid,
                    const comm::GridOptions& options, int rank) {
  PlanCheck(plan, grid);
  const comm::GridShape at = comm::Locate(rank, grid);
  StagePlan stage;
  stage.stage = at.pipeline;
  stage.stages = grid.pipeline;
  stage.pipeline = plan.pipeline;
  stage.pipeline.micro_batches =
      parallel::PaddedMicroBatches(plan.pipeline, std::max(plan.pipeline.micro_batches, 1));
  stage.chunks = ChunksOf(plan, at.pipeline);
  stage.slots = parallel::MakeProgram(stage.pipeline, at.pipeline).slots;
  stage.positions = PositionsOf(plan.length, at.context, grid.context);
  stage.tokens = plan.micro_batch * stage.Length();
  if (plan.tokens > 0) stage.tokens = std::min(stage.tokens, plan.tokens);
  stage.evaluation_entries = kRoundsAStage * grid.pipeline * plan.leaves;
  stage.entries =
      std::max<std::int64_t>(stage.pipeline.micro_batches * plan.leaves, stage.evaluation_entries);
  const bool cut = options.sequence_parallel && grid.tensor > 1;
  stage.residual_rows = cut ? CeilDivide(stage.tokens, std::int64_t{grid.tensor}) : stage.tokens;
  // Source rows, then target rows.
  if (plan.options.Translates()) stage.residual_rows *= 2;
  stage.groups = plan.canonical.On() ? plan.canonical.data_groups / grid.data : 1;
  stage.shard = ShardOf(plan, grid, options, at);
  stage.shard.gradient_levels = parallel::LeafSums::Levels(stage.groups);
  return stage;
}

std::int64_t BufferBytes(std::int64_t bytes) {
  device::Arena measuring = device::Arena::Measuring();
  measuring.Allocate(std::max<std::int64_t>(bytes, 1));
  return measuring.Peak();
}

}  // namespace trireme::model
