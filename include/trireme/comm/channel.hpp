// How one group of ranks moves tensors between the memories of their GPUs: the seam behind
// Collectives. NCCL, or, where ranks share a card, MPI by way of the host.
#ifndef TRIREME_COMM_CHANNEL_HPP_
#define TRIREME_COMM_CHANNEL_HPP_

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/places.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

enum class Reduction { kSum, kMax };

// Contents of an operand, for channels that tell transfers of one group apart.
enum class Payload { kActivations, kParameters, kGradients };

// One transfer, as Collectives was asked for it.
struct Operation {
  Transfer transfer = Transfer::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
  Reduction reduction = Reduction::kSum;  // of kAllReduce
  Payload payload = Payload::kActivations;
  const void* from = nullptr;  // device memory. In place: all-reduce and broadcast from == to;
  void* to = nullptr;          // all-gather from == this rank's place in `to`; reduce-scatter from
                               // == to, the result at the front of it
  std::int64_t count = 0;      // elements: of kAllReduce, kBroadcast, kSend, kReceive
  const Places* places = nullptr;  // of the others: each rank's part. kAllToAll: of `from`
  const Places* taken = nullptr;   // kAllToAll: of `to`
  int peer = 0;                    // root, destination or source
  int tag = 0;                     // kSend, kReceive
};

class Channel {
 public:
  virtual ~Channel() = default;
  // Collective as the transfer is. Behind all that the computation has queued so far; returns a
  // ticket. The operation and its places may go when it returns.
  virtual int Start(const Operation& operation) = 0;
  // Whether it is complete, as far as the host can tell now; a chance to progress. The ticket is
  // still to be waited for.
  virtual bool Test(int ticket) = 0;
  // What the computation queues from now on comes behind the transfer. The host waits only where it
  // takes part in the transfer itself. Ends the ticket.
  virtual void Wait(int ticket) = 0;
  // Seconds that the computation stood still in Wait since the last call, as far as the device has
  // come: all of them once it is synchronised. Nothing for what a graph replays, and where the host
  // takes part in the transfer: there it is the host that waits.
  virtual double TakeExposed() = 0;
  // RunError that names the group where a transfer failed on another rank (NCCL's asynchronous
  // errors); gives up its transfers so that nothing waits for ever.
  virtual void CheckHealth() = 0;
  // This rank waits for no transfer any more and starts none: what is under way ends, with what
  // result ever. Returns at once; each of the futures is one thing that still has to end. Nothing
  // where the host takes part in the transfer. No call of the other ranks.
  virtual std::vector<std::shared_future<void>> GiveUp() noexcept = 0;
  // Whether its transfers can be part of a device::Graph.
  virtual bool Recordable() const = 0;
};

// Returns when all have ended, or when no more is to be expected (seconds).
void AwaitEnds(const std::vector<std::shared_future<void>>& ends) noexcept;

// Name and version of the library behind it, for --version: "NCCL 2.28.3"; "" where CUDA was not
// built.
std::string GpuTransferLibrary();

struct ChannelSetup {
  device::Stream stream = {};  // on a GPU
  Group group = Group::kWorld;
  bool staged = false;  // by way of the host (run.share_device)
  // Point-to-point messages on the ring of ranks: tags of those to the next rank, and to the one
  // before. Messages of one tag between two ranks arrive in order; those of another tag or
  // direction neither hold them up nor wait for them.
  std::vector<int> to_next = {}, to_previous = {};
  bool closed = true;  // the last rank's next is the first; else nothing travels between these two
  // Transfers are shifts around the ring, beside the computation, of which they take little.
  bool shifts = false;
};

// Collective over `group`, which may go when it returns; so is the end of a channel, which graphs
// with its transfers must not outlive. Null for a group of one, and on the CPU.
std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup);

}  // namespace trireme::comm

#endif  // TRIREME_COMM_CHANNEL_HPP_
