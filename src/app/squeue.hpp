// The question to Slurm whether a job has ended.
#ifndef TRIREME_SRC_APP_SQUEUE_HPP_
#define TRIREME_SRC_APP_SQUEUE_HPP_

#include <string>

namespace trireme::app {

// A controller under load answers within seconds; a start waits no longer than this.
inline constexpr double kSqueueSeconds = 10;

// Runs `squeue -h -j ID -o %T`, found on PATH. Returns the proof that the job has ended, "Slurm
// says that job 12 ended (TIMEOUT)"; empty if it has not, or if squeue is missing, fails or takes
// longer than `seconds`.
std::string WhyJobEnded(const std::string& id, double seconds = kSqueueSeconds);

}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_SQUEUE_HPP_
