// One training step as a list of named tasks, on whatever grid of ranks it is given.
#ifndef TRIREME_TRAINING_TRAINING_STEP_HPP_
#define TRIREME_TRAINING_TRAINING_STEP_HPP_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/optimizer/optimizer.hpp"
#include "trireme/optimizer/schedule.hpp"
#include "trireme/parallel/gradient_buckets.hpp"

namespace trireme::training {

// What a rank brings to the agreement in the middle of a step, and what all ranks take from it.
struct Requests {
  bool signal = false;      // stop: a signal came
  bool walltime = false;    // stop: time is up
  bool checkpoint = false;  // write one after this step
};

// Where the time of a step went, seconds: from one agreement of the ranks to the next, so that the
// parts add up to the total.
struct StepTimes {
  double total = 0;
  double data = 0;
  double compute = 0;
  double exposed_communication = 0;  // waiting for transfers, but not for other stages
  double bubble = 0;                 // waiting for what another pipeline stage had not finished
};

struct StepResult {
  double loss = 0;  // nats a token, over the global batch's valid targets
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  std::int64_t targets = 0;  // valid ones of the global batch
  StepTimes times;           // means over the ranks
  Requests requests;         // agreed: true where any rank asked
};

class TrainingStep {
 public:
  // All arguments must outlive the step. batch: the most windows of a step. Unless keep_gradients,
  // the update leaves zeros behind. On a GPU: with graphs, what can be recorded is; products_file:
  // run.products.
  TrainingStep(const data::TokenFile& tokens, const data::Sampler& sampler,
               model::ParallelModel& model, optimizer::Optimizer& optimizer,
               const optimizer::Schedule& schedule, parallel::GradientBuckets& buckets,
               std::int64_t batch, bool keep_gradients, bool graphs,
               const std::string& products_file);

  // Collective over the model's grid. Runs step number `step` (from 0): the weights move once.
  // Throws what World().Together throws, before the weights change, when a loss or a gradient is
  // not finite, naming the step, the rank and, where it was a gradient, the tensor.
  StepResult Run(std::int64_t step, const Requests& mine);

 private:
  // The tasks, in order.
  void LoadBatch();         // tokens of this data rank's share
  void ComputeGradients();  // the pipeline's program; all-reduces start with the last micro-batch
  void SumGradients();      // over the data group, then within the replica
  void AgreeOnStep(const Requests& mine);  // loss, requests, values that are not finite, times
  void UpdateWeights();                    // clipping and the optimizer
  // A GPU's instead of the second and the third: they are queued, or launched as one graph; then
  // the host loads the next batch, and waits.
  void GradientsOnGpu();
  void LoadNextBatch();
  void AwaitGradients();

  void QueueGradients();  // of the current batch
  void QueueSums();
  // Before the first step on a GPU: its products are tried out on this step's batch, whose
  // gradients are then forgotten, and all ranks agree on how each is computed and scaled.
  void Rehearse();
  void UpdateScales();  // of fp8, from the largest magnitudes that any rank saw
  bool RecordsGraph() const;

  // A step's batch, this data rank's share of it.
  struct Loaded {
    std::int64_t step = -1;
    std::vector<data::Sample> share;  // these two are reused from step to step
    std::vector<data::MicroBatch> batches;
    std::size_t count = 0;  // of its entries, with the empty ones
    std::span<const data::MicroBatch> Entries() const { return {batches.data(), count}; }
  };
  void Load(std::int64_t step, Loaded& loaded) const;
  Part Share(std::int64_t step) const;
  std::size_t CountMicroBatches(std::int64_t step, std::size_t share) const;
  double SumSquares();
  void RequireFiniteNorm() const;
  double Waited() const;  // for all transfers so far but those of the pipeline
  const comm::ProcessGrid& Grid() const { return model_.Grid(); }
  const device::Stream& Stream() const { return model_.Setup().stream; }

  const data::TokenFile& tokens_;
  const data::Sampler& sampler_;
  model::ParallelModel& model_;
  optimizer::Optimizer& optimizer_;
  const optimizer::Schedule& schedule_;
  parallel::GradientBuckets& buckets_;
  std::int64_t batch_;
  bool keep_gradients_;

  std::int64_t step_ = 0;
  Loaded now_, next_;        // this step's batch; on a GPU, the next one's
  ExactSum local_loss_;      // sum over this replica's targets, nats, counted once
  StepTimes mine_;           // this rank's, since the last agreement
  double window_start_ = 0;  // of mine_.total, of Seconds()
  StepResult result_;

  // On a GPU.
  bool graphs_;
  std::string products_file_;
  device::Graph graph_;         // of a whole batch's gradients and sums
  int graph_memory_ = 0;        // the model's MemoryVersion when it was recorded
  comm::Ledger graph_traffic_;  // what launching it transfers
  bool warm_ = false;           // a whole batch has run by itself
  device::Event done_;          // the gradients are complete
  double gradients_start_ = 0, waited_before_ = 0, bubble_before_ = 0;
};

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_TRAINING_STEP_HPP_
