// Memory that the ranks of a node share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::comm {

class Communicator;

// Uses a file in /dev/shm that loses its name once all ranks have mapped it, not an MPI window. Its
// space is reserved before anybody writes, so that a small /dev/shm is an error on all ranks rather
// than a SIGBUS or a rank that waits for ever; and releasing it needs no other rank.
class SharedMemory {
 public:
  // Collective over `group`, ranks of one node. Zeroes the memory. bytes: >= 0, equal on all ranks.
  SharedMemory(const Communicator& group, std::int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // errno of the call that failed, the same on all ranks of the group; 0: success.
  int Error() const { return error_; }
  std::byte* Data() const { return data_; }  // null after an error

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_;
  int error_ = 0;
};

// Advice for error messages: how much of /dev/shm is left, and how to enlarge it.
std::string RoomForSharedMemory();

}  // namespace trireme::comm
