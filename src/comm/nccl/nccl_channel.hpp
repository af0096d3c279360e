// A group's transfers through NCCL: collectives on one link, messages on a link for each directed
// edge of the ring of ranks and each tag. Events lead from the computation's queue to a link's and
// back; the host waits for nothing.
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

// One NCCL communicator and the queue of its own in which its operations run: whatever waits in it
// holds up no other.

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

// NCCL's calls for each kind of transfer.

// This rank's place in the group of a link. neighbours: messages between ranks r and r + 1 are
// connected in both directions, so that collectives may be made of them, too.
struct Place {
  int rank = 0, ranks = 1;
  bool neighbours = false;
};

// Queues a collective of the group of `link`.
void QueueCollective(const Operation& operation, const Link& link, const Place& place);

// Queues a message in a link of two ranks, the sender's and the receiver's in this order. Nothing
// for an empty one.
void QueueMessage(const Operation& operation, const Link& link);

class NcclChannel : public Channel {
 public:
  // Collective over `group`: connects all links, so that no later call waits for another rank on
  // the host. NCCL connects messages at the first one, and from 2.22 on what an algorithm of a
  // collective needs at its first use, which depends on the size too, unless NCCL_RUNTIME_CONNECT
  // is 0, as the start of the GPU sets it; hence a transfer of each link here. Transfer::kAllToAll
  // alone, made of messages, connects at its first use, unless it is a shift; a shard group's
  // neighbours are connected here.
  NcclChannel(const Communicator& group, const ChannelSetup& setup);
  // Collective, unless an exception is under way: waits some seconds for what runs, then gives up
  // the rest.
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
  // Orders the link's queue after the work that the computation had queued at Start. A test leaves
  // it out.
  virtual void FollowComputation(const device::Event& operand, void* link_queue) const;

 private:
  // One transfer's events, used again when they have been read.
  struct Flight {
    device::Event operand;  // end of the work queued by the computation at Start
    device::Event arrived;  // the transfer's end; timed
    device::Event stood;    // the computation came to Wait; timed
    bool recorded = false;  // part of a graph: no times, and no questions
    bool traced = false;    // part of a timeline, with
    device::Event begun;    // the transfer's beginning; timed
    device::Slice slice;    // description of the transfer
  };
  struct Edge {  // of messages
    int peer = 0;
    int tag = 0;
    bool outgoing = false;
    std::unique_ptr<Link> link;
    std::int64_t traced = 0;  // messages in the timeline so far
  };

  void ConnectCollectives(const ChannelSetup& setup);
  void ConnectNeighbours(int way);
  void ConnectEdges(const ChannelSetup& setup);
  void ConnectEdge(int sender, int receiver, int tag);
  // Collective. AgreedError (exit code 2) if messages of neighbours to each other do not arrive.
  void RequireCrossing(const ChannelSetup& setup);
  // The host waits, unless NCCL finds a failure: RunError. false: not idle when this
  // thread has run for `until` seconds.
  bool Await(const Link& link, double until = std::numeric_limits<double>::infinity());
  const Link& LinkOf(const Operation& operation) const;
  int Take();
  void Settle();
  void BeginTrace(const Operation& operation, Flight& flight, void* link_queue);
  void Trace(const Flight& flight) const;
  bool Capturing() const;
  bool ComeToRest();
  std::string Name() const;

  Communicator group_;  // a communicator of its own, for metadata
  Group name_;
  device::Stream stream_;
  int exceptions_;        // under way when this was made
  device::Buffer trial_;  // operands of the transfers that connect
  std::unique_ptr<Link> collectives_;
  Place place_;  // in the group of collectives_
  std::vector<Edge> edges_;
  std::vector<Flight> flights_;
  std::vector<int> idle_;    // tickets
  std::vector<int> waited_;  // tickets whose times are still to be read, in the order of Wait
  double exposed_ = 0;       // seconds, of those that were read
  bool failed_ = false;
  device::Recorder* recorder_ = nullptr;
};

}  // namespace trireme::comm::nccl
