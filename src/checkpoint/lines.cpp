// Lines of text, packed into one.
#include "lines.hpp"

#include <cstddef>

namespace trireme::checkpoint {

namespace {

constexpr char kEnd = '\x1e';  // of a line, which may hold newlines

}  // namespace

std::vector<std::string> ShareLines(const comm::Communicator& world,
                                    const std::vector<std::string>& lines) {
  std::string packed;
  for (const std::string& line : lines) packed += line + kEnd;
  packed = world.Broadcast(packed);
  std::vector<std::string> shared;
  for (std::size_t at = 0; at < packed.size();) {
    const std::size_t end = packed.find(kEnd, at);
    shared.push_back(packed.substr(at, end - at));
    at = end + 1;
  }
  return shared;
}

}  // namespace trireme::checkpoint
