// GroupMemory: memory that a writer shares with the ranks of its node whose bytes it writes. Each
// rank copies its part in; the writer's thread reads all of it.
#ifndef TRIREME_SRC_CHECKPOINT_GROUP_MEMORY_HPP_
#define TRIREME_SRC_CHECKPOINT_GROUP_MEMORY_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/shared_memory.hpp"
#include "trireme/device/arena.hpp"

namespace trireme::checkpoint {

// Collective. Ranks next to each other on a node that share a writer, their first: `writers` groups
// per node; 0: one per rank.
comm::Communicator GroupOf(const comm::Communicator& world, int writers);

class GroupMemory {
 public:
  // Collective over `group`, a part of the ranks of one node. `bytes`: the same on all of them.
  // Throws if the memory of a group of one is missing.
  GroupMemory(const comm::Communicator& group, std::int64_t bytes);

  int Error() const { return shared_ ? shared_->Error() : 0; }  // as of comm::SharedMemory
  std::byte* Data() const {
    return shared_ ? shared_->Data() : static_cast<std::byte*>(own_.get());
  }

 private:
  std::optional<comm::SharedMemory> shared_;
  device::Buffer own_;  // of a group of one
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_GROUP_MEMORY_HPP_
