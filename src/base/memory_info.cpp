// MemoryInfo: line by line.
#include "trireme/base/memory_info.hpp"

#include <fstream>
#include <sstream>

namespace trireme {

std::optional<std::int64_t> MemoryInfo(const std::string& file, const std::string& name) {
  constexpr std::int64_t kKib = 1024;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Node") words >> word >> word;  // its number
    std::int64_t kib = 0;
    if (word == name + ":" && words >> kib) return kib * kKib;
  }
  return std::nullopt;
}

}  // namespace trireme
