// Verification's runs, on the grid and alone, and what is compared of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

// Rule 4's tolerances (doc/reference/numerics.md).
inline constexpr double kFp64 = 1e-11, kFp32 = 1e-5, kSameBits = 0;
// Sums in another order differ in the last bits of fp32; where such a number is then rounded to
// bf16, now and then a whole unit of 2^-8 is the difference.
inline constexpr double kBf16 = 1e-3;
// Likewise with fp8, whose units are 2^-3 and 2^-2 of a number, and whose scales follow the largest
// value that a rank's slice has.
inline constexpr double kFp8 = 1e-2;

inline constexpr std::int64_t kSteps = 3;  // a whole batch, a short one, one of the next epoch
inline constexpr std::int64_t kStop = 1;   // steps before a stop: in the middle of an epoch

// Of the run on one rank: run.canonical's, or the usual one.
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

// Runs in lockstep: each step on the grid and, on every rank, alone.
class Verifier {
 public:
  // `grid` must outlive it. `folder`: for a checkpoint.
  Verifier(const comm::ProcessGrid& grid, const train::TrainingOptions& small,
           const device::Stream& stream, const std::string& folder);
  Verification CompareAll(Dtype precision);  // collective over the grid's world

 private:
  // The comparisons, in order.
  void CompareSteps();   // fp64; writes a checkpoint after step kStop
  void CompareResume();  // from the checkpoint: on the grid, and on one rank
  void CompareLosses();  // in the deck's precision
  void SwapScales();
  void CompareCanonical();  // likewise, bit by bit

  void CompareStep(std::int64_t step, Run& alone);
  void CompareEvaluation(Run& alone);
  void WriteCheckpoint();
  void ResumeOnGrid(const std::string& checkpoint);
  void ResumeAlone(const std::string& checkpoint);

  // Runs `task` on every rank alone; throws on all if it throws on one.
  void ByItself(const std::function<void()>& task) const;
  train::StepResult StepOnGrid(Run& run, std::int64_t step) const;
  train::StepResult StepAlone(Run& run, std::int64_t step) const;
  std::unique_ptr<Run> MakeAlone(Arithmetic arithmetic = Arithmetic::kFast) const;

  // Into the report; the first difference over its tolerance becomes the failure.
  void Quantity(const std::string& name, double difference, double tolerance,
                const std::string& what, const std::string& hint);
  // `hint`: of weights; gradients have one of their own.
  void CompareTensors(const std::string& when, const char* what, const Differences& differences,
                      double VerifiedTensor::*column, const std::string& hint);
  void CompareBitsOf(const char* what, const std::string& when,
                     const std::vector<kernels::StateBlock>& got,
                     const std::vector<kernels::StateBlock>& wanted);
  void Fail(const std::string& failure, const std::string& hint);

  // Advice that a first difference suggests.
  std::string HintForLoss(std::int64_t step) const;
  // Collective. Which sum over ranks would explain this set of wrong gradients.
  std::string HintForGradients(const Differences& differences) const;
  std::string HintForNorm() const;
  std::string HintForUpdate() const;
  std::string HintForEvaluation() const;
  std::string HintForBits(bool forward) const;

  const comm::ProcessGrid& grid_;
  const comm::Communicator& world_;
  comm::Communicator self_;  // the rank alone
  comm::ProcessGrid alone_;
  MadeUpData data_;
  train::TrainingOptions options_;
  device::Stream stream_;
  std::string folder_;
  Verification report_;

  std::unique_ptr<Run> on_grid_;            // fp64, on the grid, uninterrupted
  std::vector<double> losses_;              // of on_grid_, [kSteps]
  std::vector<float> scales_;               // fp8 scales not in use at the moment
  std::vector<kernels::GradientSum> sums_;  // of each parameter's gradient
};

}  // namespace trireme::tasks
