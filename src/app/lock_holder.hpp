// The process that holds a run folder, as its lock file describes it, and whether it is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/app/batch_job.hpp"

namespace trireme::app {

struct Holder {
  std::string host;
  std::string machine;       // /etc/machine-id, empty if there is none: two hosts may share a name
  std::string boot;          // id of the host's start
  std::string namespaces;    // of process ids and of time: containers count both on their own
  std::int64_t pid = 0;      // of the process
  std::int64_t started = 0;  // of the process, in clock ticks since the boot
  std::string job, cluster;  // Slurm's, empty if none
  std::int64_t restarts = 0;
  std::string since;  // UTC time at which the lock was taken; for people, decides nothing
  std::string token;  // random, of this lock alone: 32 hexadecimal digits
};

// Description of this process, with a new token.
Holder ThisProcess(const BatchJob& job);

// A lock file's content. Returns none for anything but a complete lock.
std::string Format(const Holder& holder);
std::optional<Holder> Parse(const std::string& text);

// "host a, Slurm job 12, process 34, since 2026-11-22 15:04:05 UTC".
std::string Describe(const Holder& holder);

// What a process can prove about a holder; neither member set: nothing.
struct Fate {
  bool runs = false;  // it was found alive
  std::string gone;   // proof of its end: "its process has ended"; empty: none
};
// What `self` can prove. May ask Slurm's squeue, for at most kSqueueSeconds.
Fate FateOf(const Holder& holder, const Holder& self);

// A controller under load answers within seconds; a start waits no longer than this.
inline constexpr double kSqueueSeconds = 10;

// Runs `squeue -h -j ID -o %T`, found on PATH. Returns the proof that the job has ended, "Slurm
// says that job 12 ended (TIMEOUT)"; empty if it has not, or if squeue is missing, fails or takes
// longer than `seconds`.
std::string WhyJobEnded(const std::string& id, double seconds = kSqueueSeconds);

}  // namespace trireme::app
