// pm_counters: energies that the node's controller counts, ten times a second (HPE Cray EX).
#include <fmt/format.h>

#include <cerrno>

#include "counter.hpp"
#include "file_counter.hpp"
#include "trireme/base/descriptor.hpp"

namespace trireme::report {

// The counter of the node alone: cpu_energy, memory_energy and accel[0-9]_energy beside it are
// parts of it.
bool FindCray(const Places& places, Counters& counters) {
  const std::string path = places.root + "/sys/cray/pm_counters/energy";
  auto counter = std::make_unique<FileCounter>(path, 1.0);
  errno = 0;
  if (counter->Read()) {
    counters.parts |= kWholeNode;
    counters.node.push_back(std::move(counter));
    return true;
  }
  // A node of another make has no such folder, and needs no word about it.
  if (errno != ENOENT && errno != 0) {
    counters.why.push_back(fmt::format("node: {}: {}", path, ErrorText(errno)));
  }
  return false;
}

}  // namespace trireme::report
