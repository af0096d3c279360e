// The lock of a run folder, which keeps two jobs from writing into one run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/app/batch_job.hpp"

namespace trireme::app {

// The process that holds a run folder, as the lock file describes it.
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

// What `self` can prove about a holder; may ask Slurm (WhyJobEnded). If neither member is set, the
// holder's state is unknown.
struct Fate {
  bool runs = false;  // the holder is alive
  std::string gone;   // proof that it is gone: "its process has ended"; empty: no proof
};
Fate FateOf(const Holder& holder, const Holder& self);

// Holds folder/run.lock from construction to destruction; on world rank 0 only. It relies on
// link(2), rename(2) and unlink(2), which are atomic on NFS and Lustre too, and on no clock;
// src/app/run_lock.cpp describes the protocol.
class RunLock {
 public:
  // Takes the lock, even from a holder that is provably gone: on the same host (by /etc/machine-id)
  // because its process has ended or the host was rebooted; on any host because Slurm has requeued
  // its job or says that the job ended. A process in another container (process-id namespace)
  // cannot be checked. folder: exists. new_folder: this process made it, so it has no leftovers.
  // Throws InputError, with nothing changed, if another process may hold the lock or the lock
  // cannot be read; RunError if it cannot be written.
  RunLock(const std::string& folder, const BatchJob& job, bool new_folder = false);
  ~RunLock();  // removes the lock if this object still holds it
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Reads the lock again. Unless the result is kMine, nothing may be published in the folder. why:
  // receives the reason of kUnknown.
  enum class Standing {
    kMine,
    kLost,     // removed, replaced or damaged
    kUnknown,  // unreadable at present: no descriptor is free, or the network is down
  };
  Standing Look(std::string* why = nullptr) const;
  bool StillMine() const { return Look() == Standing::kMine; }

  // A sentence with the holder that was replaced and the proof of its end; empty: there was none.
  const std::string& TakenFrom() const { return taken_from_; }

 private:
  bool Take(const BatchJob& job);

  std::string path_;   // path of the lock
  std::string token_;  // of this holder
  int process_ = 0;    // process that took the lock; a forked one does not release it
  std::string taken_from_;
};

}  // namespace trireme::app
