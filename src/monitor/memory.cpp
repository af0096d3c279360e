// The peak resident set of this process.
#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "trireme/monitor/monitor.hpp"

namespace trireme::monitor {

// VmHWM belongs to this program alone; ru_maxrss survives exec, so a small program started by a
// large one would report its parent's peak. It stands in where /proc is missing.
std::int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace trireme::monitor
