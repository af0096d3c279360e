// NcclChannel: a group's transfers through NCCL. Collectives use one link; messages use one link
// per tag and directed edge of the ring of ranks. Events order the computation's queue and the
// links' queues; the host does not wait.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/channel.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::comm::nccl {

// Link: one NCCL communicator with a queue of its own, so that an operation that waits in it does
// not hold up other queues.

// Throws a RunError "NCCL, what: unhandled system error (...)" unless `result` is success.
void Check(ncclResult_t result, const std::string& what, ncclComm_t communicator = nullptr);

class Link {
 public:
  // Collective over the `ranks` ranks that have `id`. name: for messages. most_blocks: thread
  // blocks that an operation may take from the computation; 0: NCCL's choice.
  Link(std::string name, const ncclUniqueId& id, int ranks, int rank, int most_blocks);
  ~Link();  // abandons transfers under way, unless Destroy was called
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  ncclComm_t Handle() const { return communicator_; }
  cudaStream_t Queue() const { return queue_; }
  const std::string& Name() const { return name_; }

  // A failure that NCCL has found, such as a lost rank or network; "" if none.
  std::string Failure() const;
  bool Idle() const;  // all queued operations are done
  void Destroy();     // only if the link is idle on all its ranks
  // Abandons all transfers; results are undefined. Runs on its own thread, because NCCL's call
  // returns only when its kernels have ended, which may need another link's Abort. The future is
  // ready at once if there is nothing to end.
  std::shared_future<void> Abort() noexcept;

 private:
  std::string name_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t queue_ = nullptr;
  int device_ = 0;
  std::shared_future<void> end_;  // of the abort
};

// NCCL's calls for each kind of transfer:

// This rank's place in a link's group. neighbours: ranks r and r + 1 are connected for messages in
// both directions, so collectives may use messages too.
struct Place {
  int rank = 0, ranks = 1;
  bool neighbours = false;
};

// Queues a collective over all ranks of `link`.
void QueueCollective(const Operation& operation, const Link& link, const Place& place);

// Queues a message in a link of two ranks: rank 0 sends, rank 1 receives. An empty message queues
// nothing.
void QueueMessage(const Operation& operation, const Link& link);

class NcclChannel : public Channel {
 public:
  // Collective over `group`: connects all links by a trial transfer each, so that no later call
  // waits on the host for another rank. (NCCL connects messages at their first use, and since 2.22
  // also what an algorithm of a collective needs, depending on the size, unless
  // NCCL_RUNTIME_CONNECT is 0, which the GPU's start sets.) Only kAllToAll, which consists of
  // messages, connects at its first use, except for shifts and for the neighbours in a shard group.
  NcclChannel(const Communicator& group, const ChannelSetup& setup);
  // Collective, unless an exception is unwinding: waits some seconds for running transfers, then
  // abandons the rest.
  ~NcclChannel() override;

  int Start(const Operation& operation) override;
  bool Test(int ticket) override;
  void Wait(int ticket) override;
  double TakeExposed() override;
  void CheckHealth() override;
  std::vector<std::shared_future<void>> GiveUp() noexcept override;
  bool Recordable() const override { return true; }
  void TraceInto(device::Recorder* recorder) override;
  bool Traces() const override { return true; }

 protected:
  // Orders the link's queue after the work that the computation had queued at Start. A test
  // overrides it to leave this out.
  virtual void FollowComputation(const device::Event& operand, void* link_queue) const;

 private:
  // Events of one transfer; reused once their times have been read.
  struct Flight {
    device::Event operand;  // the computation's queued work at Start has ended
    device::Event arrived;  // the transfer has ended; timed
    device::Event stood;    // the computation has reached Wait; timed
    bool recorded = false;  // captured in a graph: its events cannot be queried or timed
    bool traced = false;    // in a timeline; then `begun` and `slice` are set
    device::Event begun;    // the transfer has begun; timed
    device::Slice slice;    // description of the transfer
  };
  struct Edge {  // a link for messages in one direction
    int peer = 0;
    int tag = 0;
    bool outgoing = false;
    std::unique_ptr<Link> link;
    std::int64_t traced = 0;  // messages recorded in the timeline so far
  };

  void ConnectCollectives(const ChannelSetup& setup);
  void ConnectNeighbours(int way);
  void ConnectEdges(const ChannelSetup& setup);
  void ConnectEdge(int sender, int receiver, int tag);
  // Collective. AgreedError (exit code 2) if messages of neighbours to each other do not arrive.
  void RequireCrossing(const ChannelSetup& setup);
  // The host waits until `link` is idle; RunError if NCCL finds a failure. Returns false if it is
  // not idle when ThreadSeconds() has reached `until`.
  bool Await(const Link& link, double until = std::numeric_limits<double>::infinity());
  const Link& LinkOf(const Operation& operation) const;
  int Take();
  void Settle();
  void BeginTrace(const Operation& operation, Flight& flight, void* link_queue);
  void Trace(const Flight& flight) const;
  bool Capturing() const;
  bool ComeToRest();
  std::string Name() const;

  Communicator group_;  // a duplicate, for MPI messages of the set-up
  Group name_;
  device::Stream stream_;
  int exceptions_;        // number in flight when this was made
  device::Buffer trial_;  // operands of the trial transfers
  std::unique_ptr<Link> collectives_;
  Place place_;  // in the group of collectives_
  std::vector<Edge> edges_;
  std::vector<Flight> flights_;
  std::vector<int> idle_;    // free tickets
  std::vector<int> waited_;  // tickets whose times are still to be read, in the order of Wait
  double exposed_ = 0;       // seconds, of the waits read since TakeExposed
  bool failed_ = false;
  device::Recorder* recorder_ = nullptr;
};

}  // namespace trireme::comm::nccl
