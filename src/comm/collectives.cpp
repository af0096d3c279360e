// Collectives on MPI or on a channel, and a record of every transfer.
#include "trireme/comm/collectives.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <algorithm>
#include <limits>

#include "staged_channel.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {

// Addresses for transfers of which a rank has no element.

// `memory` for the part of a rank; if it has no element, an address of its own: a view of no rows
// may lie where the other buffer begins, and MPI forbids equal buffers (MPICH checks).
inline void* PartAt(const void* memory, const Places& places, int rank) {
  static char nothing = 0;
  if (places.Sizes()[rank] > 0 || memory == MPI_IN_PLACE) return const_cast<void*>(memory);
  return &nothing;
}

// The channel of planned groups: nothing moves, and every transfer is complete when it starts.

class PlannedChannel final : public Channel {
 public:
  // One for all planned groups: it has no state.
  static PlannedChannel& Shared() {
    static PlannedChannel channel;
    return channel;
  }
  int Start(const Operation&) override { return 0; }
  bool Test(int) override { return true; }
  void Wait(int) override {}
  double TakeExposed() override { return 0; }
  void CheckHealth() override {}
  std::vector<std::shared_future<void>> GiveUp() noexcept override { return {}; }
  bool Recordable() const override { return true; }
};

namespace {

// MPI counts are ints: longer operands of a blocking call travel in pieces of this many elements.
constexpr std::int64_t kCollectivePiece = std::int64_t{1} << 30;

std::int64_t Bytes(Dtype dtype, std::int64_t count) {
  return count * static_cast<std::int64_t>(SizeOf(dtype));
}

void RequireOther(Transfer transfer, int size) {
  if (size == 1) throw RunError(fmt::format("{} in a group of one rank", NameOf(transfer)));
}

// The recorder's calls begin with the ledger's transfers.
constexpr Call CallOf(Transfer transfer) { return static_cast<Call>(transfer); }
static_assert(CallOf(Transfer::kAllReduce) == Call::kAllReduce);
static_assert(CallOf(Transfer::kBroadcast) == Call::kBroadcast);
static_assert(CallOf(Transfer::kReceive) == Call::kReceive);

}  // namespace

Collectives::Collectives(const Communicator& group, Group name, Ledger& ledger, Channel* channel,
                         const device::Stream& stream)
    : group_(&group),
      name_(name),
      ledger_(&ledger),
      channel_(group.IsPlanned() ? &PlannedChannel::Shared() : channel),
      stream_(stream) {}

void Collectives::CopyAlone(const void* from, void* to, std::int64_t bytes) const {
  if (from != to && !IsPlanned()) device::CopyWithin(stream_, from, to, bytes);
}

Collectives Collectives::OnHost() const {
  Collectives host = *this;
  if (!IsPlanned()) host.channel_ = nullptr;
  host.stream_ = {};
  return host;
}

Collectives Collectives::Carrying(Payload payload) const {
  Collectives carrying = *this;
  carrying.payload_ = payload;
  return carrying;
}

void Collectives::Record(Transfer transfer, std::int64_t payload, double waited) const {
  ledger_->Record(name_, transfer, Size(), payload, waited, 0);
  device::Recorder* const recorder = ledger_->Trace();
  if (recorder == nullptr || waited <= 0) return;
  device::Slice slice = SliceOf(name_, transfer, payload);
  slice.end = Seconds();
  slice.begin = slice.end - waited;
  recorder->Add(slice);
  TraceWait(*recorder, slice, waited);
}

Request Collectives::Start(Transfer transfer, std::int64_t payload) const {
  Request request;
  request.ledger_ = ledger_;
  request.group_ = name_;
  request.transfer_ = transfer;
  request.group_size_ = Size();
  request.payload_ = payload;
  request.started_ = Seconds();
  return request;
}

Recorded Collectives::Watch(Transfer transfer, std::int64_t bytes) const {
  return {*group_, CallOf(transfer), bytes};
}

Request Collectives::OnChannel(const Operation& operation, std::int64_t payload) const {
  Request request = Start(operation.transfer, payload);
  Operation carried = operation;
  carried.payload = payload_;
  if (operation.transfer == Transfer::kSend || operation.transfer == Transfer::kReceive) {
    request.BeginMessage(*group_, CallOf(operation.transfer), operation.peer, operation.tag);
  } else {
    request.BeginFlight(*group_, CallOf(operation.transfer));
  }
  Carry(request, carried);
  Log(request, operation.peer, operation.tag);
  return request;
}

Request Collectives::PlacedOnChannel(Transfer transfer, Dtype dtype, const void* from, void* to,
                                     const Places& places, const Places* taken) const {
  const Operation operation = {.transfer = transfer,
                               .dtype = dtype,
                               .from = from,
                               .to = to,
                               .places = &places,
                               .taken = taken};
  return OnChannel(operation, Bytes(dtype, places.Total()));
}

Request Collectives::StartPlaced(Transfer transfer, Dtype dtype, const Counts& counts) const {
  Places places = PlacesOf(transfer, counts);
  Request request = Start(transfer, Bytes(dtype, places.Total()));
  request.places_ = std::move(places);
  return request;
}

void Collectives::AllReduce(Dtype dtype, void* data, std::int64_t count,
                            Reduction reduction) const {
  if (Size() == 1) return;
  if (channel_ != nullptr) {
    const Operation operation = {
        .dtype = dtype, .reduction = reduction, .from = data, .to = data, .count = count};
    return OnChannel(operation, Bytes(dtype, count)).Wait();
  }
  const MPI_Op operation = reduction == Reduction::kMax ? MPI_MAX : MPI_SUM;
  const double start = Seconds();
  const Recorded recorded = Watch(Transfer::kAllReduce, Bytes(dtype, count));
  for (std::int64_t begin = 0; begin < count; begin += kCollectivePiece) {
    const int piece = static_cast<int>(std::min(kCollectivePiece, count - begin));
    MPI_Allreduce(MPI_IN_PLACE, ElementAt(data, dtype, begin), piece, MpiType(dtype), operation,
                  group_->Handle());
  }
  Record(Transfer::kAllReduce, Bytes(dtype, count), Seconds() - start);
}

Request Collectives::StartAllReduce(Dtype dtype, void* data, std::int64_t count) const {
  if (Size() == 1) return {};
  CheckPlanned(Transfer::kAllReduce, count);
  if (channel_ != nullptr) {
    return OnChannel({.dtype = dtype, .from = data, .to = data, .count = count},
                     Bytes(dtype, count));
  }
  const int elements = CheckedCount(Transfer::kAllReduce, count);
  Request request = Start(Transfer::kAllReduce, Bytes(dtype, count));
  request.BeginFlight(*group_, Call::kAllReduce);
  MPI_Iallreduce(MPI_IN_PLACE, data, elements, MpiType(dtype), MPI_SUM, group_->Handle(),
                 &request.handle_);
  return request;
}

void Collectives::ReduceScatter(Dtype dtype, const void* from, void* to, Counts counts) const {
  const Places places = PlacesOf(Transfer::kReduceScatter, counts);
  if (Size() == 1) return CopyAlone(from, to, Bytes(dtype, places.Total()));
  if (channel_ != nullptr) {
    return PlacedOnChannel(Transfer::kReduceScatter, dtype, from, to, places).Wait();
  }
  const double start = Seconds();
  const Recorded recorded = Watch(Transfer::kReduceScatter, Bytes(dtype, places.Total()));
  MPI_Reduce_scatter(from, PartAt(to, places, Rank()), places.Sizes(), MpiType(dtype), MPI_SUM,
                     group_->Handle());
  Record(Transfer::kReduceScatter, Bytes(dtype, places.Total()), Seconds() - start);
}

Request Collectives::StartReduceScatter(Dtype dtype, const void* from, void* to,
                                        Counts counts) const {
  Request request = StartPlaced(Transfer::kReduceScatter, dtype, counts);
  if (Size() == 1) {
    CopyAlone(from, to, request.payload_);
    return {};
  }
  if (channel_ != nullptr) {
    return PlacedOnChannel(Transfer::kReduceScatter, dtype, from, to, request.places_);
  }
  request.BeginFlight(*group_, Call::kReduceScatter);
  MPI_Ireduce_scatter(from, PartAt(to, request.places_, Rank()), request.places_.Sizes(),
                      MpiType(dtype), MPI_SUM, group_->Handle(), &request.handle_);
  return request;
}

Request Collectives::StartReduceScatterInPlace(Dtype dtype, void* data, Counts counts) const {
  Request request = StartPlaced(Transfer::kReduceScatter, dtype, counts);
  if (Size() == 1) return {};
  if (channel_ != nullptr) {
    return PlacedOnChannel(Transfer::kReduceScatter, dtype, data, data, request.places_);
  }
  request.BeginFlight(*group_, Call::kReduceScatter);
  request.ScatterInPlace(*group_, dtype, data);
  return request;
}

void Collectives::AllGather(Dtype dtype, const void* from, void* to, Counts counts) const {
  const Places places = PlacesOf(Transfer::kAllGather, counts);
  if (Size() == 1) return CopyAlone(from, to, Bytes(dtype, places.Total()));
  GatherParts(dtype, from, to, places);
}

void Collectives::AllGatherInPlace(Dtype dtype, void* data, Counts counts) const {
  const Places places = PlacesOf(Transfer::kAllGather, counts);
  if (Size() > 1) GatherParts(dtype, MPI_IN_PLACE, data, places);
}

void Collectives::GatherParts(Dtype dtype, const void* from, void* to, const Places& places) const {
  if (channel_ != nullptr) return StartGather(dtype, from, to, places).Wait();
  const double start = Seconds();
  const Recorded recorded = Watch(Transfer::kAllGather, Bytes(dtype, places.Total()));
  MPI_Allgatherv(PartAt(from, places, Rank()), places.Sizes()[Rank()], MpiType(dtype), to,
                 places.Sizes(), places.Starts(), MpiType(dtype), group_->Handle());
  Record(Transfer::kAllGather, Bytes(dtype, places.Total()), Seconds() - start);
}

Request Collectives::StartGather(Dtype dtype, const void* from, void* to,
                                 const Places& places) const {
  if (from == MPI_IN_PLACE) from = ElementAt(to, dtype, places.Starts()[Rank()]);
  return PlacedOnChannel(Transfer::kAllGather, dtype, from, to, places);
}

Request Collectives::StartAllGather(Dtype dtype, const void* from, void* to, Counts counts) const {
  Request request = StartPlaced(Transfer::kAllGather, dtype, counts);
  if (Size() == 1) {
    CopyAlone(from, to, request.payload_);
    return {};
  }
  const Places& places = request.places_;
  if (channel_ != nullptr) return StartGather(dtype, from, to, places);
  request.BeginFlight(*group_, Call::kAllGather);
  MPI_Iallgatherv(PartAt(from, places, Rank()), places.Sizes()[Rank()], MpiType(dtype), to,
                  places.Sizes(), places.Starts(), MpiType(dtype), group_->Handle(),
                  &request.handle_);
  return request;
}

Request Collectives::StartAllGatherInPlace(Dtype dtype, void* data, Counts counts) const {
  // A lone rank's part is in its place: as from memory to the same memory.
  return StartAllGather(dtype, Size() == 1 ? data : MPI_IN_PLACE, data, counts);
}

void Collectives::AllToAll(Dtype dtype, const void* from, void* to, Counts counts) const {
  CheckPlanned(Transfer::kAllToAll, counts.Largest(Size()) * Size());
  const Places sent(Transfer::kAllToAll, counts, Size());
  // The largest rank's, so that all ranks refuse where one must.
  CheckedCount(Transfer::kAllToAll, counts.Largest(Size()) * Size());
  if (Size() == 1) return CopyAlone(from, to, Bytes(dtype, sent.Total()));
  const std::int64_t own = counts.Of(Rank(), Size());
  const Places taken(Transfer::kAllToAll, Counts::Cut(own * Size(), std::max(own, std::int64_t{1})),
                     Size());
  if (channel_ != nullptr) {
    return PlacedOnChannel(Transfer::kAllToAll, dtype, from, to, sent, &taken).Wait();
  }
  const double start = Seconds();
  const Recorded recorded = Watch(Transfer::kAllToAll, Bytes(dtype, sent.Total()));
  MPI_Alltoallv(from, sent.Sizes(), sent.Starts(), MpiType(dtype), to, taken.Sizes(),
                taken.Starts(), MpiType(dtype), group_->Handle());
  Record(Transfer::kAllToAll, Bytes(dtype, sent.Total()), Seconds() - start);
}

void Collectives::Broadcast(Dtype dtype, void* data, std::int64_t count, int root) const {
  if (Size() == 1) return;
  if (channel_ != nullptr) {
    const Operation operation = {.transfer = Transfer::kBroadcast,
                                 .dtype = dtype,
                                 .from = data,
                                 .to = data,
                                 .count = count,
                                 .peer = root};
    return OnChannel(operation, Bytes(dtype, count)).Wait();
  }
  const double start = Seconds();
  const Recorded recorded = Watch(Transfer::kBroadcast, Bytes(dtype, count));
  for (std::int64_t begin = 0; begin < count; begin += kCollectivePiece) {
    const int piece = static_cast<int>(std::min(kCollectivePiece, count - begin));
    MPI_Bcast(ElementAt(data, dtype, begin), piece, MpiType(dtype), root, group_->Handle());
  }
  Record(Transfer::kBroadcast, Bytes(dtype, count), Seconds() - start);
}

Request Collectives::StartSend(Dtype dtype, const void* data, std::int64_t count, int to,
                               int tag) const {
  RequireOther(Transfer::kSend, Size());
  CheckPlanned(Transfer::kSend, count);
  if (channel_ != nullptr) {
    const Operation operation = {.transfer = Transfer::kSend,
                                 .dtype = dtype,
                                 .from = data,
                                 .count = count,
                                 .peer = to,
                                 .tag = tag};
    return OnChannel(operation, Bytes(dtype, count));
  }
  const int elements = CheckedCount(Transfer::kSend, count);
  Request request = Start(Transfer::kSend, Bytes(dtype, count));
  request.BeginMessage(*group_, Call::kSend, to, tag);
  MPI_Isend(data, elements, MpiType(dtype), to, tag, group_->Handle(), &request.handle_);
  return request;
}

Request Collectives::StartReceive(Dtype dtype, void* data, std::int64_t count, int from,
                                  int tag) const {
  RequireOther(Transfer::kReceive, Size());
  CheckPlanned(Transfer::kReceive, count);
  if (channel_ != nullptr) {
    const Operation operation = {.transfer = Transfer::kReceive,
                                 .dtype = dtype,
                                 .to = data,
                                 .count = count,
                                 .peer = from,
                                 .tag = tag};
    return OnChannel(operation, Bytes(dtype, count));
  }
  const int elements = CheckedCount(Transfer::kReceive, count);
  Request request = Start(Transfer::kReceive, Bytes(dtype, count));
  request.BeginMessage(*group_, Call::kReceive, from, tag);
  MPI_Irecv(data, elements, MpiType(dtype), from, tag, group_->Handle(), &request.handle_);
  return request;
}

std::array<Request, 2> Collectives::StartShift(Dtype dtype, const void* from, std::int64_t count,
                                               void* to, std::int64_t taken, int tag) const {
  std::array<Request, 2> requests;
  if (channel_ == nullptr) {
    const int next = (Rank() + 1) % Size(), before = (Rank() + Size() - 1) % Size();
    requests[1] = StartReceive(dtype, to, taken, before, tag);
    requests[0] = StartSend(dtype, from, count, next, tag);
    return requests;
  }
  RequireOther(Transfer::kSend, Size());
  CheckPlanned(Transfer::kSend, std::max(count, taken));
  const ShiftPlaces places(count, taken, Rank(), Size());
  requests[0] = Start(Transfer::kSend, Bytes(dtype, count));
  requests[0].BeginFlight(*group_, Call::kShift);
  Carry(requests[0], {.transfer = Transfer::kAllToAll,
                      .dtype = dtype,
                      .payload = payload_,
                      .from = from,
                      .to = to,
                      .places = &places.sent,
                      .taken = &places.received});
  Log(requests[0]);
  Record(Transfer::kReceive, Bytes(dtype, taken), 0);
  return requests;
}

// Planned transfers: one that MPI could not count is refused, with the deck's key; a log is told.

namespace {

// Key of the deck that a transfer of a group follows from, and changes that make it shorter.
struct Advice {
  const char* key;
  const char* what_helps;
};
Advice AdviceFor(Group group) {
  switch (group) {
    case Group::kPipeline:
      return {"grid.pipeline",
              "a smaller data.micro_batch, or more ranks along grid.context or grid.tensor with "
              "grid.sequence_parallel"};
    case Group::kTensor:
      return {"grid.tensor", "a smaller data.micro_batch, or more ranks along grid.context"};
    case Group::kContext:
      return {"grid.context", "a smaller data.micro_batch, or more ranks along this axis"};
    case Group::kShard:
      return {"grid.sharding", "more ranks along grid.tensor, or grid.sharding = none"};
    case Group::kData:
      return {"grid.bucket_mib", "a smaller grid.bucket_mib, or more ranks along grid.tensor"};
    default:
      return {NameOf(group), "more ranks along grid.tensor"};
  }
}

}  // namespace

// Real groups refuse too, one by one as a bug would be; plans are refused before anything is taken.
void Collectives::CheckPlanned(Transfer transfer, std::int64_t count) const {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (!IsPlanned() || count <= kMost) return;
  const Advice advice = AdviceFor(name_);
  throw InputError(fmt::format("{}: one {} of the {} group has {} elements, and MPI counts to {}",
                               advice.key, NameOf(transfer), NameOf(name_), count, kMost),
                   fmt::format("What helps: {}.", advice.what_helps));
}

Places Collectives::PlacesOf(Transfer transfer, const Counts& counts) const {
  if (IsPlanned()) {
    std::int64_t total = 0;
    for (int rank = 0; rank < Size(); ++rank) total += counts.Of(rank, Size());
    CheckPlanned(transfer, total);
  }
  return {transfer, counts, Size()};
}

// Tells the log of a planned rank, if it has one.
void Collectives::Log(Request& request, int peer, int tag) const {
  device::WorkLog* const log = IsPlanned() ? ledger_->Log() : nullptr;
  if (log == nullptr) return;
  const bool collective =
      request.transfer_ != Transfer::kSend && request.transfer_ != Transfer::kReceive;
  request.ticket_ = log->Start({.group = static_cast<std::int8_t>(name_),
                                .transfer = static_cast<std::int8_t>(request.transfer_),
                                .payload = static_cast<std::int8_t>(payload_),
                                .ranks = Size(),
                                .bytes = request.payload_,
                                .peer = collective ? -1 : peer,
                                .tag = collective ? -1 : tag});
  request.log_ = log;
}

}  // namespace trireme::comm
