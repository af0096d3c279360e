// One training step as a list of named tasks, on whatever grid of ranks it is given.
#ifndef TRIREME_TRAINING_TRAINING_STEP_HPP_
#define TRIREME_TRAINING_TRAINING_STEP_HPP_

#include <cstdint>

#include "trireme/comm/ledger.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/training/batch_loader.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::training {

// Requests of one rank, combined (or) over all ranks by the agreement in the middle of a step.
struct Requests {
  bool signal = false;      // stop: a signal came
  bool walltime = false;    // stop: time is up
  bool checkpoint = false;  // write one after this step
  bool busy = false;        // an asynchronous checkpoint is under way
};

// Times of a step, seconds: from one agreement of the ranks to the next, so that the parts add up
// to the total.
struct StepTimes {
  double total = 0;
  double data = 0;
  double compute = 0;
  double exposed_communication = 0;  // waiting for transfers, but not for other stages
  double bubble = 0;                 // waiting for another pipeline stage's result
};

struct StepResult {
  double loss = 0;  // nats per token, over the global batch's valid targets
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  std::int64_t targets = 0;  // valid ones of the global batch
  StepTimes times;           // means over the ranks
  double own_compute = 0;    // seconds of this rank
  Requests requests;         // agreed: true if any rank asked
};

class TrainingStep {
 public:
  // Both must outlive the step.
  TrainingStep(TrainingState& state, const data::TokenFile& tokens);

  const data::Sampler& Samples() const { return loader_.Samples(); }

  // Collective over the state's grid. Runs step number `step` (from 0): the weights move once.
  // Throws what World().Together throws, before the weights change, if a loss or a gradient is not
  // finite, naming the step, the rank and the tensor of the gradient.
  StepResult Run(std::int64_t step, const Requests& mine = {});

 private:
  // The tasks, in order.
  void LoadBatch();         // tokens of this data rank's share
  void ComputeGradients();  // the pipeline's program; all-reduces start with the last micro-batch
  void SumGradients();      // over the data group, then within the replica
  void AgreeOnStep(const Requests& mine);  // loss, requests, values that are not finite, times
  void UpdateWeights();                    // clipping and the optimizer
  // On a GPU, instead of ComputeGradients and SumGradients: queued, or launched as one graph; then
  // the host loads the next batch, and waits.
  void GradientsOnGpu();
  void LoadNextBatch();
  void AwaitGradients();

  // Before the first step on a GPU: tries the matrix products out on this step's batch, drops the
  // gradients, and agrees with all ranks on the algorithm and scale of each product.
  void Rehearse();
  bool RecordsGraph() const;
  // Entries of the current batch in their place; the copy is queued.
  model::StagedBatches::Taken TakeBatch();
  void QueueOnGpu(model::StagedBatches::Taken batch);  // gradients and sums, kernel by kernel
  void RecordGraph(model::StagedBatches::Taken batch);

  double Waited() const;  // seconds, for all transfers so far but those of the pipeline
  void RequireFinite(bool finite_loss, bool all_ranks) const;
  void RequireFiniteNorm() const;
  const comm::ProcessGrid& Grid() const { return state_.Grid(); }
  const device::Stream& Stream() const { return state_.Stream(); }
  model::ParallelModel& Net() { return state_.Net(); }
  const model::ParallelModel& Net() const { return state_.Net(); }

  TrainingState& state_;
  BatchLoader loader_;

  std::int64_t step_ = 0;
  LoadedBatch now_, next_;   // this step's batch; on a GPU, the next one's
  StepTimes mine_;           // this rank's, since the last agreement
  double window_start_ = 0;  // of mine_.total, Seconds()
  StepResult result_;

  // On a GPU.
  device::Graph graph_;         // of a whole batch's gradients and sums
  comm::Ledger graph_traffic_;  // transfers of one launch
  bool warm_ = false;           // a whole batch has run kernel by kernel
  device::Event done_;          // the gradients are complete
  double gradients_start_ = 0, waited_before_ = 0, bubble_before_ = 0;
};

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_TRAINING_STEP_HPP_
