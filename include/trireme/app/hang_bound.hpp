// The time within which a rank of a healthy job comes forward: beyond it, the watchdogs end the
// job.
#ifndef TRIREME_APP_HANG_BOUND_HPP_
#define TRIREME_APP_HANG_BOUND_HPP_

#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/app/deadline.hpp"

namespace trireme::app {

// Set-up, and whatever no step has been measured for: reading tokens, building the model, the first
// step with its libraries' preparations.
constexpr double kSetUpBound = 600;  // seconds
// Steps differ: a file system that stalls, a processor that others use, memory that is moved. No
// healthy step takes so many times the longest one before it.
constexpr double kStepsABound = 20;
constexpr double kLeastBound = 300;  // seconds; rank 0 writes records in between
// Of a validation or a checkpoint, measured or estimated from its bytes.
constexpr double kLongBound = 3;
// Of a checkpoint: a file system that changes servers answers again after minutes.
constexpr double kDiskBound = 900;  // seconds

// Seconds without a call entered or left, in each part of a job. stated: run.hang_timeout; 0: from
// what `longest` has measured. Of a stated one too, a checkpoint has the time that its bytes need.
double HangBound(comm::Phase phase, double stated, const Deadline& longest);

// From here on the watchdogs await what a set-up takes. stated: run.hang_timeout.
void ArmSetUp(const comm::Runtime& runtime, double stated);

}  // namespace trireme::app

#endif  // TRIREME_APP_HANG_BOUND_HPP_
