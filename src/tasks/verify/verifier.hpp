// Verification's runs, on the grid and alone, and what is compared of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/process_grid.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/tasks/verify.hpp"

namespace trireme::tasks {

// Differences between this rank's tensors and the same tensors of another run, on the grid or
// alone.

// |got - wanted| / max(|got|, |wanted|); infinite if undefined.
double RelativeDifference(double got, double wanted);

struct Differences {
  std::vector<double> all;   // [tensors]: the largest of all copies, the same on every rank
  std::vector<double> mine;  // [tensors]: this rank's part of it
  std::vector<bool> silent;  // [tensors]: so small that no mistake of a factor would show
};

// Collective over the grid's world. Rule 4's |t - t'| / max(|t|, rms(all) sqrt(n)) of each tensor
// t in fp64; infinite where a value is not finite or the ranks that make up one copy of the model
// (the replicas of a shard group) do not hold all of a tensor. held: this rank's blocks; whole: the
// same tensors, all of each.
Differences Compare(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                    const std::vector<kernels::StateBlock>& whole);

// Collective. The largest relative difference of elements of this rank's blocks from those of
// `wanted`, which hold the same or more, in the same precision; 0 only where all bits are the same.
Differences CompareBits(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                        const std::vector<kernels::StateBlock>& wanted);

// Collective. "rank 3 (pipeline 0, data 1, context 0, tensor 1)": where `mine` is largest.
std::string WhereLargest(const comm::ProcessGrid& grid, double mine);

// Collective. GradientSum of every parameter, from the ranks that hold it.
std::vector<kernels::GradientSum> GatherSums(const comm::ProcessGrid& grid,
                                             const kernels::Registry& registry);

// Data that a verification trains on and evaluates: made-up tokens, or pairs of texts.

// Two steps an epoch, the second short. Pairs if the set-up has them, of texts of all lengths.
class MadeUpData {
 public:
  MadeUpData(const comm::Communicator& world, const train::TrainingOptions& small);

  // Tokens or pairs of the training split.
  static std::int64_t TrainSize(const train::TrainingOptions& small);
  train::TrainingStep MakeStep(train::TrainingState& state) const;
  // Collective over the model's grid. Nats per token of the valid split.
  double ValidationLoss(model::ParallelModel& model) const;

 private:
  std::optional<data::TokenFile> tokens_;
  std::optional<data::PairFile> pairs_;
};

// Arithmetic of the run on one rank: that of run.canonical, or the usual one.
enum class Arithmetic { kFast, kCanonical };

// The set-up of a run on one rank and one thread, plain: nothing is sliced, staged, sharded or
// recomputed, and micro-batches are others.
train::TrainingOptions Alone(train::TrainingOptions setup, Arithmetic arithmetic);

// One run: its state and its step.
struct Run {
  Run(const comm::ProcessGrid& grid, const MadeUpData& data, const train::TrainingOptions& options,
      const device::Stream& stream)
      : state(grid, train::PlanTraining(options, MadeUpData::TrainSize(options), grid.Shape()),
              stream),
        step(data.MakeStep(state)) {}
  train::TrainingState state;
  train::TrainingStep step;
};

}  // namespace trireme::tasks
