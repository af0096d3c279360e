// The peak resident set of this process, and the shared memory in it.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "trireme/report/monitor.hpp"

namespace trireme::report {

namespace {

// A line of /proc/self/status, bytes; -1: there is none.
std::int64_t StatusBytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::int64_t kibibytes = 0;
    if (word == name && status >> kibibytes) return kibibytes * 1024;
  }
  return -1;
}

}  // namespace

// VmHWM belongs to this program alone; ru_maxrss survives exec, so a small program started by a
// large one would report its parent's peak. It stands in where /proc is missing.
std::int64_t PeakResidentBytes() {
  if (const std::int64_t bytes = StatusBytes("VmHWM:"); bytes >= 0) return bytes;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::int64_t SharedResidentBytes() { return std::max(StatusBytes("RssShmem:"), std::int64_t{0}); }

}  // namespace trireme::report
