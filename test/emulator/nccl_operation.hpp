// An operation of emulated NCCL, in steps that a stream runs.
#ifndef TRIREME_TEST_EMULATOR_NCCL_OPERATION_HPP_
#define TRIREME_TEST_EMULATOR_NCCL_OPERATION_HPP_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nccl_members.hpp"
#include "nccl_room.hpp"
#include "nccl_turn.hpp"

namespace emulator {

// One call of NCCL.
struct Call {
  enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive };
  Kind kind = Kind::kAllReduce;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;  // elements, as NCCL takes it
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0;  // or root
};

std::size_t SizeOf(ncclDataType_t type);  // 0: not known here

// Calls of NCCL that move something, by this process so far.
std::int64_t NcclCalls();

// The calls of a group in one communicator. A copy of one that has not begun is an operation of
// its own.
class NcclOperation {
 public:
  // capture: number of the one that records it, or 0.
  NcclOperation(std::shared_ptr<Members> members, std::vector<Call> calls, std::uint64_t capture);
  bool operator()();  // true: done

 private:
  // Transfer by MPI for a call, between buffers of the host.
  struct Transfer {
    std::vector<std::byte> out, in;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status{};
  };
  void Post(const Call& call, Transfer& transfer) const;
  std::vector<std::byte> Noted(const void* from, std::size_t rows, std::size_t bytes) const;
  // Compares the notes in what was received, and takes them out.
  void Unwrap(const Call& call, Transfer& transfer) const;
  void Finish(const Call& call, const Transfer& transfer) const;
  void Reduce(const Call& call, const Transfer& transfer) const;
  bool Abandon();

  std::shared_ptr<Members> members_;
  std::vector<Call> calls_;
  std::shared_ptr<const LaunchNote> note_;
  std::shared_ptr<const void> part_of_graph_;
  std::vector<Transfer> transfers_;  // under way; none before it has begun
  NcclRoom room_;
  NcclTurn turn_;
  Patience patience_;
  bool lost_ = false;
};

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_NCCL_OPERATION_HPP_
