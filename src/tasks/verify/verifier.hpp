// Verification's runs, on the grid and on one rank, and the comparison of their results.
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

// |got - wanted| / max(|got|, |wanted|); infinite if undefined.
double RelativeDifference(double got, double wanted);

struct Differences {
  std::vector<double> all;  // [tensors]: largest difference over all copies, the same on every rank
  std::vector<double> mine;  // [tensors]: difference of this rank's part
  std::vector<bool> silent;  // [tensors]: so small that an error by a factor would not show
};

// Collective over the grid's world. For each tensor t in fp64: |t - t'| / max(|t|, rms(all)
// sqrt(n)), the measure of rule 4; infinite if a value is not finite, or if the ranks that make up
// one copy of the model (the replicas of a shard group) do not hold all of t. held: this rank's
// blocks; whole: the same tensors in full.
Differences Compare(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                    const std::vector<kernels::StateBlock>& whole);

// Collective. Largest relative difference between elements of this rank's blocks and of `wanted`,
// which must contain them, in the same precision; 0 only if all bits are equal.
Differences CompareBits(const comm::ProcessGrid& grid, const std::vector<kernels::StateBlock>& held,
                        const std::vector<kernels::StateBlock>& wanted);

// Collective. The rank whose `mine` is largest: "rank 3 (pipeline 0, data 1, context 0, tensor 1)".
std::string WhereLargest(const comm::ProcessGrid& grid, double mine);

// Collective. The GradientSum of every parameter, gathered from the ranks that hold it.
std::vector<kernels::GradientSum> GatherSums(const comm::ProcessGrid& grid,
                                             const kernels::Registry& registry);

// Made-up data for a verification: tokens or, for encoder-decoders, pairs of texts.
// An epoch has two steps; the second has fewer samples unless the batch is 1.
class MadeUpData {
 public:
  MadeUpData(const comm::Communicator& world, const train::TrainingOptions& small);

  // Number of tokens or pairs in the training split.
  static std::int64_t TrainSize(const train::TrainingOptions& small);
  train::TrainingStep MakeStep(train::TrainingState& state) const;
  // Collective over the model's grid. Loss of the valid split in nats per token.
  double ValidationLoss(model::ParallelModel& model) const;

 private:
  std::optional<data::TokenFile> tokens_;
  std::optional<data::PairFile> pairs_;
};

// Arithmetic of the run on one rank: run.canonical's, or the usual one.
enum class Arithmetic { kFast, kCanonical };

// Set-up of the run on one rank, as plain as possible: no stages or recomputation, no canonical
// arithmetic unless that is asked for, and other micro-batches.
train::TrainingOptions Alone(train::TrainingOptions setup, Arithmetic arithmetic);

// A run: its state and its step.
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
