// Evaluations: validations of a training, its test at the end, and the text that the model writes
// then.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "checkpoint_policy.hpp"
#include "training.hpp"
#include "trireme/app/job.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::tasks {

class Evaluations {
 public:
  // All must outlive it.
  struct Setup {
    const report::Options& options;               // [monitor]
    std::span<const app::ValidSplit> validation;  // the first one decides on the best
    const TrainingData& data;
    const device::StopSignals& signals;
    report::Monitor& monitor;
    Progress& progress;
    BestLoss& best;
    train::TrainingState& state;
    // Collective. Fills what a record says of the run: its step, tokens and memory.
    std::function<void(report::Record&)> place;
  };
  explicit Evaluations(const Setup& setup) : setup_(setup) {}

  // Whether a validation comes after the step that begins or after the next one.
  bool IsNear() const;
  // Tells the deadline how long a validation takes, until one was measured: forward passes alone,
  // so a step of so many targets takes longer.
  void Expect(const train::StepResult& result) const;
  // Collective. Validates if that is due after this step; a stop leaves it to the next session.
  void ValidateIfDue();
  // Collective. The test at the end of a run, unless the deck wants no evaluations; false if a
  // signal ended it.
  bool Test();
  // Collective. Writes a text with the trained model, if the deck wants one.
  void PrintSample();

 private:
  bool Due() const;
  bool Validate();
  bool Evaluate(const data::TokenFile& tokens, data::Split split, report::Record& record,
                double& seconds);
  std::int64_t Tokens() const;  // of a validation of all sets, at most

  const Setup setup_;
};

}  // namespace trireme::tasks
