// The plan of a training run on a grid: all decisions from which its objects are constructed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/pairs.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/train/batch_share.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::train {

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
  std::string products_file;       // run.products; empty: choices of algorithms are not kept
};

// The run completed for a grid; immutable.
struct TrainingPlan {
  // As asked for, but samples is complete, and its batch is the most windows of any step.
  TrainingOptions options;
  model::ModelPlan model;  // complete, with a micro-batch no larger than a rank's share

  std::int64_t Batch() const { return options.samples.batch; }

  // Whether the number of targets that count depends on the tokens, so that ranks must sum it.
  bool CountsTargets() const { return options.loss_mask || model.document_mask; }

  // How a data rank takes its share of every batch. data_ranks: size of the data axis. alike: ranks
  // of a shard group exchange parameters or gradients in each micro-batch (BatchShare::alike).
  BatchShare ShareOf(int data_rank, int data_ranks, bool alike) const;
};

// Completes the plan for a grid. Pure. tokens: length of the training split, ignored for a mixture;
// for pairs, their number.
TrainingPlan PlanTraining(const TrainingOptions& options, std::int64_t tokens,
                          const comm::GridShape& grid);

}  // namespace trireme::train
