// trireme --self-test: what works here and what does not, on the ranks at hand, within a minute.
#ifndef TRIREME_SELFTEST_SELFTEST_HPP_
#define TRIREME_SELFTEST_SELFTEST_HPP_

#include <string>

#include "trireme/comm/runtime.hpp"
#include "trireme/input/schema.hpp"
#include "trireme/machine/signals.hpp"
#include "trireme/selftest/cleaner.hpp"

namespace trireme::selftest {

struct Setting {
  const comm::Runtime* runtime = nullptr;
  const input::Schema* schema = nullptr;
  machine::StopSignals* signals = nullptr;
  Cleaner* cleaner = nullptr;  // of this rank
  std::string folder;          // for its files, which all ranks must see; empty: $TMPDIR, else /tmp
};

// Collective. Runs all checks; world rank 0 prints a line for each and a verdict. Returns kDone if
// all passed, kFailed if one did not, kStopped after a signal. Leaves no file behind.
ExitCode RunSelfTest(const Setting& setting);

}  // namespace trireme::selftest

#endif  // TRIREME_SELFTEST_SELFTEST_HPP_
