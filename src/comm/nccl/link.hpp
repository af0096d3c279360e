// One NCCL communicator and the queue of its own in which its operations run: whatever waits in it
// holds up no other.
#ifndef TRIREME_SRC_COMM_NCCL_LINK_HPP_
#define TRIREME_SRC_COMM_NCCL_LINK_HPP_

#include <cuda_runtime.h>
#include <nccl.h>

#include <future>
#include <string>

namespace trireme::comm::nccl {

// RunError "NCCL, what: unhandled system error (...)".
void Check(ncclResult_t result, const std::string& what, ncclComm_t communicator = nullptr);

class Link {
 public:
  // Collective over the `ranks` ranks that hold `id`. name: for messages. most_blocks: thread
  // blocks that an operation may take from the computation; 0: as NCCL likes.
  Link(std::string name, const ncclUniqueId& id, int ranks, int rank, int most_blocks);
  ~Link();  // gives up what is under way, unless Destroy was called
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  ncclComm_t Handle() const { return communicator_; }
  cudaStream_t Queue() const { return queue_; }
  const std::string& Name() const { return name_; }

  // A failure that NCCL has found since the start, "" if none: a rank that is gone, a network
  // that failed.
  std::string Failure() const;
  bool Idle() const;  // all that was queued is done
  void Destroy();     // of a link that is idle on all its ranks
  // Abandons all transfers; results are undefined. Runs on its own thread, because NCCL's call
  // returns only when its kernels have ended, which may need another link's Abort. The future is
  // ready at once if there is nothing to end.
  std::shared_future<void> Abort() noexcept;

 private:
  std::string name_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t queue_ = nullptr;
  int device_ = 0;
  std::shared_future<void> end_;  // of what was given up
};

}  // namespace trireme::comm::nccl

#endif  // TRIREME_SRC_COMM_NCCL_LINK_HPP_
