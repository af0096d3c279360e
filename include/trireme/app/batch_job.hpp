// The batch job in which this process runs: its end, its restarts, and what its environment says.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace trireme::app {

// Decides when a run must stop so that its last checkpoint is written before its batch job ends.
// It is told how long steps, checkpoints and validations take, and counts the longest of each ever
// seen: a file system that was slow once may be slow again. Durations are in seconds. It reads no
// clock. Ranks with different measurements get different answers and must agree on one.
class Deadline {
 public:
  // Durations are multiplied by this: writing to a shared file system varies by tens of per cent
  // from one checkpoint to the next.
  static constexpr double kSafetyFactor = 1.5;
  // Reserve that is always added: MPI_Finalize takes seconds, Slurm gives the end in whole seconds,
  // and the clocks of its controller and the nodes differ a little.
  static constexpr double kFloorSeconds = 20;
  // Assumed for a checkpoint or validation that was neither measured nor estimated.
  static constexpr double kUnknownSeconds = 60;

  // end_unix_seconds: the job's end; nullopt: it has none. unix_now and now: the same moment on the
  // system's clock and on the monotonic one (Seconds()). The system's clock is used only here, for
  // the time left, so that later jumps of it have no effect.
  Deadline(std::optional<double> end_unix_seconds, double unix_now, double now);

  void Step(double seconds);
  void Checkpoint(double seconds);
  void Validation(double seconds);
  // Sets estimates (from bytes or windows, say) that are used until the first measurement.
  void ExpectCheckpoint(double seconds) { expected_checkpoint_ = seconds; }
  void ExpectValidation(double seconds) { expected_validation_ = seconds; }

  // True if one more step, the validation after it (if one follows) and a checkpoint might not end
  // before the job does. now: Seconds(). Before the first Step() a step counts as 0 s.
  bool MustStop(double now, bool validation_follows) const;

  // The longest of each so far. LongestStep leaves out the first step, which prepares libraries and
  // connections; 0: no other yet. The others return estimates before the first measurement.
  double LongestStep() const { return later_step_; }
  double LongestValidation() const { return validation_.value_or(expected_validation_); }
  double LongestCheckpoint() const { return checkpoint_.value_or(expected_checkpoint_); }

  // Seconds that MustStop reserves for this work, with kSafetyFactor and kFloorSeconds.
  double Needed(bool validation_follows) const;
  // Seconds until the job ends; negative after its end; infinity if it has none.
  double Left(double now) const { return end_ - now; }

 private:
  double end_ = std::numeric_limits<double>::infinity();  // as Seconds()
  double step_ = 0, later_step_ = 0;
  std::optional<double> checkpoint_, validation_;  // the longest so far
  double expected_checkpoint_ = kUnknownSeconds;
  double expected_validation_ = kUnknownSeconds;
};

// Counting starts that make no progress: a run whose state makes it fail must not loop for ever.

// Notes in folder/restarts.json that a session begins at `step`. Returns how many consecutive
// sessions, including this one, have begun at this step; 1 on the first start and whenever the step
// has changed. Called by the one rank that holds the RunLock. A damaged file counts as missing. On
// return the note is on disk. Throws RunError if it cannot be written.
int CountStart(const std::string& folder, std::int64_t step);

// Removes the note, for a new run in a folder that held another run. Called by one rank.
void ForgetStarts(const std::string& folder);

// The step of the last start in folder/restarts.json; 0 if there is no readable note.
std::int64_t LastStart(const std::string& folder);

struct BatchJob {
  std::string id;                          // Slurm's job id, digits; empty: no job
  std::string cluster;                     // Slurm's cluster name; empty: unknown
  int restarts = 0;                        // how often Slurm has requeued the job
  std::optional<double> end_unix_seconds;  // end of the job; nullopt: none or unknown
};

// Reads SLURM_JOB_ID, SLURM_CLUSTER_NAME, SLURM_RESTART_COUNT and the job's end: SLURM_JOB_END_TIME
// if that is a time, else TRIREME_JOB_END_TIME, which a batch script sets by
//   export TRIREME_JOB_END_TIME=$(squeue -h -j "$SLURM_JOB_ID" -o %e)
// Both accept Unix seconds and 2026-11-22T15:04:05 (local time). A value that cannot be read counts
// as unset.
BatchJob ReadBatchJob();

// Runs `squeue -h -j ID -o %T` from PATH. Returns the proof that the job has ended: "Slurm says
// that job 12 ended (TIMEOUT)"; empty if it has not, or if squeue is missing, fails or takes longer
// than `seconds`. A controller under load still answers within a few seconds.
std::string WhyJobEnded(const std::string& id, double seconds = 10);

}  // namespace trireme::app
