// Evaluations: validations of a training, its test at the end, and the sample text written then.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "checkpoint_policy.hpp"
#include "training.hpp"
#include "trireme/app/job.hpp"

namespace trireme::tasks {

class Evaluations {
 public:
  // validation: the first set decides on the best checkpoint; place: collective, fills in the run's
  // state in a record (step, tokens and memory). Everything referred to must outlive it.
  Evaluations(LoopParts& loop, std::span<const app::ValidSplit> validation, BestLoss& best,
              std::function<void(report::Record&)> place)
      : loop_(loop), validation_(validation), best_(best), place_(std::move(place)) {}

  // Whether validate_every_steps makes a validation follow the step that begins or the next one.
  bool IsNear() const;
  // Estimates a validation's time for the deadline until one is measured: the time of a step over
  // as many targets, which is longer because a step also runs backward.
  void Expect(const train::StepResult& result) const;
  // Collective. Validates if that is due after this step; on a stop, leaves it to the next session.
  void ValidateIfDue();
  // Collective. Evaluates the test split if the deck wants that. False if a signal ended it.
  bool Test();
  // Collective. Prints a text written by the trained model, if the deck wants one.
  void PrintSample();

 private:
  bool Validate();
  bool Evaluate(const data::TokenFile& tokens, data::Split split, report::Record& record,
                double& seconds);

  const report::Options& Options() const { return loop_.job.request.monitor; }

  LoopParts& loop_;
  const std::span<const app::ValidSplit> validation_;
  BestLoss& best_;
  const std::function<void(report::Record&)> place_;
};

}  // namespace trireme::tasks
