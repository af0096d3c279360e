// Work of this rank's own threads on a list of pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace trireme {

// Calls body(i, thread) for each i in [0, count), 0 <= thread < threads, on the calling thread
// (number 0) and up to threads - 1 others. Calls begin in the order of i; after a failure none
// begins any more. Rethrows the failure of the smallest i, once all threads have ended: the same
// one as of a plain loop. Only the calling thread may call MPI.
void InThreads(int threads, std::int64_t count,
               const std::function<void(std::int64_t i, int thread)>& body);

// Figures of /proc/meminfo, and of the same file of a NUMA node.

// Bytes by the line of `name`: "MemAvailable:   1000 kB", or "Node 0 Active(file):   1000 kB". None
// without such a line, or without the file.
std::optional<std::int64_t> MemoryInfo(const std::string& file, const std::string& name);

}  // namespace trireme
