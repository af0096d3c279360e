// Completion of a training run's plan: the micro-batches that fit the largest share of a batch.
#include "trireme/train/training_plan.hpp"

#include <algorithm>

namespace trireme::train {

namespace {

model::ModelPlan Complete(const TrainingOptions& options, std::int64_t batch,
                          const comm::GridShape& grid) {
  model::ModelPlan model = options.model;
  const parallel::Canonical& canonical = model.canonical;
  model.whole_parameters = NeedsWholeParameters(options.optimizer.kind);
  model.micro_batch = std::min(model.micro_batch, LargestShare(batch, grid.data, canonical));
  model.pipeline.stages = grid.pipeline;
  model.pipeline.micro_batches =
      static_cast<int>(MicroBatches(batch, grid.data, model.micro_batch, canonical));
  // Of pairs a step's tokens may be limited, and so those of an entry.
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
          .batch = batch,
          .micro_batch = model.micro_batch,
          .leaves = model.leaves,
          .alike = alike,
          .canonical = model.canonical,
          .pipeline = model.pipeline};
}

TrainingPlan PlanTraining(const TrainingOptions& options, std::int64_t tokens,
                          const comm::GridShape& grid) {
  const std::int64_t length = options.model.length;
  const data::Sampler::Options samples{.tokens = tokens,
                                       .length = length,
                                       .stride = options.stride == 0 ? length : options.stride,
                                       .batch = options.batch,
                                       .seed = options.model.seed,
                                       .shuffle = true,
                                       .origin = options.origin,
                                       .sources = options.sources};
  const std::int64_t batch =
      std::min(options.batch, options.pairs ? tokens : data::Sampler(samples).Windows());
  return {.model = Complete(options, batch, grid),
          .samples = samples,
          .batch = batch,
          .loss_mask = options.loss_mask,
          .pairs = options.pairs,
          .optimizer = options.optimizer,
          .schedule = options.schedule,
          .keep_gradients = options.keep_gradients,
          .async_checkpoints = options.async_checkpoints,
          .graphs = options.graphs,
          .products_file = options.products_file};
}

}  // namespace trireme::train
