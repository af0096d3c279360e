// Channel: the interface behind Collectives by which one group of ranks moves tensors between GPU
// memories. Implemented by NCCL, or by MPI through host memory if ranks share a card.
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

// What an operand contains, for channels that tell the transfers of one group apart.
enum class Payload { kActivations, kParameters, kGradients };

// One transfer as the caller of Collectives requested it.
struct Operation {
  Transfer transfer = Transfer::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
  Reduction reduction = Reduction::kSum;  // kAllReduce only
  Payload payload = Payload::kActivations;
  // Device memory. In place means: all-reduce and broadcast: from == to; all-gather: `from` is this
  // rank's part of `to`; reduce-scatter: from == to, and the result lies at the front.
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t count = 0;          // elements; for kAllReduce, kBroadcast, kSend and kReceive
  const Places* places = nullptr;  // each rank's part, for the others; kAllToAll: of `from`
  const Places* taken = nullptr;   // kAllToAll: each rank's part of `to`
  int peer = 0;                    // rank of the root, destination or source
  int tag = 0;                     // for kSend and kReceive

  // Size of the whole operand: `to` in an all-gather, `from` in every other transfer.
  std::int64_t Bytes() const;
  bool IsMessage() const { return transfer == Transfer::kSend || transfer == Transfer::kReceive; }
};

class Channel {
 public:
  virtual ~Channel() {
    if (at_end_) at_end_();
  }
  void AtEnd(std::function<void()> body) { at_end_ = std::move(body); }  // runs at destruction
  // Starts a transfer after all work that the computation has queued so far; returns its ticket.
  // Collective if the transfer is. `operation` and its places are not needed after the return.
  virtual int Start(const Operation& operation) = 0;
  // Whether the transfer is complete as far as the host can tell now; also lets it progress. Wait
  // must still be called for the ticket.
  virtual bool Test(int ticket) = 0;
  // Makes all work that the computation queues from now on run after the transfer, and ends the
  // ticket. The host itself waits only if it takes part in the transfer.
  virtual void Wait(int ticket) = 0;
  // Seconds that the computation waited for transfers since the last call, counting waits that the
  // device has passed (all of them after a synchronisation). Always 0 for replays of a graph, and
  // for channels in which the host takes part and so waits itself.
  virtual double TakeExposed() { return 0; }
  // Throws a RunError that names the group if a transfer failed on another rank (NCCL's
  // asynchronous errors). Calls GiveUp first, so that nothing waits for ever.
  virtual void CheckHealth() {}
  // Abandons all transfers of this rank; their results are undefined, and no more may be started.
  // Not collective. Returns at once, with a future for each thing that still has to end; the list
  // is empty if the host takes part in transfers.
  virtual std::vector<std::shared_future<void>> GiveUp() noexcept { return {}; }
  // Whether transfers can be part of a device::Graph.
  virtual bool Recordable() const = 0;
  // Sets the timeline that records this channel's transfers and the computation's waits for them
  // from now on; null: none. Before it becomes null, the queues must be empty.
  virtual void TraceInto(device::Recorder* /*recorder*/) {}
  // Whether TraceInto has an effect. If not, the callers record the transfers themselves.
  virtual bool Traces() const { return false; }

 private:
  std::function<void()> at_end_;
};

// Timeline slices of a transfer and of the wait for it, without times.
device::Slice SliceOf(Group group, Transfer transfer, std::int64_t bytes);
device::Slice WaitFor(const device::Slice& transfer);

// Waits until all `ends` are ready, or gives up after a few seconds.
void AwaitEnds(const std::vector<std::shared_future<void>>& ends) noexcept;

// Name and version of the library behind the channels, for --version, such as "NCCL 2.28.3"; ""
// in a build without CUDA.
std::string GpuTransferLibrary();
// Lets several ranks share a GPU in this process's communicators; must precede the library's first
// communicator. Returns why the library does not allow it; "" if it does.
std::string LetRanksShareGpus();
// Throws InputError if, judging by versions, the library may hang when a rank has channels over
// `groups` groups. crossing: in one of them messages go in both directions, and ranks start them in
// different orders; channels with such messages also try them when they are made.
void RequireOrderedLaunches(int groups, bool crossing);
// Whether a device::Graph may hold transfers of several groups: with drivers below CUDA 12.9 each
// transfer in a graph begins only when the one before it has ended.
bool GraphsHoldSeveralGroups();
// NCCL's environment variables and, if the library writes its log for this program, what it chose
// for the channels made so far: pairs of name and text, for the run's record.
std::vector<std::pair<std::string, std::string>> DescribeGpuTransfers();

struct ChannelSetup {
  device::Stream stream = {};  // of a GPU
  Group group = Group::kWorld;
  bool staged = false;  // transfers go through host memory (run.share_device = yes)
  // Tags of point-to-point messages on the ring of ranks, to the next and to the previous rank.
  // Messages with one tag and direction between two ranks arrive in order; they do not wait for
  // messages with another tag or direction.
  std::vector<int> to_next = {}, to_previous = {};
  bool closed = true;  // the ring has an edge between the last rank and the first
  // Transfers are shifts around the ring that run beside the computation and take few blocks of it.
  bool shifts = false;
};

// Limit on the GPU thread blocks that one collective takes from the computation beside it. 0: no
// limit, for groups whose transfers the computation waits for.
int MostBlocksOfCollective(const ChannelSetup& setup);
// Thread blocks of one message; a receive holds them from the moment it is posted. 4 carry tens of
// GB/s and occupy a few percent of the card's multiprocessors.
inline constexpr int kMessageBlocks = 4;

// Makes a channel; null for a group of one rank, and on the CPU. Collective over `group`, which is
// not needed after the return; the channel's destructor is collective too. Graphs that contain its
// transfers must not outlive it.
std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup);

}  // namespace trireme::comm
