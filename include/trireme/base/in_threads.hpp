// Runs work on this rank's own threads; reads the system's memory figures.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace trireme {

// Calls body(i, thread) for each i in [0, count), 0 <= thread < threads, on the calling thread
// (number 0) and up to threads - 1 others. Calls begin in the order of i; after a failure, no
// further call begins. Once all threads have ended, rethrows the failure of the smallest i, which
// is the one that a plain loop would meet. Only the calling thread may call MPI.
void InThreads(int threads, std::int64_t count,
               const std::function<void(std::int64_t i, int thread)>& body);

// Reads a number of bytes from /proc/meminfo or the meminfo file of a NUMA node. name: what
// precedes the colon, such as MemAvailable, or Active(file) for "Node 0 Active(file):   1000 kB".
// nullopt if there is no such line or file.
std::optional<std::int64_t> MemoryInfo(const std::string& file, const std::string& name);

}  // namespace trireme
