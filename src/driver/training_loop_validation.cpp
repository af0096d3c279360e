// TrainingLoop: validations and the test, with their records.
#include "trireme/driver/training_loop.hpp"

#include "safeguards.hpp"
#include "trireme/training/evaluation.hpp"

namespace trireme::driver {

bool TrainingLoop::RecordEvaluation(const data::TokenFile& tokens, data::Split split,
                                    monitor::Record record, double& seconds) {
  Watch(comm::Phase::kValidation, step_);
  const comm::Ledger steps_alone = grid_.Traffic();
  const training::Evaluation result =
      training::Evaluate(state_.Net(), tokens, split, [this] { return job_.signals->Received(); });
  grid_.Traffic() = steps_alone;  // the summary's table is about the steps
  if (result.stopped) {
    stop_ = true;
    stop_reason_ = "a signal";
    return false;
  }
  seconds += result.seconds;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = sampler_.TargetsBefore(step_);
  record.loss = result.loss;
  record.step_seconds = result.seconds;
  record.tokens_per_second = static_cast<double>(result.targets) / result.seconds;
  record.memory_bytes = PeakMemory();
  record.bad_steps = safeguards_->BadSteps();
  monitor_->Evaluation(record);
  if (record.kind == monitor::Record::Kind::kValid && result.loss < best_loss_) {
    best_loss_ = result.loss;
    best_is_new_ = true;
  }
  return true;
}

bool TrainingLoop::RecordValidation() {
  monitor::Record record;
  record.kind = monitor::Record::Kind::kValid;
  double seconds = 0;
  bool whole = true;
  if (validation_.empty()) whole = RecordEvaluation(tokens_, data::Split::kValid, record, seconds);
  for (const job::ValidationSet& set : validation_) {
    record.set = set.name;
    whole = whole && RecordEvaluation(set.tokens, data::Split::kValid, record, seconds);
    record.kind = monitor::Record::Kind::kValidOther;  // the first one alone decides
  }
  if (whole) deadline_.Validation(seconds);
  return whole;
}

bool TrainingLoop::RecordTest() {
  monitor::Record record;
  record.kind = monitor::Record::Kind::kTest;
  double seconds = 0;
  return RecordEvaluation(tokens_, data::Split::kTest, record, seconds);
}

std::int64_t TrainingLoop::ValidationTokens() const {
  if (validation_.empty()) return tokens_.Size(data::Split::kValid);
  std::int64_t tokens = 0;
  for (const job::ValidationSet& set : validation_) tokens += set.tokens.Size(data::Split::kValid);
  return tokens;
}

void TrainingLoop::ValidateIfDue() {
  const std::int64_t every = job_.options.monitor.validate_every_steps;
  const bool due = every > 0 && (step_ % every == 0 || Finished());
  validation_due_ = false;
  if (!due) return;
  // A stop does not wait for a validation: the time left may be short. It comes first after -r.
  validation_due_ = (stop_ && !Finished()) || !RecordValidation();
}

}  // namespace trireme::driver
