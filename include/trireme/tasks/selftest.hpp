// trireme --self-test: what works here and what does not, on the ranks at hand, within a minute.
#pragma once

#include <sys/types.h>
#include <string>

#include "trireme/comm/runtime.hpp"
#include "trireme/deck/schema.hpp"
#include "trireme/device/signals.hpp"

namespace trireme::tasks {

// Cleaner: a process of its own that removes a folder when this process has ended, however it
// ended.

class Cleaner {
 public:
  // Starts the process, in a session of its own, which no signal to this one's group reaches.
  // Before MPI: a fork later is unsafe. Without a process to spare there is none, and Folder's
  // folder goes with the destructor alone.
  Cleaner();
  ~Cleaner();  // removes the folder and waits for the process
  Cleaner(const Cleaner&) = delete;
  Cleaner& operator=(const Cleaner&) = delete;

  void Folder(const std::string& path);  // absolute, at most once

 private:
  int to_child_ = -1;  // end of a pipe
  pid_t child_ = -1;
  std::string path_;
};

struct Setting {
  const comm::Runtime* runtime = nullptr;
  const deck::Schema* schema = nullptr;
  device::StopSignals* signals = nullptr;
  Cleaner* cleaner = nullptr;  // of this rank
  std::string folder;          // for its files, which all ranks must see; empty: $TMPDIR, else /tmp
};

// Collective. Runs all checks; world rank 0 prints a line for each and a verdict. Returns kDone if
// all passed, kFailed if one did not, kStopped after a signal. Leaves no file behind.
ExitCode RunSelfTest(const Setting& setting);

}  // namespace trireme::tasks
