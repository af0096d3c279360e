// Operations of emulated NCCL, in steps that a stream runs, and the ranks that take part.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nccl.h"

namespace emulator {

// Order in which ranks launch operations of communicators that they share.

// Part of a collective's message to the other ranks: operations that its rank had launched before.
struct LaunchNote {
  struct Count {
    std::uint64_t communicator = 0;
    std::int64_t launched = 0;
  };
  std::int64_t number = 0;         // of the collective in its communicator, from 1
  std::int32_t in_graph = 0;       // counted from the beginning of a capture
  std::int32_t occupied = 0;       // of `counts`
  std::array<Count, 24> counts{};  // of communicators that share two ranks; more are not compared
};

// Operations of one communicator that this process has launched. NCCL's kernels of two
// communicators may each wait for the other's room on a card unless the ranks that both have launch
// them in one order; that order is demanded of collectives here, with respect to all operations
// of the other communicator. Two messages may cross: a pipeline's do, by design, and a few blocks
// for each direction are all they need.
class LaunchOrder {
 public:
  // world: the members' ranks in MPI_COMM_WORLD.
  LaunchOrder(std::uint64_t id, std::vector<int> world);
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  // Counts an operation of all members. capture: number of the capture that records it, or 0.
  LaunchNote Launch(std::uint64_t capture);
  // Ends the process if member `other` had launched other operations than this one, `rank`.
  void Compare(const LaunchNote& own, int rank, const LaunchNote& others, int other) const;
  std::string Name() const;  // "communicator 0.2 of ranks 1, 3"

 private:
  std::int64_t Launched(std::uint64_t capture) const;

  std::uint64_t id_;
  std::vector<int> world_;
  std::vector<LaunchOrder*> shared_;  // living ones with two members or more of these, by age
  std::int64_t launched_ = 0;
  std::uint64_t capture_ = 0;  // the last one that recorded an operation
  std::int64_t recorded_ = 0;  // in that one
};

// Members of an emulated NCCL communicator, and the lost ones.

// Outlives its ncclComm as long as operations of it are queued or part of graphs.
class Members {
 public:
  // Collective over the holders of `id`. blocks: at most, of each operation.
  Members(const ncclUniqueId& id, int ranks, int rank, int blocks);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  int Rank() const { return rank_; }
  int Size() const { return ranks_; }
  MPI_Comm Handle() const { return transfers_; }
  bool Aborted() const { return aborted_; }
  void Abort() { aborted_ = true; }
  // ncclSuccess; ncclRemoteError where another is lost, ncclSystemError where this one is;
  // ncclInvalidUsage from the start where two have the same card (all are on one host).
  ncclResult_t State();
  void TellOfLoss();  // to the others, that this one is lost

  int Blocks() const { return blocks_; }
  LaunchOrder& Order() { return *order_; }
  // Held by operations that are part of graphs.
  std::shared_ptr<const void> PartOfGraph() const { return part_of_graph_; }
  bool InGraphs() const { return part_of_graph_.use_count() > 1; }

 private:
  int rank_, ranks_, blocks_;
  std::unique_ptr<LaunchOrder> order_;
  std::shared_ptr<const void> part_of_graph_ = std::make_shared<int>();
  MPI_Comm transfers_ = MPI_COMM_NULL, notices_ = MPI_COMM_NULL;
  std::atomic<bool> aborted_ = false;  // another thread may abort
  ncclResult_t state_ = ncclSuccess;
};

ncclUniqueId NewNcclId();
std::shared_ptr<Members> NewMembers(const ncclUniqueId& id, int ranks, int rank, int blocks);

// Counts an operation that this process comes to; false: it is lost, from now on in all its
// communicators.
bool ComesToOperation();

// Room that operations of NCCL take on a card while they run or wait for other ranks.

int BlocksOfNccl();  // of an operation of a communicator that sets no limit

// The most that operations have occupied at a time since the last call of ForgetMostBlocks.
int MostBlocks();
void ForgetMostBlocks();

// An operation that has begun: its blocks keep their multiprocessors, and its stream's successors
// its hardware queue, until it ends. Ends the process if all operations that have begun leave no
// kernel a multiprocessor or a queue.
class NcclRoom {
 public:
  NcclRoom() = default;
  void Take(int blocks);
  void Leave();

 private:
  int blocks_ = 0;
};

// Order in which NCCL's operations of all communicators begin on a card, as
// NCCL_LAUNCH_ORDER_IMPLICIT has it.

// NCCL's choice (enqueue.cc, getImplicitOrder) by the variable, its own version and the driver's.
enum class BeginOrder {
  kAny,       // as their streams come to them
  kLaunched,  // after the operation that the host launched before has begun
  kSerial     // after that operation has ended
};
BeginOrder OrderOfBegins(bool in_graph);

// Wait of an operation, since the first call of Over.
class Patience {
 public:
  // TRIREME_EMULATOR_PATIENCE, 100: of an operation that waits for its turn. Twice as long for
  // other ranks, so that the operation that holds up all others is told of.
  static std::chrono::seconds Limit();
  bool Over(std::chrono::seconds limit = Limit());

 private:
  std::chrono::steady_clock::time_point since_{};
};

// Place of an operation outside graphs among those of this process. Copies are the same place.
class NcclTurn {
 public:
  NcclTurn() = default;                 // begins when it likes
  explicit NcclTurn(std::string name);  // behind all others so far
  // Whether it has come. Ends the process if it does not come for longer than one has patience.
  bool Come();
  void Begin();
  void End();

 private:
  struct Place;
  std::shared_ptr<Place> place_;
};

// An operation of emulated NCCL, in steps that a stream runs.

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
