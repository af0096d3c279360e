// Check, before allocation, that a node has the memory that its ranks plan.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/process_grid.hpp"
#include "trireme/device/memory_terms.hpp"

namespace trireme::comm {

// Memory that a process may still take, and the limit that says so: the least of MemAvailable and
// of what the control groups of `proc` leave (memory.max of version 2, memory.limit_in_bytes of
// version 1, of every group up to the root). Files that do not exist set no limit.
struct Available {
  std::int64_t bytes = 0;
  std::string source;
};
Available AvailableMemory(const std::string& proc = "/proc",
                          const std::string& cgroups = "/sys/fs/cgroup");

// Demand of all ranks that share one memory: a node's, or a GPU's.
struct NodeDemand {
  int ranks = 0;
  device::MemoryTerms terms;   // bytes, summed over these ranks
  Available available;         // the least that any of them sees
  std::string where = "node";  // or "GPU"
  bool Fits() const { return terms.Total() <= available.bytes; }
};
// Collective over `node`. mine: planned bytes of this rank. On a GPU's stream the demand is that of
// the ranks that share this rank's card, against what is free on it.
NodeDemand DemandOf(const comm::Communicator& node, const device::MemoryTerms& mine,
                    const device::Stream& stream = {});
// Bytes that a GPU's libraries still take after the plan is checked: code that is loaded on the way
// and plans of attention. (Memory that NCCL and CUDA hold by then is not free any more.)
inline constexpr std::int64_t kGpuLibraryBytes = std::int64_t{512} << 20;

// Throws InputError that names the terms and what would help if the demand exceeds what is
// available. canonical: run.canonical keeps gradients whole with any sharding.
void CheckNodeMemory(const NodeDemand& demand, const comm::ProcessGrid& grid, bool canonical);

}  // namespace trireme::comm
