// The one seam of every transfer of tensors between ranks: MPI behind it, or, for the memory of
// GPUs, a channel. Each transfer is one event, which its observers are told of.
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

// One transfer of this rank, as its observers are told of it.
struct Event {
  Group group = Group::kWorld;
  Transfer transfer = Transfer::kSend;
  Call call = Call::kSend;  // the transfer, but for a shift on a channel
  Payload payload = Payload::kActivations;
  int ranks = 1;            // of the group
  std::int64_t bytes = 0;   // Traffic::payload
  int peer = -1, tag = -1;  // of a message; peer: rank in the group
  double begin = 0;         // of Seconds()
  bool on_channel = false;  // whose timeline shows the transfer itself
};

// The one place that tells of transfers: the ledger counts them, the group's flight recorder keeps
// the last ones for the watchdog, the timeline (Ledger::Trace) shows them, and the log of a planned
// rank (Ledger::Log) takes them in.
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
  FlightRecorder* recorder_ = nullptr;  // null: calls of the group are not recorded
  FlightRecorder::Flight flight_;
  device::WorkLog* log_ = nullptr;  // null: none, or the group is not planned
  int number_ = 0;                  // of the transfer in it
};

// False if MPI_Ireduce_scatter may not be called with MPI_IN_PLACE: MPICH (4.0.2) and its kin copy
// a rank's part to the begin of the operand by memcpy, and abort where the two overlap, that is,
// where the part is longer than all parts before it together. counts: [ranks]. library: as
// MPI_Get_library_version tells it. The same on every rank.
bool ScattersInPlace(const char* library, const int* counts, int ranks);

// A reduce-scatter in place, by way of memory of its own where MPI cannot.
class SumInPlace {
 public:
  // Starts it: the first counts[group.Rank()] elements of `data` become this rank's part. counts:
  // [ranks], read until the end.
  MPI_Request Start(const Communicator& group, MPI_Datatype type, void* data, const int* counts);
  void Finish();  // after MPI has completed it

 private:
  std::vector<std::byte> part_;  // empty: the sum is in place
  void* to_ = nullptr;
};

// A transfer under way. Its memory must stay untouched (a send's: unchanged) until it is complete.
// On a channel "complete" is a matter of order: work that the computation queues from then on runs
// after the transfer, though the host may be ahead of both.
class Request {
 public:
  Request() = default;  // nothing under way: complete
  Request(Request&& other) noexcept;
  Request& operator=(Request&& other) noexcept;  // the request overwritten must be complete
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() = default;  // an incomplete request is a bug; MPI_Finalize would find it

  bool Complete() const { return handle_ == MPI_REQUEST_NULL && channel_ == nullptr; }
  // Gives the transfer a chance to progress; true if it is complete, which is recorded with the
  // time since its start as hidden. False for a planned transfer that is logged: the log's reader
  // knows when it ends.
  bool Test();
  void Wait();  // returns when complete; the time in here is recorded as waited
  // As Wait, for one of several transfers awaited in turn: the caller has been idle since `since`
  // (Seconds()), so hidden time ends there.
  void Wait(double since);
  double Started() const { return observed_.What().begin; }  // of Seconds()

 private:
  friend class Collectives;
  void Finish(double waited, double hidden);
  Observed observed_;
  MPI_Request handle_ = MPI_REQUEST_NULL;
  Channel* channel_ = nullptr;  // of a channel's transfer, with its ticket
  int ticket_ = 0;
  Places places_;   // MPI reads them until the end
  SumInPlace sum_;  // of a reduce-scatter in place
};

// The transfers of one group. Copies are cheap and refer to the same group. In a group of one every
// call returns at once, copies where `from` and `to` differ, and records nothing. In a planned
// group every call returns at once, touches no operand, and records what the real transfer would;
// it throws InputError, which names the deck's key, for one that is longer than MPI can count.
class Collectives {
 public:
  Collectives() = default;  // a group of one
  // All arguments must outlive this and its copies. With a channel all operands are device memory,
  // and nothing is complete for the host when a call returns: the computation's queue continues
  // after the transfer. stream: of the memory that a lone rank copies.
  Collectives(const Communicator& group, Group name, Ledger& ledger, Channel* channel = nullptr,
              const device::Stream& stream = {});
  Collectives OnHost() const;  // the same group's transfers of host memory
  // A copy whose operands are declared to be `payload`.
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

  // Collective. `from` of a reduce-scatter and `to` of an all-gather consist of counts[r] elements
  // for each rank r, in order; the other operand of counts[Rank()]. The two do not overlap. All
  // counts together < 2^31.
  void ReduceScatter(Dtype dtype, const void* from, void* to, Counts counts) const;
  Request StartReduceScatter(Dtype dtype, const void* from, void* to, Counts counts) const;
  void AllGather(Dtype dtype, const void* from, void* to, Counts counts) const;
  Request StartAllGather(Dtype dtype, const void* from, void* to, Counts counts) const;
  // Collective. All-gather of parts that already lie at their places in `data`.
  void AllGatherInPlace(Dtype dtype, void* data, Counts counts) const;
  Request StartAllGatherInPlace(Dtype dtype, void* data, Counts counts) const;
  // Collective. Reduce-scatter of `data`, whose first counts[Rank()] elements become this rank's
  // part of the sum, wherever that part lies in the whole; the rest of `data` is lost.
  Request StartReduceScatterInPlace(Dtype dtype, void* data, Counts counts) const;
  // Collective. `from` holds counts[r] elements for each rank r, in order; `to` takes
  // counts[Rank()] elements of each rank, in order. The two do not overlap.
  void AllToAll(Dtype dtype, const void* from, void* to, Counts counts) const;
  void Broadcast(Dtype dtype, void* data, std::int64_t count, int root) const;

  // Point to point; messages between the same two ranks with one tag arrive in order. count < 2^31,
  // may be 0. RunError in a group of one, where nobody could answer.
  Request StartSend(Dtype dtype, const void* data, std::int64_t count, int to, int tag) const;
  Request StartReceive(Dtype dtype, void* data, std::int64_t count, int from, int tag) const;
  // A step around the ring of ranks: sends `count` elements to the next rank and receives `taken`
  // from the previous one; returns the requests of the two, in this order. Collective: on a channel
  // it is one transfer, in order with the others of the group, and `tag` plays no part.
  std::array<Request, 2> StartShift(Dtype dtype, const void* from, std::int64_t count, void* to,
                                    std::int64_t taken, int tag) const;

 private:
  Event EventOf(Transfer transfer, std::int64_t bytes, int peer = -1, int tag = -1) const;
  Request Begin(const Event& event) const;
  Request BeginPlaced(Transfer transfer, Dtype dtype, Places places) const;
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
  device::Stream stream_;  // owner of the memory
};

}  // namespace trireme::comm
