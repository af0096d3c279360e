// GroupMemory: memory that a writer shares with the ranks of its node whose bytes it writes. Each
// rank copies its part in; the writer's thread reads all of it.
#ifndef TRIREME_SRC_CHECKPOINT_GROUP_MEMORY_HPP_
#define TRIREME_SRC_CHECKPOINT_GROUP_MEMORY_HPP_

#include <mpi.h>

#include <cstddef>
#include <cstdint>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/arena.hpp"

namespace trireme::checkpoint {

// Collective. Ranks next to each other on a node that share a writer, their first: `writers` groups
// per node; 0: one per rank.
comm::Communicator GroupOf(const comm::Communicator& world, int writers);

class GroupMemory {
 public:
  // Collective over `world`, of which `group` is a part on one node and outlives it. `bytes`: the
  // same on all ranks of the group. AgreedError if a node has not enough of it.
  GroupMemory(const comm::Communicator& world, const comm::Communicator& group, std::int64_t bytes);
  // Collective over the group, unless this rank unwinds: MPI's end frees the memory then.
  ~GroupMemory();
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  std::byte* Data() const { return data_; }

 private:
  const comm::Communicator* group_ = nullptr;  // sharers of the window
  MPI_Win window_ = MPI_WIN_NULL;
  device::Buffer own_;  // of a group of one, which shares nothing
  std::byte* data_ = nullptr;
  int exceptions_;  // in flight at construction
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_GROUP_MEMORY_HPP_
