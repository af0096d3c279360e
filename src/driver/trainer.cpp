// The training loop and its reports.
#include "trireme/driver/trainer.hpp"

#include <utility>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/driver/tasks.hpp"

namespace trireme::driver {

Trainer::Trainer(Job& job, const data::TokenFile& tokens, const TrainingSetup& setup,
                 Training& training)
    : job_(job),
      tokens_(tokens),
      setup_(setup),
      training_(training),
      grid_(training.Grid()),
      sampler_(training.Samples()),
      schedule_(setup.schedule) {}

ExitCode Trainer::Execute() {
  last_checkpoint_time_ = MPI_Wtime();
  while (!Finished() && !stop_) {
    const StepResult result = training_.Run(step_, MyRequests());
    ++step_;
    stop_ = result.requests.signal || result.requests.walltime;
    stop_reason_ = result.requests.signal ? "a signal" : "schedule.walltime_minutes";
    checkpoint_now_ = result.requests.checkpoint;
    Report(result);
    ValidateIfDue();
    CheckpointIfDue();
  }
  return Finished() ? ExitCode::kDone : ExitCode::kStopped;
}

Requests Trainer::MyRequests() const {
  Requests mine;
  mine.signal = job_.signals->Received();
  if (!job_.World().IsRoot()) return mine;  // one clock decides
  const double now = MPI_Wtime();
  const double every = job_.deck.Real("checkpoint.every_minutes");
  mine.walltime = schedule_.walltime_minutes > 0 &&
                  (now - job_.start_seconds) / 60 >= schedule_.walltime_minutes;
  mine.checkpoint = every > 0 && (now - last_checkpoint_time_) / 60 >= every;
  return mine;
}

double Trainer::Epoch() const {
  return static_cast<double>(step_) / static_cast<double>(sampler_.StepsPerEpoch());
}

void Trainer::Report(const StepResult& result) {
  const double flops = model::FlopsPerToken(setup_.model.options, setup_.model.length) *
                       static_cast<double>(result.targets);
  monitor::Record record;
  record.kind = monitor::Record::Kind::kStep;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = sampler_.TargetsBefore(step_);
  record.loss = last_loss_ = result.loss;
  record.learning_rate = result.learning_rate;
  record.grad_norm = result.gradient_norm;
  record.step_seconds = result.seconds;
  record.tokens_per_second = static_cast<double>(result.targets) / result.seconds;
  record.flops_per_second = flops / result.seconds;
  record.roof_fraction =
      record.flops_per_second / (roof_flops_ * static_cast<double>(job_.World().Size()));
  record.seconds_compute = result.times.compute;
  record.seconds_exposed_communication = result.times.exposed_communication;
  record.seconds_bubble = result.times.bubble;
  record.seconds_data = result.times.data;
  record.seconds_checkpoint = std::exchange(checkpoint_seconds_, 0);
  const std::int64_t every = job_.deck.Integer("monitor.every_steps");
  // The peak of the largest rank takes a collective: only for records that are kept.
  if (step_ == 1 || step_ % every == 0 || Finished() || stop_) {
    record.memory_bytes = job_.World().Max(monitor::PeakResidentBytes());
  }
  monitor_->Step(record);
}

void Trainer::RecordEvaluation(data::Split split) {
  const Evaluation result = Evaluate(training_.Net(), tokens_, split);
  monitor::Record record;
  record.kind =
      split == data::Split::kValid ? monitor::Record::Kind::kValid : monitor::Record::Kind::kTest;
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
  // A stop does not wait for a validation: the time left may be short.
  if (every == 0 || (stop_ && !Finished()) || (step_ % every != 0 && !Finished())) return;
  RecordEvaluation(data::Split::kValid);
}

void Trainer::CheckpointIfDue() {
  const std::int64_t every = job_.deck.Integer("checkpoint.every_steps");
  const bool best = best_is_new_ && job_.deck.Switch("checkpoint.best");
  const bool regular = every > 0 && step_ % every == 0;
  if (regular || checkpoint_now_ || best || Finished() || stop_) WriteCheckpoint(best);
}

}  // namespace trireme::driver
