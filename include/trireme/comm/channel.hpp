// Channel: the seam behind Collectives by which one group of ranks moves tensors between the
// memories of its GPUs. NCCL, or MPI by way of the host if ranks share a card.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/options.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::device {
struct Slice;
}

namespace trireme::comm {

enum class Reduction { kSum, kMax };

// Contents of an operand, for channels that tell transfers of one group apart.
enum class Payload { kActivations, kParameters, kGradients };

inline std::int64_t BytesOf(Dtype dtype, std::int64_t count) {
  return count * static_cast<std::int64_t>(SizeOf(dtype));
}

// One transfer, as it was asked of Collectives.
struct Operation {
  Transfer transfer = Transfer::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
  Reduction reduction = Reduction::kSum;  // of kAllReduce
  Payload payload = Payload::kActivations;
  // Device memory. In place: all-reduce and broadcast from == to; all-gather from == this rank's
  // place in `to`; reduce-scatter from == to, with the result at its front.
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t count = 0;          // elements: of kAllReduce, kBroadcast, kSend, kReceive
  const Places* places = nullptr;  // each rank's part, of all other transfers; kAllToAll: of `from`
  const Places* taken = nullptr;   // kAllToAll: of `to`
  int peer = 0;                    // root, destination or source
  int tag = 0;                     // kSend, kReceive

  // The size of the whole operand: `to` of an all-gather, `from` of every other transfer.
  std::int64_t Bytes() const;
  bool IsMessage() const { return transfer == Transfer::kSend || transfer == Transfer::kReceive; }
};

class Channel {
 public:
  virtual ~Channel() {
    if (at_end_) at_end_();
  }
  void AtEnd(std::function<void()> body) { at_end_ = std::move(body); }  // called at the very end
  // Starts a transfer after all work that the computation has queued so far, and returns a ticket.
  // Collective as the transfer is. The operation and its places may go when it returns.
  virtual int Start(const Operation& operation) = 0;
  // Whether the transfer is complete, as far as the host can tell now; gives it a chance to
  // progress. The ticket is still to be waited for.
  virtual bool Test(int ticket) = 0;
  // Orders the work that the computation queues from now on after the transfer, and ends the
  // ticket. The host waits only if it takes part in the transfer itself.
  virtual void Wait(int ticket) = 0;
  // Seconds that the computation waited for transfers since the last call, as far as the device has
  // run; all of them once it is synchronised. 0 for replays of a graph, and if the host takes part
  // in the transfer, since the host waits then.
  virtual double TakeExposed() = 0;
  // Throws a RunError that names the group if a transfer failed on another rank (NCCL's
  // asynchronous errors), after GiveUp, so that nothing waits for ever.
  virtual void CheckHealth() = 0;
  // Abandons all transfers of this rank; results are undefined, and none may be started. Not
  // collective. Returns at once, with a future for each thing that still has to end; none if the
  // host takes part in the transfer.
  virtual std::vector<std::shared_future<void>> GiveUp() noexcept = 0;
  // Whether the transfers can be part of a device::Graph.
  virtual bool Recordable() const = 0;
  // The timeline in which the channel records its transfers, and the waits of the computation for
  // them, from now on; null: none. Nothing is queued when it becomes null.
  virtual void TraceInto(device::Recorder* /*recorder*/) {}
  // Whether it does so; else its callers see the transfers, in which the host takes part.
  virtual bool Traces() const { return false; }

 private:
  std::function<void()> at_end_;
};

// The slice of a transfer in a timeline, and that of the wait for it; without times.
device::Slice SliceOf(Group group, Transfer transfer, std::int64_t bytes);
device::Slice WaitFor(const device::Slice& transfer);

// Waits until all `ends` are ready, or gives up after a few seconds.
void AwaitEnds(const std::vector<std::shared_future<void>>& ends) noexcept;

// Name and version of the library behind the channels, for --version: "NCCL 2.28.3"; "" without
// CUDA.
std::string GpuTransferLibrary();
// Lets several ranks of this process's communicators share a GPU, before the first communicator of
// the library is made. Returns why the library does not allow it, "" if it does.
std::string LetRanksShareGpus();
// InputError if the library may hang with channels over `groups` groups of a rank. crossing: one of
// them has messages in both directions, which ranks start in different orders. Goes by versions;
// channels with such messages try them out besides, when they are made.
void RequireOrderedLaunches(int groups, bool crossing);
// Whether a device::Graph may hold transfers of several groups: below CUDA 12.9 the library lets
// each transfer of a graph begin only when the one before it has ended.
bool GraphsHoldSeveralGroups();
// What the library was told in the environment and, where it writes its log for this program, what
// it took for the channels made so far: pairs of a name and a text, for a run's record.
std::vector<std::pair<std::string, std::string>> DescribeGpuTransfers();

struct ChannelSetup {
  device::Stream stream = {};  // on a GPU
  Group group = Group::kWorld;
  bool staged = false;  // by way of the host (run.share_device = yes)
  // Tags of point-to-point messages on the ring of ranks: to the next rank, and to the previous
  // one. Messages of one tag between two ranks arrive in order, independently of messages of
  // another tag or direction.
  std::vector<int> to_next = {}, to_previous = {};
  bool closed = true;  // the last rank's next is the first; else no message between these two
  // Transfers are shifts around the ring beside the computation, of which they take little.
  bool shifts = false;
};

// Thread blocks of a GPU that an operation may take from the computation, which runs beside it. 0:
// as many as the library likes, where the computation waits.
int MostBlocksOfCollective(const ChannelSetup& setup);
// Thread blocks that a message may take; a receive holds them from when it was posted. Four are
// enough for tens of GB/s, and a few in a hundred of the card's multiprocessors.
inline constexpr int kMessageBlocks = 4;

// Makes a channel. Collective over `group`, which may go when it returns; the channel's destructor
// is collective too, and graphs with its transfers must not outlive it. Null for a group of one,
// and on the CPU.
std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup);

}  // namespace trireme::comm
