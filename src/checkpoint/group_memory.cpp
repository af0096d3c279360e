// GroupMemory: a shared window of MPI, or plain memory for a rank that writes for itself alone.
#include "group_memory.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "trireme/base/error.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

namespace {

// Writes a byte of each page of this rank's part, so that no checkpoint waits for the system to
// find and clear pages.
void Touch(std::byte* begin, std::int64_t bytes) {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  for (std::int64_t at = 0; at < bytes; at += page) begin[at] = std::byte{0};
}

}  // namespace

comm::Communicator GroupOf(const comm::Communicator& world, int writers) {
  const comm::Communicator node = world.SplitNode();
  const int groups = writers == 0 ? node.Size() : std::min(writers, node.Size());
  return node.Split(node.Rank() * groups / node.Size(), node.Rank(), "writer");
}

GroupMemory::GroupMemory(const comm::Communicator& world, const comm::Communicator& group,
                         std::int64_t bytes)
    : exceptions_(std::uncaught_exceptions()) {
  if (group.Size() == 1) {
    world.Together([&] {
      own_ = device::AllocateZeroed(bytes);
      data_ = static_cast<std::byte*>(own_.get());
    });
    return;
  }
  MPI_Comm_set_errhandler(group.Handle(), MPI_ERRORS_RETURN);
  void* base = nullptr;
  const MPI_Aint own_bytes = group.IsRoot() ? bytes : 0;
  group_ = &group;
  int result = MPI_SUCCESS;
  {
    const comm::Recorded recorded(group, comm::Call::kWindow, bytes);
    result = MPI_Win_allocate_shared(own_bytes, 1, MPI_INFO_NULL, group.Handle(),
                                     static_cast<void*>(&base), &window_);
  }
  world.Together([&] {
    if (result == MPI_SUCCESS) return;
    window_ = MPI_WIN_NULL;
    throw RunError(fmt::format("checkpoint: cannot share {} among {} ranks of a node",
                               Mebibytes(bytes), group.Size()),
                   "Is /dev/shm too small? With checkpoint.writers = 0 each rank writes for "
                   "itself, and nothing is shared.");
  });
  MPI_Aint size = 0;
  int unit = 0;
  MPI_Win_shared_query(window_, 0, &size, &unit, static_cast<void*>(&base));
  data_ = static_cast<std::byte*>(base);
  if (group.IsRoot()) Touch(data_, bytes);
  group.Barrier();
}

GroupMemory::~GroupMemory() {
  const bool alone = std::uncaught_exceptions() > exceptions_;
  if (window_ == MPI_WIN_NULL || alone) return;
  const comm::Recorded recorded(*group_, comm::Call::kWindow);
  MPI_Win_free(&window_);
}

}  // namespace trireme::checkpoint
