// The plan of a training run on a grid: all decisions from which its objects are constructed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/partition.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::train {

// Shares of a step's batch: which windows (or pairs) a data rank takes, and how they are cut into
// entries and micro-batches. Pure functions.

// The size of a step's batch, for plans and measurements.
struct StepShape {
  std::int64_t sequences = 0;  // windows or pairs, over all ranks
  // Padded lengths of pairs; 0: as long as the limit on a step's tokens allows.
  std::int64_t source_length = 0, target_length = 0;
};

// Windows of a batch on the data rank that takes most.
std::int64_t LargestShare(std::int64_t batch, int data_ranks, const parallel::Canonical& canonical);
// Micro-batches of that rank's share, with up to `micro_batch` windows each.
std::int64_t MicroBatches(std::int64_t batch, int data_ranks, std::int64_t micro_batch,
                          const parallel::Canonical& canonical = {});

// With run.canonical: leaves per group in a batch of `batch` windows.
std::int64_t LeavesOfGroup(std::int64_t batch, const parallel::Canonical& canonical);

// How one data rank takes its share of every batch.
struct BatchShare {
  int rank = 0, ranks = 1;       // data rank, and the number of data ranks
  std::int64_t batch = 1;        // most windows of a step
  std::int64_t micro_batch = 1;  // B, most sequences of an entry
  int leaves = 1;                // entries per micro-batch
  // True: all ranks must run the same number of micro-batches, because they exchange shards.
  bool alike = false;
  parallel::Canonical canonical;
  parallel::PipelineShape pipeline;

  // This rank's places in a batch of `windows` windows. They may reach beyond its end.
  Part Places(std::int64_t windows) const;
  // Number of windows that this rank takes of a batch of `windows`.
  std::int64_t Count(std::int64_t windows) const;
  // Number of entries of this rank in a batch of `windows`, including empty ones.
  std::int64_t Entries(std::int64_t windows) const;
  // The windows of entry `entry`, relative to Places().begin; empty if none are left.
  Part Entry(std::int64_t windows, std::int64_t entry) const;
  // With run.canonical: the group of leaves, counted on this rank, to which entry `entry` belongs.
  std::int64_t GroupOf(std::int64_t entry) const;
};

// A training run as asked for, before tokens and grid are known.
struct TrainingOptions {
  model::ModelPlan model;  // stages, micro-batches and leaves are not set yet
  // Windows of the training split and how they form batches. stride 0: the model's length. For
  // pairs only samples.batch is used, the most pairs of a step.
  data::Sampler::Options samples = {.batch = 1};
  bool loss_mask = false;  // the training split says which targets count
  // For encoder-decoders: how pairs form batches. Its field `pairs` equals samples.batch.
  std::optional<data::PairBatches::Options> pairs = {};
  OptimizerOptions optimizer;
  Schedule schedule;
  bool keep_gradients = true;      // after a step; false: the update zeroes them
  bool async_checkpoints = false;  // checkpoints are written from a copy of the state
  bool graphs = false;             // run.graphs: record a step on a GPU if possible
  std::string products_file;       // run.products; empty: chosen algorithms are not kept
};

// The options of a run, completed for a grid. Immutable.
struct TrainingPlan {
  // As asked for, but samples is complete, and its batch is the most windows of any step.
  TrainingOptions options;
  model::ModelPlan model;  // complete, with a micro-batch no larger than a rank's share

  std::int64_t Batch() const { return options.samples.batch; }

  // Whether the number of targets that count depends on the tokens, so that ranks must sum it.
  bool CountsTargets() const { return options.loss_mask || model.document_mask; }
};

// Completes the plan for a grid. Pure. tokens: length of the training split, ignored for a mixture;
// for pairs, their number.
TrainingPlan PlanTraining(const TrainingOptions& options, std::int64_t tokens,
                          const comm::GridShape& grid);

}  // namespace trireme::train
