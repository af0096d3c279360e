// One training step as a list of named tasks, on whatever group of ranks it is given.
#ifndef TRIREME_DRIVER_TRAINING_STEP_HPP_
#define TRIREME_DRIVER_TRAINING_STEP_HPP_

#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/model/model.hpp"
#include "trireme/optimizer/optimizer.hpp"
#include "trireme/optimizer/schedule.hpp"
#include "trireme/parallel/gradient_buckets.hpp"

namespace trireme::driver {

// What a rank brings to the agreement in the middle of a step, and what all ranks take from it.
struct Requests {
  bool signal = false;      // stop: a signal came
  bool walltime = false;    // stop: time is up
  bool checkpoint = false;  // write one after this step
};

struct StepResult {
  double loss = 0;  // nats a token, over the global batch's valid targets
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  std::int64_t targets = 0;  // valid ones of the global batch
  double seconds_data = 0, seconds_compute = 0, seconds_exposed_communication = 0;
  double seconds = 0;  // of the whole step
  Requests requests;   // agreed: true where any rank asked
};

class TrainingStep {
 public:
  // All arguments must outlive the step. `data` is the group that shares the global batch.
  TrainingStep(const comm::Communicator& data, const data::TokenFile& tokens,
               const data::Sampler& sampler, std::int64_t length, std::int64_t micro_batch,
               model::Model& model, optimizer::Optimizer& optimizer,
               const optimizer::Schedule& schedule, parallel::GradientBuckets& buckets);

  // Collective. Runs step number `step` (from 0): the weights move once. Throws what
  // data.Together throws, before the weights change, when a loss or a gradient is not finite,
  // naming the step, the rank and, where it was a gradient, the tensor.
  StepResult Run(std::int64_t step, const Requests& mine);

 private:
  // The tasks, in order.
  void LoadBatch();         // tokens of this rank's share
  void ComputeGradients();  // forward and backward; all-reduces start with the last micro-batch
  void SumGradients();      // waits for the sums over the data group
  void AgreeOnStep(const Requests& mine);  // loss, requests, values that are not finite
  void UpdateWeights();                    // clipping and the optimizer

  const comm::Communicator& data_;
  const data::TokenFile& tokens_;
  const data::Sampler& sampler_;
  std::int64_t length_, micro_batch_;
  model::Model& model_;
  optimizer::Optimizer& optimizer_;
  const optimizer::Schedule& schedule_;
  parallel::GradientBuckets& buckets_;

  std::int64_t step_ = 0;
  std::vector<data::MicroBatch> batches_;  // reused from step to step
  std::size_t batch_count_ = 0;            // of this step; 0 on a rank without samples
  double local_loss_ = 0;                  // sum over this rank's targets, nats
  StepResult result_;
};

}  // namespace trireme::driver

#endif  // TRIREME_DRIVER_TRAINING_STEP_HPP_
