// Figures of /proc/meminfo, and of the same file of a NUMA node.
#ifndef TRIREME_BASE_MEMORY_INFO_HPP_
#define TRIREME_BASE_MEMORY_INFO_HPP_

#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

// Bytes by the line of `name`: "MemAvailable:   1000 kB", or "Node 0 Active(file):   1000 kB". None
// without such a line, or without the file.
std::optional<std::int64_t> MemoryInfo(const std::string& file, const std::string& name);

}  // namespace trireme

#endif  // TRIREME_BASE_MEMORY_INFO_HPP_
