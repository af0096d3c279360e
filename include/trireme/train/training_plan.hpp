// The plan of a training run on a grid: every decision that its objects are constructed from.
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

// A training run as it is asked for, before it meets its tokens and a grid.
struct TrainingOptions {
  model::ModelPlan model;  // micro_batch as wanted; stages, micro-batches and leaves follow
  // Windows of the training split and how they make batches. stride 0: the model's length. Pairs
  // use batch alone: the most pairs of a step.
  data::Sampler::Options samples = {.batch = 1};
  bool loss_mask = false;  // the training split says which targets count
  // Of a model that translates: how pairs make batches. `pairs` of them is `batch`.
  std::optional<data::PairBatches::Options> pairs = {};
  OptimizerOptions optimizer;
  Schedule schedule;
  bool keep_gradients = true;      // after a step; false: the update clears them as it goes
  bool async_checkpoints = false;  // write from a copy of the state
  bool graphs = false;             // run.graphs: a step on a GPU is recorded if that is possible
  std::string products_file;       // run.products; empty: choices of algorithms are kept nowhere
};

// The same run on a grid, complete; never changed.
struct TrainingPlan {
  // As asked for; samples is complete, and its batch the most windows that a step has.
  TrainingOptions options;
  model::ModelPlan model;  // complete, with the micro-batch that fits

  std::int64_t Batch() const { return options.samples.batch; }

  // True: how many targets count in a step depends on the tokens, and the ranks add it up.
  bool CountsTargets() const { return options.loss_mask || model.document_mask; }

  // How a data rank takes its part of every batch. data_ranks: size of that axis; alike: ranks of a
  // shard group exchange parameters or gradients in each micro-batch.
  BatchShare ShareOf(int data_rank, int data_ranks, bool alike) const;
};

// Completes the plan for a grid. Pure. tokens: length of the training split, unused for a mixture;
// for pairs, their number.
TrainingPlan PlanTraining(const TrainingOptions& options, std::int64_t tokens,
                          const comm::GridShape& grid);

}  // namespace trireme::train
