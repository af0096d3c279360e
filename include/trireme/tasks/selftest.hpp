// trireme --self-test: checks within a minute what works on the ranks at hand and what does not.
#pragma once

#include <sys/types.h>
#include <string>

#include "trireme/comm/runtime.hpp"
#include "trireme/deck/schema.hpp"
#include "trireme/device/signals.hpp"

namespace trireme::tasks {

// Cleaner: a child process that removes a folder once this process has ended, however it ended.
class Cleaner {
 public:
  // Starts the process in a session of its own, so that signals to this process's group do not
  // reach it. Call it before MPI starts: a later fork is unsafe. If no process can be started, only
  // the destructor removes the folder.
  Cleaner();
  ~Cleaner();  // removes the folder and waits for the process
  Cleaner(const Cleaner&) = delete;
  Cleaner& operator=(const Cleaner&) = delete;

  void Folder(const std::string& path);  // folder to remove: absolute, set at most once

 private:
  int to_child_ = -1;  // writing end of a pipe
  pid_t child_ = -1;
  std::string path_;
};

struct Setting {
  const comm::Runtime* runtime = nullptr;
  const deck::Schema* schema = nullptr;
  device::StopSignals* signals = nullptr;
  Cleaner* cleaner = nullptr;  // this rank's
  std::string folder;  // for the test's files; all ranks must see it; empty: $TMPDIR, else /tmp
};

// Collective. Runs all checks; world rank 0 prints a line per check and a verdict. Returns kDone if
// all passed, kFailed if one did not, kStopped after a signal. Leaves no files behind.
ExitCode RunSelfTest(const Setting& setting);

}  // namespace trireme::tasks
