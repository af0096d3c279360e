// Collectives: all transfers of tensors between ranks go through it, to MPI or, for GPU memory, to
// a channel. Each transfer is one event that is reported to its observers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/comm/channel.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/options.hpp"

namespace trireme::comm {

// One transfer of this rank, as reported to observers.
struct Event {
  Group group = Group::kWorld;
  Transfer transfer = Transfer::kSend;
  Call call = Call::kSend;  // as `transfer`, except for a shift on a channel
  Payload payload = Payload::kActivations;
  int ranks = 1;            // size of the group
  std::int64_t bytes = 0;   // Traffic::payload
  int peer = -1, tag = -1;  // of a message, else -1; peer: rank in the group
  double begin = 0;         // start, in the time of Seconds()
  bool on_channel = false;  // the channel puts the transfer into the timeline itself
};

// Reports a transfer to all observers: the ledger counts it, the group's flight recorder keeps it
// for the watchdog, the timeline (Ledger::Trace) shows it, and in a plan the work log (Ledger::Log)
// takes it in.
class Observed {
 public:
  Observed() = default;
  Observed(const Communicator& group, Ledger& ledger, const Event& event);  // the transfer begins
  void Await();                            // the host waits for it from now on
  void End(double waited, double hidden);  // seconds, as in Traffic
  const Event& What() const { return event_; }
  bool Logged() const { return log_ != nullptr; }

 private:
  void Show(device::Recorder& timeline, double waited) const;
  Event event_;
  Ledger* ledger_ = nullptr;
  FlightRecorder* recorder_ = nullptr;  // null: the group's calls are not recorded
  FlightRecorder::Flight flight_;
  device::WorkLog* log_ = nullptr;  // null: there is none, or the group is real
  int number_ = 0;                  // of this transfer in the log
};

// Whether MPI_Ireduce_scatter may be called with MPI_IN_PLACE. MPICH (4.0.2) and its relatives
// memcpy a rank's part to the front of the operand and abort if source and target overlap, that is,
// if the part is longer than all parts before it together. counts: [ranks]; library: the text of
// MPI_Get_library_version. Gives the same answer on every rank.
bool ScattersInPlace(const char* library, const int* counts, int ranks);

// A reduce-scatter in place; uses a buffer of its own where MPI cannot do it in place.
class SumInPlace {
 public:
  // Starts the sum. At its end the first counts[group.Rank()] elements of `data` are this rank's
  // part. counts: [ranks]; must stay valid until the transfer is complete.
  MPI_Request Start(const Communicator& group, MPI_Datatype type, void* data, const int* counts);
  void Finish();  // to be called after MPI has completed the request

 private:
  std::vector<std::byte> part_;  // buffer for this rank's part; empty: the sum is in place
  void* to_ = nullptr;
};

// A transfer under way. Its memory must not be touched (for a send: changed) until it is complete.
// On a channel "complete" only means order: work that the computation queues afterwards runs after
// the transfer, though the host may be ahead of both.
class Request {
 public:
  Request() = default;  // no transfer: complete
  Request(Request&& other) noexcept;
  Request& operator=(Request&& other) noexcept;  // *this must be complete
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() = default;  // destroying an incomplete request is a bug; MPI_Finalize would find it

  bool Complete() const { return handle_ == MPI_REQUEST_NULL && channel_ == nullptr; }
  // Lets the transfer progress; true if it is complete, and then the time since its start is
  // recorded as hidden. Always false for a logged transfer of a plan: only the log's reader knows
  // when it ends.
  bool Test();
  void Wait();  // blocks until complete; records the time spent here as waited
  // As Wait(), for one of several transfers that are awaited in turn. since: the time (Seconds())
  // from which the caller has been idle; hidden time ends there.
  void Wait(double since);
  double Started() const { return observed_.What().begin; }  // in the time of Seconds()

 private:
  friend class Collectives;
  void Finish(double waited, double hidden);
  Observed observed_;
  MPI_Request handle_ = MPI_REQUEST_NULL;
  Channel* channel_ = nullptr;  // channel of the transfer, null: MPI; ticket_: its ticket there
  int ticket_ = 0;
  Places places_;   // kept because MPI reads them until the end
  SumInPlace sum_;  // used by a reduce-scatter in place
};

// The transfers of one group. Copies are cheap and refer to the same group. In a group of one rank
// every call returns at once, copies if `from` and `to` differ, and records nothing. In a planned
// group every call returns at once, touches no operand, and records what the real transfer would;
// InputError that names the deck's key if it has more elements than MPI can count.
class Collectives {
 public:
  Collectives() = default;  // a group of one
  // All arguments must outlive this object and its copies. With a channel all operands are device
  // memory, and the host cannot rely on any result when a call returns: only the computation's
  // queue continues after the transfer. stream: where a group of one rank makes its copies.
  Collectives(const Communicator& group, Group name, Ledger& ledger, Channel* channel = nullptr,
              const device::Stream& stream = {});
  Collectives OnHost() const;  // the same group, for operands in host memory
  // A copy of this object that marks its transfers' contents as `payload`.
  Collectives Carrying(Payload payload) const;

  Group Name() const { return name_; }
  int Rank() const { return group_ == nullptr ? 0 : group_->Rank(); }
  int Size() const { return group_ == nullptr ? 1 : group_->Size(); }
  bool IsPlanned() const { return group_ != nullptr && group_->IsPlanned(); }
  device::Recorder* Trace() const { return ledger_ == nullptr ? nullptr : ledger_->Trace(); }

  // Collective. In place; every rank of the group ends with the same bits.
  void AllReduce(Dtype dtype, void* data, std::int64_t count,
                 Reduction reduction = Reduction::kSum) const;
  Request StartAllReduce(Dtype dtype, void* data, std::int64_t count) const;  // sum; count < 2^31

  // Collective. `from` of a reduce-scatter and `to` of an all-gather hold counts[r] elements for
  // each rank r, in order; the other operand holds counts[Rank()] elements. The two must not
  // overlap. The sum of all counts must be < 2^31.
  void ReduceScatter(Dtype dtype, const void* from, void* to, Counts counts) const;
  Request StartReduceScatter(Dtype dtype, const void* from, void* to, Counts counts) const;
  void AllGather(Dtype dtype, const void* from, void* to, Counts counts) const;
  Request StartAllGather(Dtype dtype, const void* from, void* to, Counts counts) const;
  // Collective. All-gather of parts that already lie at their places in `data`.
  void AllGatherInPlace(Dtype dtype, void* data, Counts counts) const;
  Request StartAllGatherInPlace(Dtype dtype, void* data, Counts counts) const;
  // Collective. Reduce-scatter within `data`: this rank's part of the sum ends up in the first
  // counts[Rank()] elements, wherever it lies in the whole; the rest of `data` is lost.
  Request StartReduceScatterInPlace(Dtype dtype, void* data, Counts counts) const;
  // Collective. `from` holds counts[r] elements for each rank r, in order; `to` receives
  // counts[Rank()] elements from each rank, in order. The two must not overlap.
  void AllToAll(Dtype dtype, const void* from, void* to, Counts counts) const;
  void Broadcast(Dtype dtype, void* data, std::int64_t count, int root) const;

  // Point to point; messages with one tag between the same two ranks arrive in order. count: 0 to
  // 2^31 - 1. RunError in a group of one rank.
  Request StartSend(Dtype dtype, const void* data, std::int64_t count, int to, int tag) const;
  Request StartReceive(Dtype dtype, void* data, std::int64_t count, int from, int tag) const;
  // One step around the ring of ranks: sends `count` elements to the next rank and receives `taken`
  // elements from the previous one; returns the requests of the send and the receive. Collective:
  // on a channel it is one transfer, in order with the group's others, and `tag` has no effect.
  std::array<Request, 2> StartShift(Dtype dtype, const void* from, std::int64_t count, void* to,
                                    std::int64_t taken, int tag) const;

 private:
  Event EventOf(Transfer transfer, std::int64_t bytes, int peer = -1, int tag = -1) const;
  Observed Observe(Transfer transfer, std::int64_t bytes) const;
  Request Begin(const Event& event) const;
  Request BeginPlaced(Transfer transfer, Dtype dtype, Places places) const;
  Request StartMessage(const Operation& operation) const;
  Request OnChannel(const Operation& operation) const;
  Request OnChannel(Operation operation, Event event) const;
  Request PlacedOnChannel(Transfer transfer, Dtype dtype, const void* from, void* to,
                          const Places& places, const Places* taken = nullptr) const;
  void CheckPlanned(Transfer transfer, std::int64_t count) const;
  Places PlacesOf(Transfer transfer, const Counts& counts) const;
  void CopyAlone(const void* from, void* to, std::int64_t bytes) const;
  const Communicator* group_ = nullptr;
  Group name_ = Group::kWorld;
  Ledger* ledger_ = nullptr;
  Channel* channel_ = nullptr;  // null: MPI
  Payload payload_ = Payload::kActivations;
  device::Stream stream_;  // of the operands' memory
};

}  // namespace trireme::comm
