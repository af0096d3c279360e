// TrainingLoop: validations and the test, with their records.
#include "trireme/tasks/training_loop.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "safeguards.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

bool TrainingLoop::RecordEvaluation(const data::TokenFile& tokens, data::Split split,
                                    report::Record& record, double& seconds) {
  Watch(comm::Phase::kValidation, step_);
  const comm::Ledger steps_alone = grid_.Traffic();
  // One slice: a validation has more tasks than all steps of a timeline.
  const device::Scope scope(steps_alone.Trace(), {.name = device::SliceName::kValidation,
                                                 .category = device::SliceCategory::kValidation});
  device::Recorder* const recorder = steps_alone.Trace();
  if (recorder != nullptr) {
    device::Synchronise(job_.stream);  // transfers under way belong to the step
    grid_.TraceInto(nullptr);
  }
  const bool test = record.kind == report::Record::Kind::kTest;
  train::EvaluationOptions options;
  options.windows = test ? 0 : job_.options.monitor.validate_windows;
  options.seed = job_.options.machine.seed;
  options.stop = [this] { return job_.signals->Received(); };
  const train::Evaluation result =
      pairs_ == nullptr ? train::Evaluate(state_.Net(), tokens, split, options)
                        : train::EvaluatePairs(state_.Net(), *pairs_, split, options);
  grid_.Traffic() = steps_alone;  // the summary's table is about the steps
  if (recorder != nullptr) grid_.TraceInto(recorder);
  if (result.stopped) {
    stop_ = true;
    stop_reason_ = "a signal";
    return false;
  }
  seconds += result.seconds;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = order_.TargetsBefore(step_);
  record.loss = result.loss;
  if (result.windows < result.all_windows) {
    record.windows = result.windows;
    record.all_windows = result.all_windows;
    record.pairs = pairs_ != nullptr;
  }
  record.step_seconds = result.seconds;
  record.tokens_per_second = static_cast<double>(result.targets) / result.seconds;
  FindMemory(record);
  record.bad_steps = safeguards_->BadSteps();
  return true;
}

// Nothing is told of a validation that a signal cuts short: all sets come again after -r.
bool TrainingLoop::RecordValidation() {
  monitor_->FlushRecords();
  std::vector<report::Record> records(validation_.size());
  double seconds = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    // The first one alone decides.
    records[i].kind = i == 0 ? report::Record::Kind::kValid : report::Record::Kind::kValidOther;
    records[i].set = validation_[i].name;
    if (!RecordEvaluation(*validation_[i].tokens, data::Split::kValid, records[i], seconds)) {
      return false;
    }
  }
  for (const report::Record& record : records) monitor_->Evaluation(record);
  if (records.front().loss < best_loss_) {
    best_loss_ = records.front().loss;
    best_is_new_ = true;
  }
  deadline_.Validation(seconds);
  return true;
}

// Losses of another set are not comparable.
void TrainingLoop::TakeBest(const app::RunRecord& record) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const bool another = record.decider && !app::SameSet(*record.decider, decider_);
  best_loss_ = kept_best_loss_ = another ? kNone : record.best_loss.value_or(kNone);
  if (another) {
    decider_.since = record.step - (record.validation_due ? 1 : 0);  // which is of the new one
  } else {
    decider_.since = record.decider ? record.decider->since : 0;
  }
}

bool TrainingLoop::RecordTest() {
  report::Record record;
  record.kind = report::Record::Kind::kTest;
  double seconds = 0;
  if (!RecordEvaluation(tokens_, data::Split::kTest, record, seconds)) return false;
  monitor_->Evaluation(record);
  return true;
}

std::int64_t TrainingLoop::ValidationTokens() const {
  const std::int64_t windows = job_.options.monitor.validate_windows;
  const std::int64_t most = windows == 0 ? std::numeric_limits<std::int64_t>::max()
                                         : windows * job_.options.data.sequence_length;
  std::int64_t tokens = 0;
  for (const app::ValidSplit& valid : validation_) {
    tokens += std::min(most, valid.tokens->Size(data::Split::kValid));
  }
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

}  // namespace trireme::tasks
