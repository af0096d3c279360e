// PlanStage: one rank's part of a model. Checks of layouts.
#include "trireme/model/plan.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::model {

namespace {

constexpr std::int64_t kRoundsAStage = 8;  // micro-batches per stage in a round of an evaluation

// The blocks of each chunk of a stage, balanced by the costs of blocks, embedding and head.
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
  // A model for evaluation has nothing to shard but its parameters.
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
  shard.first_stage = at.pipeline == 0;
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
  stage.residual_rows *= plan.options.Streams();  // source rows, then target rows
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

// Checks that a layout suits a model, and suggestions of layouts that do.

namespace {

// Joins values as "1", "1 or 2", "1, 2 or 4".
std::string Alternatives(const std::vector<std::int64_t>& values) {
  if (values.size() < 2) return fmt::format("{}", fmt::join(values, ""));
  return fmt::format("{} or {}", fmt::join(values.begin(), values.end() - 1, ", "), values.back());
}

bool HeadsFit(const Options& o, std::int64_t tensor) {
  return o.heads % tensor == 0 && (o.kv_heads % tensor == 0 || tensor % o.kv_heads == 0);
}
// o.vocabulary = 0: not known yet, not checked.
bool TensorFits(const Options& o, std::int64_t tensor) {
  return HeadsFit(o, tensor) && tensor <= o.ffn && (o.vocabulary == 0 || tensor <= o.vocabulary);
}

// The at most three values up to `most` nearest to `wanted` that `fits` accepts, ascending.
template <typename Fits>
std::vector<std::int64_t> Nearest(std::int64_t wanted, std::int64_t most, Fits fits) {
  constexpr std::size_t kShown = 3;
  std::vector<std::int64_t> found;
  for (std::int64_t value = 1; value <= most; ++value) {
    if (fits(value)) found.push_back(value);
  }
  std::stable_sort(found.begin(), found.end(), [wanted](std::int64_t a, std::int64_t b) {
    return std::abs(a - wanted) < std::abs(b - wanted);
  });
  if (found.size() > kShown) found.resize(kShown);
  std::sort(found.begin(), found.end());
  return found;
}

void CheckTensor(const deck::Deck& deck, const Options& o, const comm::GridShape& grid) {
  const std::int64_t tensor = grid.tensor, ranks = grid.Ranks() / grid.pipeline;
  if (TensorFits(o, tensor)) return;
  std::string what;
  if (!HeadsFit(o, tensor)) {
    what = o.heads % tensor != 0
               ? fmt::format("{} tensor ranks do not divide model.heads = {}", tensor, o.heads)
               : fmt::format(
                     "{} tensor ranks neither divide model.kv_heads = {} nor are a multiple "
                     "of it",
                     tensor, o.kv_heads);
  } else {
    what = tensor > o.ffn
               ? fmt::format("more tensor ranks than model.ffn = {}", o.ffn)
               : fmt::format("more tensor ranks than the vocabulary's {} tokens", o.vocabulary);
  }
  const auto fits =
      Nearest(tensor, o.heads, [&](std::int64_t t) { return TensorFits(o, t) && ranks % t == 0; });
  throw deck.Complain("grid.tensor", what,
                      fmt::format("What fits this model and {} ranks: grid.tensor = {}.",
                                  grid.Ranks(), Alternatives(fits)));
}

void CheckStages(const deck::Deck& deck, const Options& o, const comm::GridShape& grid,
                 const parallel::PipelineShape& pipeline) {
  const std::int64_t most = o.Blocks() + 1;  // the last stage may hold the head alone
  if (pipeline.VirtualStages() <= most) return;
  const int stages = pipeline.stages, chunks = pipeline.chunks;
  const std::string cut = chunks > 1 ? fmt::format("{} stages of {} chunks", stages, chunks)
                                     : fmt::format("{} stages", stages);
  const std::int64_t ranks = grid.Ranks() / grid.tensor;
  const auto fewer = Nearest(stages, most, [&](std::int64_t p) { return ranks % p == 0; });
  std::string fits = fmt::format("grid.pipeline = {}", Alternatives(fewer));
  if (chunks > 1 && most / stages >= 2) {
    fits = fmt::format("pipeline.chunks = {} or less", most / stages);
  } else if (chunks > 1) {
    fits = "pipeline.schedule = 1f1b with one chunk per stage" +
           (most >= stages ? std::string() : " and " + fits);
  }
  throw deck.Complain(
      chunks > 1 ? "pipeline.chunks" : "grid.pipeline",
      fmt::format("{} are more than model.layers = {} and the head can fill", cut, o.layers),
      fmt::format("What fits {} ranks: {}; or model.layers = {} or more.", grid.Ranks(), fits,
                  pipeline.VirtualStages() - 1));
}

}  // namespace

bool LayoutFits(const Options& options, int chunks, std::int64_t tensor, std::int64_t pipeline) {
  return TensorFits(options, tensor) && pipeline <= (options.Blocks() + 1) / chunks;
}

// The interleaved schedule runs micro-batches in groups whose size is the number of stages.
void CheckMicroBatches(const deck::Deck& deck, const parallel::PipelineShape& pipeline,
                       std::int64_t data_ranks, std::int64_t share, std::int64_t micro_batch,
                       std::int64_t unit) {
  if (pipeline.kind != parallel::ScheduleKind::kInterleaved || pipeline.stages == 1) return;
  const auto count = [share](std::int64_t size) { return CeilDivide(share, size); };
  const auto fits = [&](std::int64_t size) { return count(size) % pipeline.stages == 0; };
  if (fits(micro_batch)) return;
  auto sizes = Nearest(CeilDivide(micro_batch, unit), CeilDivide(share, unit),
                       [&](std::int64_t units) { return fits(units * unit); });
  for (std::int64_t& size : sizes) size *= unit;
  const std::int64_t parts = count(micro_batch);
  throw deck.Complain(
      sizes.empty() ? "data.batch" : "data.micro_batch",
      fmt::format("{} micro-batch{} a step ({} window{} a data rank, {} at once) {} no multiple of "
                  "grid.pipeline = {}, which the interleaved schedule needs",
                  parts, parts == 1 ? "" : "es", share, share == 1 ? "" : "s", micro_batch,
                  parts == 1 ? "is" : "are", pipeline.stages),
      sizes.empty()
          ? fmt::format("What fits: data.batch = {} or more, or pipeline.schedule = 1f1b.",
                        data_ranks * pipeline.stages * unit)
          : fmt::format("What fits: data.micro_batch = {}, or pipeline.schedule = 1f1b.",
                        Alternatives(sizes)));
}

void CheckLayout(const deck::Deck& deck, const Options& options, const comm::GridShape& grid,
                 const parallel::PipelineShape& pipeline) {
  CheckTensor(deck, options, grid);
  CheckStages(deck, options, grid, pipeline);
}

}  // namespace trireme::model
