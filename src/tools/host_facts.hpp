// Facts of this host and this process, for a ticket.
#ifndef TRIREME_SRC_TOOLS_HOST_FACTS_HPP_
#define TRIREME_SRC_TOOLS_HOST_FACTS_HPP_

#include <string>

namespace trireme::tools {

// Host, kernel, distribution, processors, memory, time; unknown ones are left out.
std::string HostFacts();

// Shared libraries of this process with their files and sizes, as its loader found them.
std::string LoadedLibraries();

// Type, size and free space of the file systems of `run`, the current directory, $TMPDIR and
// /dev/shm.
std::string FileSystems(const std::string& run);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_HOST_FACTS_HPP_
