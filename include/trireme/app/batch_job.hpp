// The batch job that this process runs in, as its environment tells.
#ifndef TRIREME_APP_BATCH_JOB_HPP_
#define TRIREME_APP_BATCH_JOB_HPP_

#include <optional>
#include <string>

namespace trireme::app {

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

#endif  // TRIREME_APP_BATCH_JOB_HPP_
