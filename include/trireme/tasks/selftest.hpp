// trireme --self-test: what works here and what does not, on the ranks at hand, within a minute.
#ifndef TRIREME_TASKS_SELFTEST_HPP_
#define TRIREME_TASKS_SELFTEST_HPP_

#include <string>

#include "trireme/comm/runtime.hpp"
#include "trireme/deck/schema.hpp"
#include "trireme/device/signals.hpp"
#include "trireme/tasks/cleaner.hpp"

namespace trireme::tasks {

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

#endif  // TRIREME_TASKS_SELFTEST_HPP_
