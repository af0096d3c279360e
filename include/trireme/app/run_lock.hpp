// The lock of a run folder: two jobs must not write into one run.
#pragma once

#include <string>

#include "trireme/app/batch_job.hpp"

namespace trireme::app {

// Holds folder/run.lock from construction to destruction. Serial: world rank 0 only. Rests on
// link(2), rename(2) and unlink(2), which are atomic on NFS and Lustre too; src/app/run_lock.cpp
// describes the protocol. Clocks decide nothing.
class RunLock {
 public:
  // Takes the lock, also from a holder that is provably gone: its process has ended or its host was
  // started again, seen from the same host (by /etc/machine-id); Slurm has started its job again,
  // or says that it ended. A process in another container (process-id namespace) of its host cannot
  // be seen. folder: exists. Throws InputError, with nothing changed, if another process may hold
  // the lock or the lock cannot be read; RunError if it cannot be written.
  // new_folder: this process has made it, so that no other has left anything there.
  RunLock(const std::string& folder, const BatchJob& job, bool new_folder = false);
  ~RunLock();  // removes the lock if it is still this one's
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Reads the lock anew. Unless it is kMine, nothing may be published in the folder. why: set to
  // the reason of kUnknown.
  enum class Standing {
    kMine,
    kLost,     // removed, replaced or damaged
    kUnknown,  // unreadable just now: no descriptor is free, or the network is down
  };
  Standing Look(std::string* why = nullptr) const;
  bool StillMine() const { return Look() == Standing::kMine; }

  // The holder that was replaced, and why it is known to be gone: a sentence for a message; empty
  // if the folder was free.
  const std::string& TakenFrom() const { return taken_from_; }

 private:
  bool Take(const BatchJob& job);

  std::string path_;   // of the lock
  std::string token_;  // of this holder
  int process_ = 0;    // the lock's; a forked one does not release it
  std::string taken_from_;
};

}  // namespace trireme::app
