// Members of an emulated NCCL communicator, and the lost ones.
#ifndef TRIREME_TEST_EMULATOR_NCCL_MEMBERS_HPP_
#define TRIREME_TEST_EMULATOR_NCCL_MEMBERS_HPP_

#include <mpi.h>

#include <atomic>
#include <memory>

#include "nccl.h"
#include "nccl_order.hpp"

namespace emulator {

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

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_NCCL_MEMBERS_HPP_
