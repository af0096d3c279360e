// TrainingLoop: validations and the test, with their records.
#include "trireme/driver/training_loop.hpp"

#include <algorithm>
#include <limits>

#include "safeguards.hpp"
#include "trireme/training/evaluation.hpp"

namespace trireme::driver {

bool TrainingLoop::RecordEvaluation(const data::TokenFile& tokens, data::Split split,
                                    monitor::Record record, double& seconds) {
  Watch(comm::Phase::kValidation, step_);
  const comm::Ledger steps_alone = grid_.Traffic();
  const bool test = record.kind == monitor::Record::Kind::kTest;
  training::EvaluationOptions options;
  options.windows = test ? 0 : job_.options.monitor.validate_windows;
  options.seed = job_.options.machine.seed;
  options.stop = [this] { return job_.signals->Received(); };
  const training::Evaluation result = training::Evaluate(state_.Net(), tokens, split, options);
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
  if (result.windows < result.all_windows) {
    record.windows = result.windows;
    record.all_windows = result.all_windows;
  }
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
  const std::int64_t windows = job_.options.monitor.validate_windows;
  const std::int64_t most = windows == 0 ? std::numeric_limits<std::int64_t>::max()
                                         : windows * job_.options.data.sequence_length;
  const auto of = [most](const data::TokenFile& file) {
    return std::min(most, file.Size(data::Split::kValid));
  };
  if (validation_.empty()) return of(tokens_);
  std::int64_t tokens = 0;
  for (const job::ValidationSet& set : validation_) tokens += of(set.tokens);
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
