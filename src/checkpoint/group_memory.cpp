// GroupMemory: shared, or a rank's own.
#include "group_memory.hpp"

#include <algorithm>

namespace trireme::checkpoint {

comm::Communicator GroupOf(const comm::Communicator& world, int writers) {
  const comm::Communicator node = world.SplitNode();
  const int groups = writers == 0 ? node.Size() : std::min(writers, node.Size());
  return node.Split(node.Rank() * groups / node.Size(), node.Rank(), "writer");
}

GroupMemory::GroupMemory(const comm::Communicator& group, std::int64_t bytes) {
  if (group.Size() > 1) {
    shared_.emplace(group, bytes);
  } else {
    own_ = device::AllocateZeroed(bytes);
  }
}

}  // namespace trireme::checkpoint
