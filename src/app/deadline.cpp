// The margin before the end of a batch job's time.
#include "trireme/app/deadline.hpp"

#include <algorithm>

namespace trireme::app {

Deadline::Deadline(std::optional<double> end_unix_seconds, double unix_now, double now) {
  if (end_unix_seconds) end_ = now + (*end_unix_seconds - unix_now);
}

void Deadline::Step(double seconds) {
  if (step_ > 0) later_step_ = std::max(later_step_, seconds);
  step_ = std::max(step_, seconds);
}

void Deadline::Checkpoint(double seconds) {
  checkpoint_ = std::max(checkpoint_.value_or(0), seconds);
}

void Deadline::Validation(double seconds) {
  validation_ = std::max(validation_.value_or(0), seconds);
}

double Deadline::Needed(bool validation_follows) const {
  double work = step_ + checkpoint_.value_or(expected_checkpoint_);
  if (validation_follows) work += validation_.value_or(expected_validation_);
  return kSafetyFactor * work + kFloorSeconds;
}

bool Deadline::MustStop(double now, bool validation_follows) const {
  return Left(now) < Needed(validation_follows);
}

}  // namespace trireme::app
