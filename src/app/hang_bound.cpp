// Bounds of the watchdogs, from the stated one and from measured times.
#include "trireme/app/hang_bound.hpp"

#include <algorithm>

namespace trireme::app {

namespace {

double OfSteps(double stated, const Deadline& longest) {
  if (longest.LongestStep() <= 0) return std::max(kSetUpBound, stated);
  if (stated > 0) return stated;
  return std::max(kLeastBound, kStepsABound * longest.LongestStep());
}

}  // namespace

double HangBound(comm::Phase phase, double stated, const Deadline& longest) {
  const double steps = OfSteps(stated, longest);
  switch (phase) {
    case comm::Phase::kStep:
      return steps;
    case comm::Phase::kValidation:  // every round of it is progress
      return stated > 0 ? stated : std::max(steps, kLongBound * longest.LongestValidation());
    case comm::Phase::kCheckpoint:
      return std::max(
          {steps, kLongBound * longest.LongestCheckpoint(), stated > 0 ? 0 : kDiskBound});
    case comm::Phase::kSetUp:
    case comm::Phase::kEnd:
      break;
  }
  return std::max(kSetUpBound, stated);
}

void ArmSetUp(const comm::Runtime& runtime, double stated) {
  runtime.Watch().Arm(comm::Phase::kSetUp, 0, std::max(kSetUpBound, stated));
}

}  // namespace trireme::app
