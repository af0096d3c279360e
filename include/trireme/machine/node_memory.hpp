// Whether the memory that the ranks of a node plan is there, asked before it is taken.
#ifndef TRIREME_MACHINE_NODE_MEMORY_HPP_
#define TRIREME_MACHINE_NODE_MEMORY_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/process_grid.hpp"

namespace trireme::machine {

using MemoryTerms = std::vector<std::pair<std::string, std::int64_t>>;

// What a process may still take, bytes, and what says so: the least of MemAvailable and of what the
// control groups of `process` leave (memory.max of version 2, memory.limit_in_bytes of version 1,
// of every group up to the root). Files that are not there set no limit.
struct Available {
  std::int64_t bytes = 0;
  std::string source;
};
Available AvailableMemory(const std::string& proc = "/proc",
                          const std::string& cgroups = "/sys/fs/cgroup");

// Of all ranks that share one memory: a node's, or a GPU's.
struct NodeDemand {
  int ranks = 0;
  std::int64_t bytes = 0;
  MemoryTerms terms;           // summed over them
  Available available;         // the least that any of them sees
  std::string where = "node";  // or "GPU"
};
// Collective over `node`. Where the stream is a GPU's, of the ranks that share this rank's card,
// against what is free there.
NodeDemand DemandOf(const comm::Communicator& node, const MemoryTerms& mine,
                    const device::Stream& stream = {});
// What a GPU's libraries still take when the plan is checked: code that is loaded on the way, plans
// of attention; before that the matrices of the roof are there. What NCCL and CUDA have taken by
// then is not free any more.
inline constexpr std::int64_t kGpuLibraryBytes = std::int64_t{512} << 20;

// InputError that names the terms and what would help, where the demand passes what is available.
// canonical: gradients stay whole with any sharding.
void CheckNodeMemory(const NodeDemand& demand, const comm::ProcessGrid& grid, bool canonical);

}  // namespace trireme::machine

#endif  // TRIREME_MACHINE_NODE_MEMORY_HPP_
