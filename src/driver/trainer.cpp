// The training loop and the tasks of a step.
#include "trireme/driver/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/driver/roof.hpp"
#include "trireme/driver/tasks.hpp"

namespace trireme::driver {

namespace {

data::Sampler MakeSampler(const Job& job, const data::TokenFile& tokens, const DataShape& shape) {
  return data::Sampler({tokens.Size(data::Split::kTrain), shape.length, shape.stride, shape.batch,
                        job.seed, true});
}

std::int64_t BucketBytes(const Job& job) {
  constexpr double kMib = 1024 * 1024;
  return static_cast<std::int64_t>(job.deck.Real("grid.bucket_mib") * kMib);
}

}  // namespace

Trainer::Trainer(Job& job, const comm::ProcessGrid& grid, const data::TokenFile& tokens,
                 const DataShape& shape, model::Model& model, optimizer::Optimizer& optimizer,
                 const optimizer::Schedule& schedule,
                 const optimizer::Options& optimizer_options)
    : job_(job),
      grid_(grid),
      tokens_(tokens),
      shape_(shape),
      model_(model),
      optimizer_(optimizer),
      schedule_(schedule),
      optimizer_options_(optimizer_options),
      sampler_(MakeSampler(job, tokens, shape)),
      buckets_(grid.Data(), model.Parameters(), job.stream, BucketBytes(job)) {}

ExitCode Trainer::Execute() {
  start_time_ = last_checkpoint_time_ = MPI_Wtime();
  while (!Finished() && !stop_) {
    step_start_ = MPI_Wtime();
    record_ = {};
    LoadBatch();
    ComputeGradients();
    SumGradients();
    AgreeOnStep();
    UpdateWeights();
    Report();
    ValidateIfDue();
    CheckpointIfDue();
  }
  return Finished() ? ExitCode::kDone : ExitCode::kStopped;
}

void Trainer::LoadBatch() {
  const std::vector<data::Sample> share =
      sampler_.Share(step_, grid_.Data().Rank(), grid_.Data().Size());
  const std::span<const data::Sample> all(share);
  const auto most = static_cast<std::size_t>(shape_.micro_batch);
  batch_count_ = (share.size() + most - 1) / most;
  if (batches_.size() < batch_count_) batches_.resize(batch_count_);
  for (std::size_t i = 0; i < batch_count_; ++i) {
    const std::size_t count = std::min(share.size() - i * most, most);
    data::FillMicroBatch(tokens_, data::Split::kTrain, all.subspan(i * most, count),
                         shape_.length, batches_[i]);
  }
  step_targets_ = sampler_.BatchTargets(step_);
  record_.seconds_data = MPI_Wtime() - step_start_;
}

void Trainer::ComputeGradients() {
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
  record_.seconds_compute = MPI_Wtime() - start;
}

void Trainer::SumGradients() {
  buckets_.Wait();
  record_.seconds_exposed_communication = buckets_.SecondsWaited();
}

// One small all-reduce carries everything on which the ranks must agree before the weights change.
void Trainer::AgreeOnStep() {
  const double start = MPI_Wtime();
  const bool root = job_.World().IsRoot();
  const double minutes = (start - start_time_) / 60;
  const double every = job_.deck.Real("checkpoint.every_minutes");
  const bool out_of_time =
      root && schedule_.walltime_minutes > 0 && minutes >= schedule_.walltime_minutes;
  const bool due = root && every > 0 && (start - last_checkpoint_time_) / 60 >= every;
  const bool bad = !std::isfinite(local_loss_) || !buckets_.NotFinite().empty();
  std::vector<double> sums = {std::isfinite(local_loss_) ? local_loss_ : 0.0,
                              signals_.Received() ? 1.0 : 0.0, out_of_time ? 1.0 : 0.0,
                              due ? 1.0 : 0.0, bad ? 1.0 : 0.0};
  job_.World().Sum(sums);
  record_.loss = sums[0] / static_cast<double>(step_targets_);
  if (sums[1] > 0) stop_reason_ = "a signal";
  if (sums[2] > 0) stop_reason_ = "schedule.walltime_minutes";
  stop_ = sums[1] + sums[2] > 0;
  checkpoint_now_ = sums[3] > 0;
  if (sums[4] > 0) {
    job_.World().Together([&] {
      if (!bad) return;
      throw RunError(
          fmt::format("step {}: {} is not finite on rank {}", step_ + 1,
                      std::isfinite(local_loss_) ? "the gradient of " + buckets_.NotFinite()
                                                 : std::string("the loss"),
                      job_.World().Rank()),
          "The weights were not changed. Lower optimizer.learning_rate or lengthen "
          "schedule.warmup_steps, and continue from the last checkpoint with -r.");
    });
  }
  record_.seconds_exposed_communication += MPI_Wtime() - start;
}

void Trainer::UpdateWeights() {
  const double start = MPI_Wtime();
  record_.learning_rate = schedule_.Rate(step_ + 1);
  record_.grad_norm = optimizer_.GradientNorm(step_targets_);
  if (!std::isfinite(record_.grad_norm)) {
    // Every rank holds the same sum: all see this together.
    throw AgreedError(ExitCode::kFailed,
                      fmt::format("step {}: the sum of the gradients over the ranks is not finite",
                                  step_ + 1),
                      "The weights were not changed. Lower optimizer.learning_rate.");
  }
  optimizer_.Step(step_ + 1, record_.learning_rate, record_.grad_norm, step_targets_);
  ++step_;
  record_.seconds_compute += MPI_Wtime() - start;
}

double Trainer::Epoch() const {
  return static_cast<double>(step_) / static_cast<double>(sampler_.StepsPerEpoch());
}

void Trainer::Report() {
  const double flops =
      model::FlopsPerToken(model_.Setup().options, shape_.length) *
      static_cast<double>(step_targets_);
  record_.kind = monitor::Record::Kind::kStep;
  record_.step = step_;
  record_.epoch = Epoch();
  record_.tokens = sampler_.TargetsBefore(step_);
  record_.step_seconds = MPI_Wtime() - step_start_;
  record_.tokens_per_second = static_cast<double>(step_targets_) / record_.step_seconds;
  record_.flops_per_second = flops / record_.step_seconds;
  record_.roof_fraction =
      record_.flops_per_second / (roof_flops_ * static_cast<double>(job_.World().Size()));
  const std::int64_t every = job_.deck.Integer("monitor.every_steps");
  const bool printed = step_ == 1 || step_ % every == 0 || Finished() || stop_;
  // The peak of the largest rank is a collective: only for records that are kept.
  if (printed) record_.memory_bytes = job_.World().Max(monitor::PeakResidentBytes());
  monitor_->Step(record_);
}

void Trainer::RecordEvaluation(data::Split split) {
  const Evaluation result = Evaluate(grid_.Data(), model_, tokens_, split);
  monitor::Record record;
  record.kind = split == data::Split::kValid ? monitor::Record::Kind::kValid
                                             : monitor::Record::Kind::kTest;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = sampler_.TargetsBefore(step_);
  record.loss = result.loss;
  record.step_seconds = result.seconds;
  record.tokens_per_second = static_cast<double>(result.targets) / result.seconds;
  record.memory_bytes = job_.World().Max(monitor::PeakResidentBytes());
  monitor_->Evaluation(record);
  if (split == data::Split::kValid && result.loss < best_loss_) {
    best_loss_ = result.loss;
    best_is_new_ = true;
  }
}

void Trainer::ValidateIfDue() {
  const std::int64_t every = job_.deck.Integer("monitor.validate_every_steps");
  if (every == 0 || (step_ % every != 0 && !Finished())) return;
  RecordEvaluation(data::Split::kValid);
}

void Trainer::CheckpointIfDue() {
  const std::int64_t every = job_.deck.Integer("checkpoint.every_steps");
  const bool best = best_is_new_ && job_.deck.Switch("checkpoint.best");
  const bool regular = every > 0 && step_ % every == 0;
  if (regular || checkpoint_now_ || best || Finished() || stop_) WriteCheckpoint(best);
}

}  // namespace trireme::driver
