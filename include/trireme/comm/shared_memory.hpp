// Memory that the ranks of a node share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::comm {

class Communicator;

// A file of ours in /dev/shm that has no name once all have it, not a window of MPI: its room is
// reserved before anybody writes, so that a small /dev/shm is an error of all ranks and neither a
// SIGBUS nor a rank that waits for ever, and nobody waits for anybody at its end.
class SharedMemory {
 public:
  // Collective over `group`, ranks of one node. bytes: the same on all of them, 0 or more. Zeroed.
  SharedMemory(const Communicator& group, std::int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // errno of what failed, the same on all ranks of the group; 0: nothing did.
  int Error() const { return error_; }
  std::byte* Data() const { return data_; }  // null after an error

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_;
  int error_ = 0;
};

// Hints for messages: what /dev/shm has left, and how to have more of it.
std::string RoomForSharedMemory();

}  // namespace trireme::comm
