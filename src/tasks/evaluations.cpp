// Evaluations: runs validations and the test, and records them.
#include "evaluations.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "generator.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/device/signals.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

bool Evaluations::IsNear() const {
  const std::int64_t every = Options().validate_every_steps, step = loop_.progress.step;
  const auto validates = [&](std::int64_t next) {
    return Comes(next, every) || (every > 0 && next == loop_.progress.last);
  };
  return validates(step + 1) || validates(step + 2);
}

void Evaluations::Expect(const train::StepResult& result) const {
  const std::int64_t windows = Options().validate_windows;
  const std::int64_t most = windows == 0 ? std::numeric_limits<std::int64_t>::max()
                                         : windows * loop_.state.Plan().model.length;
  std::int64_t tokens = 0;  // upper limit on the tokens that a validation reads
  for (const app::ValidSplit& valid : validation_) {
    tokens += std::min(most, valid.tokens->Size(data::Split::kValid));
  }
  loop_.progress.deadline.ExpectValidation(result.times.total * static_cast<double>(tokens) /
                                           static_cast<double>(result.tokens));
}

// Fills a record with a split's loss; adds the time to `seconds`. False if a signal ended it.
bool Evaluations::Evaluate(const data::TokenFile& tokens, data::Split split, report::Record& record,
                           double& seconds) {
  const comm::ProcessGrid& grid = loop_.state.Grid();
  const data::PairFile* const pairs = loop_.data.Pairs();
  loop_.progress.watch(comm::Phase::kValidation);
  const comm::Ledger steps_alone = grid.Traffic();
  // The timeline shows a validation as one slice, because its tasks outnumber those of all steps.
  const device::Scope scope(steps_alone.Trace(), {.name = device::SliceName::kValidation,
                                                  .category = device::SliceCategory::kValidation});
  device::Recorder* const recorder = steps_alone.Trace();
  if (recorder != nullptr) {
    device::Synchronise(loop_.state.Stream());  // transfers under way belong to the step
    grid.TraceInto(nullptr);
  }
  const bool test = record.kind == report::Record::Kind::kTest;
  train::EvaluationOptions options;
  options.windows = test ? 0 : Options().validate_windows;
  options.seed = loop_.state.Plan().model.seed;
  options.stop = [this] { return loop_.job.ranks.signals->Received(); };
  loop_.state.ExchangeAverage();
  const train::Evaluation result =
      pairs == nullptr ? train::Evaluate(loop_.state.Net(), tokens, split, options)
                       : train::EvaluatePairs(loop_.state.Net(), *pairs, split, options);
  loop_.state.ExchangeAverage();
  grid.Traffic() = steps_alone;  // the summary's table of transfers is about the steps only
  if (recorder != nullptr) grid.TraceInto(recorder);
  if (result.stopped) {
    loop_.progress.stop = true;
    loop_.progress.stop_reason = "a signal";
    return false;
  }
  seconds += result.seconds;
  record.loss = result.loss;
  record.averaged = loop_.state.Averages();
  if (result.windows < result.all_windows) {
    record.windows = result.windows;
    record.all_windows = result.all_windows;
    record.pairs = pairs != nullptr;
  }
  record.step_seconds = result.seconds;
  record.tokens_per_second = static_cast<double>(result.targets) / result.seconds;
  place_(record);
  return true;
}

// A validation cut short by a signal is not reported: after -r all sets are evaluated again.
bool Evaluations::Validate() {
  loop_.monitor->FlushRecords();
  std::vector<report::Record> records(validation_.size());
  double seconds = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    records[i].kind = i == 0 ? report::Record::Kind::kValid : report::Record::Kind::kValidOther;
    records[i].set = validation_[i].name;
    const data::TokenFile& tokens = *validation_[i].tokens;
    if (!Evaluate(tokens, data::Split::kValid, records[i], seconds)) return false;
  }
  for (const report::Record& record : records) loop_.monitor->Evaluation(record);
  best_.Note(records.front().loss);
  loop_.progress.deadline.Validation(seconds);
  return true;
}

void Evaluations::ValidateIfDue() {
  Progress& progress = loop_.progress;
  progress.validation_due = false;
  const std::int64_t every = Options().validate_every_steps;
  if (every == 0 || (progress.step % every != 0 && !progress.Finished())) return;
  // A stop does not wait for a validation: time may be short. A session with -r begins with it.
  progress.validation_due = (progress.stop && !progress.Finished()) || !Validate();
}

bool Evaluations::Test() {
  if (Options().validate_every_steps == 0) return true;
  report::Record record;
  record.kind = report::Record::Kind::kTest;
  double seconds = 0;
  if (!Evaluate(loop_.data.Tokens(), data::Split::kTest, record, seconds)) return false;
  loop_.monitor->Evaluation(record);
  return true;
}

void Evaluations::PrintSample() {
  const std::int64_t count = Options().sample_tokens;
  if (count == 0 || loop_.data.Pairs() != nullptr) return;
  const data::TokenFile& tokens = loop_.data.Tokens();
  const GenerateOptions options{.prompt = {},
                                .tokens = count,
                                .temperature = 0.8,
                                .top_k = 0,
                                .top_p = 0.95,
                                .seed = loop_.state.Plan().model.seed};
  const auto eos = static_cast<std::int32_t>(tokens.Words().eos);
  loop_.state.ExchangeAverage();
  const std::vector<std::int32_t> added = ContinueOnce(loop_.state.Net(), {eos}, options);
  loop_.state.ExchangeAverage();
  if (!loop_.state.Grid().World().IsRoot()) return;
  loop_.monitor->Sample(loop_.progress.step, Printable(tokens.Decode(added)));
}

}  // namespace trireme::tasks
