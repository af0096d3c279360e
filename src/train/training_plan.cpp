// Shares of a batch, which agree on every rank; completes the plan of a training run for a grid.
#include "trireme/train/training_plan.hpp"

#include <algorithm>

namespace trireme::train {

std::int64_t LeavesOfGroup(std::int64_t batch, const parallel::Canonical& canonical) {
  return CeilDivide(CeilDivide(batch, canonical.leaf), canonical.data_groups);
}

namespace {

// A data rank's places in the batch with run.canonical; they may reach beyond the batch's end.
Part CanonicalShare(std::int64_t batch, int rank, int data_ranks,
                    const parallel::Canonical& canonical) {
  const std::int64_t groups = canonical.data_groups / data_ranks;
  const std::int64_t size = groups * LeavesOfGroup(batch, canonical) * canonical.leaf;
  return {rank * size, (rank + 1) * size};
}

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

std::int64_t LargestShare(std::int64_t batch, int data_ranks,
                          const parallel::Canonical& canonical) {
  if (!canonical.On()) return CeilDivide(batch, data_ranks);
  return std::min(batch, CanonicalShare(batch, 0, data_ranks, canonical).end);
}

std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch,
                          const parallel::Canonical& canonical) {
  return CeilDivide(LargestShare(batch, data_ranks, canonical), micro_batch);
}

Part BatchShare::Places(std::int64_t windows) const {
  if (!canonical.On()) return PartOf(windows, rank, ranks);
  return CanonicalShare(batch, rank, ranks, canonical);
}

std::int64_t BatchShare::Count(std::int64_t windows) const {
  const Part share = Places(windows);
  return std::max<std::int64_t>(0, std::min(share.end, windows) - share.begin);
}

std::int64_t BatchShare::Entries(std::int64_t windows) const {
  // Canonical shares are cut from the largest batch; smaller batches fill them from the front.
  const std::int64_t most =
      alike ? std::min(windows, LargestShare(canonical.On() ? batch : windows, ranks, canonical))
            : Count(windows);
  const std::int64_t count = CeilDivide(most, micro_batch * leaves);
  return leaves * parallel::PaddedMicroBatches(pipeline, static_cast<int>(count));
}

Part BatchShare::Entry(std::int64_t windows, std::int64_t entry) const {
  const std::int64_t all = Count(windows), begin = std::min(all, entry * micro_batch);
  return {begin, std::min(all, begin + micro_batch)};
}

std::int64_t BatchShare::GroupOf(std::int64_t entry) const {
  return canonical.On() ? entry / LeavesOfGroup(batch, canonical) : entry;
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
