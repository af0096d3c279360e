// The batch job that this process runs in, as its environment tells.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace trireme::app {

// The end of a batch job's time: stops a run early enough that its last checkpoint is written.

// Learns how long steps, checkpoints and validations take; the longest of each counts, for ever: a
// file system that was slow once may be slow again just before the end. All durations are in
// seconds. Reads no clock. Answers differ between ranks with what was fed; agree on one of them.
class Deadline {
 public:
  // A duration may turn out this much longer than the longest seen: writing to a shared file system
  // varies by tens of per cent from one checkpoint to the next.
  static constexpr double kSafetyFactor = 1.5;
  // Always left over: leaving through MPI_Finalize takes seconds, Slurm states its end in whole
  // seconds, and the clocks of its controller and of the nodes differ a little.
  static constexpr double kFloorSeconds = 20;
  // A checkpoint or validation that was neither measured nor estimated.
  static constexpr double kUnknownSeconds = 60;

  // end_unix_seconds: the job's end, none if there is none. unix_now and now: the same moment on
  // the system's clock and on the monotonic one (Seconds()). Only the difference to the end enters,
  // here and once, so that later jumps of the system's clock change nothing.
  Deadline(std::optional<double> end_unix_seconds, double unix_now, double now);

  void Step(double seconds);
  void Checkpoint(double seconds);
  void Validation(double seconds);
  // Estimates, from bytes or windows say, that hold until the first measurement.
  void ExpectCheckpoint(double seconds) { expected_checkpoint_ = seconds; }
  void ExpectValidation(double seconds) { expected_validation_ = seconds; }

  // now: Seconds(). True if one more step, the validation after it if one is due, and a checkpoint
  // might not end before the job does. Before the first Step() a step counts as nothing.
  bool MustStop(double now, bool validation_follows) const;

  // Longest of each so far: a step, 0 before the first; a validation and a checkpoint as expected
  // before the first.
  // The first step, which prepares libraries and connections, left out; 0: none yet.
  double LongestStep() const { return later_step_; }
  double LongestValidation() const { return validation_.value_or(expected_validation_); }
  double LongestCheckpoint() const { return checkpoint_.value_or(expected_checkpoint_); }

  // Seconds of that work, factor and floor included.
  double Needed(bool validation_follows) const;
  // Seconds until the job ends, negative after it; infinity without an end.
  double Left(double now) const { return end_ - now; }

 private:
  double end_ = std::numeric_limits<double>::infinity();  // on the monotonic clock
  double step_ = 0, later_step_ = 0;
  std::optional<double> checkpoint_, validation_;  // longest seen
  double expected_checkpoint_ = kUnknownSeconds;
  double expected_validation_ = kUnknownSeconds;
};

// The count of starts that led nowhere, so that a run whose state kills it cannot loop for ever.

// Notes in folder/restarts.json that a session begins at `step`, and returns how many sessions in a
// row, this one included, have begun there: 1 after progress, a step back, or on the first start.
// Serial: one rank, which holds the RunLock. A damaged file counts as none. The note is on the disk
// when the call returns. Throws RunError if it cannot be written.
int CountStart(const std::string& folder, std::int64_t step);

// Removes the note, as for a new run in a folder that held another one. Serial.
void ForgetStarts(const std::string& folder);

// Step of the last start noted in folder/restarts.json; 0 without one that can be read. Serial.
std::int64_t LastStart(const std::string& folder);

struct BatchJob {
  std::string id;                          // Slurm's number of the job, digits; empty: no job
  std::string cluster;                     // Slurm's name of the cluster; empty: unknown
  int restarts = 0;                        // times that Slurm has queued the job again
  std::optional<double> end_unix_seconds;  // end of its time; none: no limit, or unknown
};

// Reads SLURM_JOB_ID, SLURM_CLUSTER_NAME, SLURM_RESTART_COUNT and the job's end: SLURM_JOB_END_TIME
// if set to a time, else TRIREME_JOB_END_TIME, which a batch script takes from
//   export TRIREME_JOB_END_TIME=$(squeue -h -j "$SLURM_JOB_ID" -o %e)
// Both accept Unix seconds and 2026-11-22T15:04:05 (local time). A value that cannot be read counts
// as unset.
BatchJob ReadBatchJob();

}  // namespace trireme::app
