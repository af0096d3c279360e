// Memory of a rank at its peak in the tasks that only convert weights: said before any are read.
#ifndef TRIREME_SRC_TASKS_PEAK_MEMORY_HPP_
#define TRIREME_SRC_TASKS_PEAK_MEMORY_HPP_

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "trireme/comm/communicator.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

// Bytes.
struct PeakMemory {
  std::int64_t program = 0;  // taken by the rank so far: code, libraries, lists of tensors
  std::int64_t buffers = 0;  // pieces of weights on their way
  std::int64_t tensor = 0;   // the largest one that is held as a whole
  std::int64_t texts = 0;    // files that are copied beside the weights
  std::int64_t Total() const { return program + buffers + tensor + texts; }
};

// Collective. The largest of each term on any rank.
inline PeakMemory LargestOf(const comm::Communicator& world, const PeakMemory& mine) {
  return {.program = world.Max(mine.program),
          .buffers = world.Max(mine.buffers),
          .tensor = world.Max(mine.tensor),
          .texts = world.Max(mine.texts)};
}

// "memory  a rank: program 41 MiB + buffers 76 MiB + one tensor 9.0 MiB = 126 MiB (132120576
// bytes)".
inline std::string Describe(const PeakMemory& memory) {
  using report::AsBytes;
  std::string text = fmt::format("memory  a rank: program {} + buffers {}", AsBytes(memory.program),
                                 AsBytes(memory.buffers));
  if (memory.tensor > 0) text += fmt::format(" + one tensor {}", AsBytes(memory.tensor));
  if (memory.texts > 0) text += fmt::format(" + other files {}", AsBytes(memory.texts));
  return text + fmt::format(" = {} ({} bytes)", AsBytes(memory.Total()),
                            report::WithThousands(memory.Total()));
}

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_PEAK_MEMORY_HPP_
