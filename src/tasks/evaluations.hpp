// Evaluations: validations of a training, its test at the end, and the sample text written then.
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
  // Everything referred to must outlive it.
  struct Setup {
    const report::Options& options;               // [monitor]
    std::span<const app::ValidSplit> validation;  // the first set decides on the best checkpoint
    const TrainingData& data;
    const device::StopSignals& signals;
    report::Monitor& monitor;
    Progress& progress;
    BestLoss& best;
    train::TrainingState& state;
    // Collective. Fills in the run's state in a record: step, tokens and memory.
    std::function<void(report::Record&)> place;
  };
  explicit Evaluations(const Setup& setup) : setup_(setup) {}

  // Whether a validation follows the step that begins or the one after it.
  bool IsNear() const;
  // Gives the deadline an estimate of a validation's time until one was measured: a step, which
  // also runs backward, over as many targets takes longer.
  void Expect(const train::StepResult& result) const;
  // Collective. Validates if that is due after this step; on a stop, leaves it to the next session.
  void ValidateIfDue();
  // Collective. Tests at the end of a run if the deck wants that. False if a signal ended it.
  bool Test();
  // Collective. Prints a text written by the trained model, if the deck wants one.
  void PrintSample();

 private:
  bool Due() const;
  bool Validate();
  bool Evaluate(const data::TokenFile& tokens, data::Split split, report::Record& record,
                double& seconds);
  std::int64_t Tokens() const;  // most tokens that a validation of all sets reads

  const Setup setup_;
};

}  // namespace trireme::tasks
