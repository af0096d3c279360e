// The one seam of every transfer of tensors between ranks: MPI behind it, or, for the memory of
// GPUs, a channel. Each transfer is recorded in a ledger.
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

class Collectives;

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
  double Started() const { return started_; }  // of Seconds()

 private:
  friend class Collectives;
  void Finish(double waited, double hidden);
  void Trace(device::Recorder& recorder, double waited) const;
  void ScatterInPlace(const Communicator& group, Dtype dtype, void* data);
  void BeginFlight(const Communicator& group, Call call);
  void BeginMessage(const Communicator& group, Call call, int peer, int tag);
  MPI_Request handle_ = MPI_REQUEST_NULL;
  Channel* channel_ = nullptr;  // of a channel's transfer, with its ticket
  int ticket_ = 0;
  bool traced_ = false;             // by the channel
  device::WorkLog* log_ = nullptr;  // of a planned transfer; `ticket_` is its number there
  Ledger* ledger_ = nullptr;
  Group group_ = Group::kWorld;
  Transfer transfer_ = Transfer::kSend;
  int group_size_ = 1;
  std::int64_t payload_ = 0;
  double started_ = 0;
  FlightRecorder* recorder_ = nullptr;  // null: not recorded
  FlightRecorder::Flight flight_;
  Places places_;  // MPI reads them until the end
  // Of a sum that MPI cannot make in place: this rank's part, and the memory that it goes to.
  std::vector<std::byte> part_;
  void* part_to_ = nullptr;
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
  Request Start(Transfer transfer, std::int64_t payload) const;
  Recorded Watch(Transfer transfer, std::int64_t bytes) const;
  Request StartPlaced(Transfer transfer, Dtype dtype, const Counts& counts) const;
  void CheckPlanned(Transfer transfer, std::int64_t count) const;
  Places PlacesOf(Transfer transfer, const Counts& counts) const;
  void Record(Transfer transfer, std::int64_t payload, double waited) const;
  void GatherParts(Dtype dtype, const void* from, void* to, const Places& places) const;
  Request StartGather(Dtype dtype, const void* from, void* to, const Places& places) const;
  Request OnChannel(const Operation& operation, std::int64_t payload) const;
  void Carry(Request& request, const Operation& operation) const;
  void Log(Request& request, int peer = -1, int tag = -1) const;
  Request PlacedOnChannel(Transfer transfer, Dtype dtype, const void* from, void* to,
                          const Places& places, const Places* taken = nullptr) const;
  void CopyAlone(const void* from, void* to, std::int64_t bytes) const;
  const Communicator* group_ = nullptr;
  Group name_ = Group::kWorld;
  Ledger* ledger_ = nullptr;
  Channel* channel_ = nullptr;  // null: MPI
  Payload payload_ = Payload::kActivations;
  device::Stream stream_;  // owner of the memory
};

}  // namespace trireme::comm
