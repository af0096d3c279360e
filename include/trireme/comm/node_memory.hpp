// Checks, before allocation, that a node has the memory that its ranks plan to use.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/process_grid.hpp"
#include "trireme/device/memory_terms.hpp"

namespace trireme::comm {

// Bytes that a process may still take, and which limit that is: the least of MemAvailable and of
// what each control group of `proc`, up to the root, has left (memory.max in version 2,
// memory.limit_in_bytes in version 1). Files that do not exist set no limit.
struct Available {
  std::int64_t bytes = 0;
  std::string source;
};
Available AvailableMemory(const std::string& proc = "/proc",
                          const std::string& cgroups = "/sys/fs/cgroup");

// Memory that all ranks of a node, or of a GPU, need together.
struct NodeDemand {
  int ranks = 0;
  device::MemoryTerms terms;   // bytes, summed over these ranks
  Available available;         // the least that any of these ranks sees
  std::string where = "node";  // or "GPU"
  bool Fits() const { return terms.Total() <= available.bytes; }
};
// Collective over `node`. mine: bytes planned by this rank. With a GPU's stream, the sum is over
// the ranks that share this rank's card and is compared with what is free on it.
NodeDemand DemandOf(const comm::Communicator& node, const device::MemoryTerms& mine,
                    const device::Stream& stream = {});
// Bytes that a GPU's libraries take after the check: code that is loaded later, and attention
// plans. (What NCCL and CUDA hold by then already is not counted as free.)
inline constexpr std::int64_t kGpuLibraryBytes = std::int64_t{512} << 20;

// If the demand exceeds what is available, throws an InputError that names the terms and remedies.
// canonical: run.canonical is on, which keeps gradients whole with any sharding.
void CheckNodeMemory(const NodeDemand& demand, const comm::ProcessGrid& grid, bool canonical);

}  // namespace trireme::comm
