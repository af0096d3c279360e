// run.canonical in a plan: whether the layout and the model suit it, and the size of its leaf.
#pragma once

#include <cstdint>

#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::train {

// batch: most windows of a step. Throws InputError with the deck's line if layout, model, precision
// or device do not suit it.
parallel::Canonical MakeCanonical(const Request& request, const model::Options& model,
                                  const comm::GridShape& grid, std::int64_t batch);

// Throws InputError if data.micro_batch is given and no multiple of the leaf.
void CheckLeaves(const Request& request, const parallel::Canonical& canonical);

// The automatic micro-batch.

// Sequences that suit the device: about 2,048 tokens on the CPU, 16,384 on a GPU.
std::int64_t SuitableMicroBatch(std::int64_t length, bool on_gpu);

// Sequences of a micro-batch for a data rank's share of the batch. given: data.micro_batch, no more
// than the share; 0: about `suitable`, in whole grains, few enough that a pipeline has 4
// micro-batches per stage, and such that an interleaved schedule can take them if any size does.
struct MicroBatchChoice {
  std::int64_t given = 0;
  std::int64_t suitable = 1;
  std::int64_t share = 1;  // windows of the data rank with most
  std::int64_t grain = 1;  // windows that stay together: a canonical leaf
  parallel::PipelineShape pipeline;
  std::int64_t Choose() const;
};

}  // namespace trireme::train
