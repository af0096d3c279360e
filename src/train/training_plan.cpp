// Completes the plan of a training run for a grid.
#include "trireme/train/training_plan.hpp"

#include <algorithm>

namespace trireme::train {

namespace {

// The model's plan with the micro-batches that the largest share of a batch needs.
model::ModelPlan Complete(const TrainingOptions& options, const comm::GridShape& grid) {
  model::ModelPlan model = options.model;
  const std::int64_t batch = options.samples.batch;
  const parallel::Canonical& canonical = model.canonical;
  model.whole_parameters = NeedsWholeParameters(options.optimizer.kind);
  model.micro_batch = std::min(model.micro_batch, LargestShare(batch, grid.data, canonical));
  model.pipeline.stages = grid.pipeline;
  model.pipeline.micro_batches =
      static_cast<int>(MicroBatches(batch, grid.data, model.micro_batch, canonical));
  // The limit on a step's tokens of pairs also limits an entry.
  if (options.pairs && options.pairs->target_tokens > 0) {
    model.tokens = std::max(options.pairs->source_tokens, options.pairs->target_tokens);
  }
  if (!canonical.On()) return model;
  model.leaves = static_cast<int>(CeilDivide(model.micro_batch, canonical.leaf));
  model.micro_batch = std::min(model.micro_batch, canonical.leaf);
  return model;
}

}  // namespace

BatchShare TrainingPlan::ShareOf(int data_rank, int data_ranks, bool alike) const {
  return {.rank = data_rank,
          .ranks = data_ranks,
          .batch = Batch(),
          .micro_batch = model.micro_batch,
          .leaves = model.leaves,
          .alike = alike,
          .canonical = model.canonical,
          .pipeline = model.pipeline};
}

TrainingPlan PlanTraining(const TrainingOptions& options, std::int64_t tokens,
                          const comm::GridShape& grid) {
  TrainingPlan plan{.options = options, .model = {}};
  data::Sampler::Options& samples = plan.options.samples;
  samples.tokens = tokens;
  samples.length = options.model.length;
  if (samples.stride == 0) samples.stride = samples.length;
  samples.seed = options.model.seed;
  samples.batch =
      options.pairs ? std::min(samples.batch, tokens) : data::Sampler(samples).MostWindows();
  plan.model = Complete(plan.options, grid);
  return plan;
}

}  // namespace trireme::train
