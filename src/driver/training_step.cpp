#include "trireme/driver/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace trireme::driver {

TrainingStep::TrainingStep(const comm::Communicator& data, const data::TokenFile& tokens,
                           const data::Sampler& sampler, std::int64_t length,
                           std::int64_t micro_batch, model::Model& model,
                           optimizer::Optimizer& optimizer, const optimizer::Schedule& schedule,
                           parallel::GradientBuckets& buckets)
    : data_(data),
      tokens_(tokens),
      sampler_(sampler),
      length_(length),
      micro_batch_(micro_batch),
      model_(model),
      optimizer_(optimizer),
      schedule_(schedule),
      buckets_(buckets) {}

StepResult TrainingStep::Run(std::int64_t step, const Requests& mine) {
  const double start = MPI_Wtime();
  step_ = step;
  result_ = {};
  LoadBatch();
  ComputeGradients();
  SumGradients();
  AgreeOnStep(mine);
  UpdateWeights();
  result_.seconds = MPI_Wtime() - start;
  return result_;
}

void TrainingStep::LoadBatch() {
  const double start = MPI_Wtime();
  const std::vector<data::Sample> share = sampler_.Share(step_, data_.Rank(), data_.Size());
  const std::span<const data::Sample> all(share);
  const auto most = static_cast<std::size_t>(micro_batch_);
  batch_count_ = (share.size() + most - 1) / most;
  if (batches_.size() < batch_count_) batches_.resize(batch_count_);
  for (std::size_t i = 0; i < batch_count_; ++i) {
    const std::size_t count = std::min(share.size() - i * most, most);
    data::FillMicroBatch(tokens_, data::Split::kTrain, all.subspan(i * most, count), length_,
                         batches_[i]);
  }
  result_.targets = sampler_.BatchTargets(step_);
  result_.seconds_data = MPI_Wtime() - start;
}

void TrainingStep::ComputeGradients() {
  const double start = MPI_Wtime();
  model_.Parameters().ZeroGradients();
  buckets_.Begin();
  local_loss_ = 0;
  for (std::size_t i = 0; i < batch_count_; ++i) {
    const bool last = i + 1 == batch_count_;
    model::GradientsReady ready;
    if (last) ready = [this](std::int64_t begin) { buckets_.Ready(begin); };
    local_loss_ += model_.ForwardBackward(batches_[i], ready);
  }
  // A rank without samples takes part with zeros.
  if (batch_count_ == 0) buckets_.Ready(0);
  result_.seconds_compute = MPI_Wtime() - start;
}

void TrainingStep::SumGradients() {
  buckets_.Wait();
  result_.seconds_exposed_communication = buckets_.SecondsWaited();
}

// One small all-reduce carries everything on which the ranks must agree before the weights change.
void TrainingStep::AgreeOnStep(const Requests& mine) {
  const double start = MPI_Wtime();
  const bool finite_loss = std::isfinite(local_loss_);
  const bool bad = !finite_loss || !buckets_.NotFinite().empty();
  std::vector<double> sums = {finite_loss ? local_loss_ : 0.0, mine.signal ? 1.0 : 0.0,
                              mine.walltime ? 1.0 : 0.0, mine.checkpoint ? 1.0 : 0.0,
                              bad ? 1.0 : 0.0};
  data_.Sum(sums);
  result_.loss = sums[0] / static_cast<double>(result_.targets);
  result_.requests = {sums[1] > 0, sums[2] > 0, sums[3] > 0};
  if (sums[4] > 0) {
    data_.Together([&] {
      if (!bad) return;
      throw RunError(fmt::format("step {}: {} is not finite on rank {}", step_ + 1,
                                 finite_loss ? "the gradient of " + buckets_.NotFinite()
                                             : std::string("the loss"),
                                 data_.Rank()),
                     "The weights were not changed. Lower optimizer.learning_rate or lengthen "
                     "schedule.warmup_steps, and continue from the last checkpoint with -r.");
    });
  }
  result_.seconds_exposed_communication += MPI_Wtime() - start;
}

void TrainingStep::UpdateWeights() {
  const double start = MPI_Wtime();
  result_.learning_rate = schedule_.Rate(step_ + 1);
  result_.gradient_norm = optimizer_.GradientNorm(result_.targets);
  if (!std::isfinite(result_.gradient_norm)) {
    // Every rank holds the same sum: all see this together.
    throw AgreedError(
        ExitCode::kFailed,
        fmt::format("step {}: the sum of the gradients over the ranks is not finite", step_ + 1),
        "The weights were not changed. Lower optimizer.learning_rate.");
  }
  optimizer_.Step(step_ + 1, result_.learning_rate, result_.gradient_norm, result_.targets);
  result_.seconds_compute += MPI_Wtime() - start;
}

}  // namespace trireme::driver
