// The process that holds a run folder, as the lock file describes it, and whether it is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/app/batch_job.hpp"

namespace trireme::app {

struct Holder {
  std::string host;
  std::string machine;       // /etc/machine-id, because hosts may share a name; empty: none
  std::string boot;          // boot id of the host
  std::string namespaces;    // of process ids and of time, which containers may have of their own
  std::int64_t pid = 0;      // process id
  std::int64_t started = 0;  // start of the process, clock ticks since boot
  std::string job, cluster;  // Slurm's job id and cluster name; empty: none
  std::int64_t restarts = 0;
  std::string since;  // UTC time at which the lock was taken; only for people
  std::string token;  // random name of this lock: 32 hexadecimal digits
};

// Describes this process, with a new token.
Holder ThisProcess(const BatchJob& job);

// Format makes the content of a lock file; Parse reads it, nullopt unless it is a complete lock.
std::string Format(const Holder& holder);
std::optional<Holder> Parse(const std::string& text);

// "host a, Slurm job 12, process 34, since 2026-11-22 15:04:05 UTC".
std::string Describe(const Holder& holder);

// What a process can prove about a holder. If neither member is set, its state is unknown.
struct Fate {
  bool runs = false;  // the holder is alive
  std::string gone;   // proof that it is gone: "its process has ended"; empty: no proof
};
// What `self` can prove: the holder is alive, gone (and why), or unknown. May ask Slurm's squeue,
// for at most kSqueueSeconds.
Fate FateOf(const Holder& holder, const Holder& self);

// Longest wait for squeue: even a controller under load answers within seconds.
inline constexpr double kSqueueSeconds = 10;

// Runs `squeue -h -j ID -o %T` from PATH. Returns the proof that the job has ended: "Slurm says
// that job 12 ended (TIMEOUT)"; empty if it has not, or if squeue is missing, fails or is too slow.
std::string WhyJobEnded(const std::string& id, double seconds = kSqueueSeconds);

}  // namespace trireme::app
