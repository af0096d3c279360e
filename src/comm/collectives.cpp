// Collectives on MPI or on a channel, and the reports to their observers.
#include "trireme/comm/collectives.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::comm {

// Addresses for transfers in which a rank has no element.

// `memory` if the rank's part has elements, else a dummy address: an empty part may lie where the
// other buffer begins, and MPI forbids equal buffers (MPICH checks).
inline void* PartAt(const void* memory, const Places& places, int rank) {
  static char nothing = 0;
  if (places.Sizes()[rank] > 0 || memory == MPI_IN_PLACE) return const_cast<void*>(memory);
  return &nothing;
}

// The channel of planned groups: nothing moves, and every transfer is complete at its start.

class PlannedChannel final : public Channel {
 public:
  // All planned groups share one object, since it has no state.
  static PlannedChannel& Shared() {
    static PlannedChannel channel;
    return channel;
  }
  int Start(const Operation&) override { return 0; }
  bool Test(int) override { return true; }
  void Wait(int) override {}
  bool Recordable() const override { return true; }
};

namespace {

// MPI counts are ints: a blocking call splits longer operands into pieces of this many elements.
constexpr std::int64_t kCollectivePiece = std::int64_t{1} << 30;

void RequireOther(Transfer transfer, int size) {
  if (size == 1) throw RunError(fmt::format("{} in a group of one rank", NameOf(transfer)));
}

// The values of Call begin with those of Transfer.
constexpr Call CallOf(Transfer transfer) { return static_cast<Call>(transfer); }
static_assert(CallOf(Transfer::kAllReduce) == Call::kAllReduce);
static_assert(CallOf(Transfer::kBroadcast) == Call::kBroadcast);
static_assert(CallOf(Transfer::kReceive) == Call::kReceive);

// Reports a blocking call: the host waits for the transfer as long as this object lives.
class Blocking {
 public:
  explicit Blocking(const Observed& transfer) : observed_(transfer) { observed_.Await(); }
  ~Blocking() { observed_.End(Seconds() - observed_.What().begin, 0); }
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

 private:
  Observed observed_;
};

// Planned transfers: those that MPI could not count are refused with the deck's key.

// The deck's key that determines a group's transfers, and changes that make them shorter.
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

Event Collectives::EventOf(Transfer transfer, std::int64_t bytes, int peer, int tag) const {
  return {.group = name_,
          .transfer = transfer,
          .call = CallOf(transfer),
          .payload = payload_,
          .ranks = Size(),
          .bytes = bytes,
          .peer = peer,
          .tag = tag,
          .begin = Seconds()};
}

Observed Collectives::Observe(Transfer transfer, std::int64_t bytes) const {
  return {*group_, *ledger_, EventOf(transfer, bytes)};
}

Request Collectives::Begin(const Event& event) const {
  Request request;
  request.observed_ = Observed(*group_, *ledger_, event);
  return request;
}

Request Collectives::BeginPlaced(Transfer transfer, Dtype dtype, Places places) const {
  Request request = Begin(EventOf(transfer, BytesOf(dtype, places.Total())));
  request.places_ = std::move(places);
  return request;
}

Request Collectives::OnChannel(const Operation& operation) const {
  const int peer = operation.IsMessage() ? operation.peer : -1;
  const int tag = operation.IsMessage() ? operation.tag : -1;
  return OnChannel(operation, EventOf(operation.transfer, operation.Bytes(), peer, tag));
}

Request Collectives::OnChannel(Operation operation, Event event) const {
  operation.payload = payload_;
  event.on_channel = channel_->Traces();
  Request request = Begin(event);
  request.ticket_ = channel_->Start(operation);
  request.channel_ = channel_;
  return request;
}

Request Collectives::PlacedOnChannel(Transfer transfer, Dtype dtype, const void* from, void* to,
                                     const Places& places, const Places* taken) const {
  return OnChannel({.transfer = transfer,
                    .dtype = dtype,
                    .from = from,
                    .to = to,
                    .places = &places,
                    .taken = taken});
}

void Collectives::AllReduce(Dtype dtype, void* data, std::int64_t count,
                            Reduction reduction) const {
  if (Size() == 1) return;
  if (channel_ != nullptr) {
    return OnChannel(
               {.dtype = dtype, .reduction = reduction, .from = data, .to = data, .count = count})
        .Wait();
  }
  const MPI_Op operation = reduction == Reduction::kMax ? MPI_MAX : MPI_SUM;
  const Blocking blocking(Observe(Transfer::kAllReduce, BytesOf(dtype, count)));
  for (std::int64_t begin = 0; begin < count; begin += kCollectivePiece) {
    const int piece = static_cast<int>(std::min(kCollectivePiece, count - begin));
    MPI_Allreduce(MPI_IN_PLACE, ElementAt(data, dtype, begin), piece, MpiType(dtype), operation,
                  group_->Handle());
  }
}

Request Collectives::StartAllReduce(Dtype dtype, void* data, std::int64_t count) const {
  if (Size() == 1) return {};
  CheckPlanned(Transfer::kAllReduce, count);
  if (channel_ != nullptr) {
    return OnChannel({.dtype = dtype, .from = data, .to = data, .count = count});
  }
  const int elements = CheckedCount(Transfer::kAllReduce, count);
  Request request = Begin(EventOf(Transfer::kAllReduce, BytesOf(dtype, count)));
  MPI_Iallreduce(MPI_IN_PLACE, data, elements, MpiType(dtype), MPI_SUM, group_->Handle(),
                 &request.handle_);
  return request;
}

void Collectives::ReduceScatter(Dtype dtype, const void* from, void* to, Counts counts) const {
  if (Size() == 1 || channel_ != nullptr) {
    return StartReduceScatter(dtype, from, to, counts).Wait();
  }
  const Places places = PlacesOf(Transfer::kReduceScatter, counts);
  const Blocking blocking(Observe(Transfer::kReduceScatter, BytesOf(dtype, places.Total())));
  MPI_Reduce_scatter(from, PartAt(to, places, Rank()), places.Sizes(), MpiType(dtype), MPI_SUM,
                     group_->Handle());
}

Request Collectives::StartReduceScatter(Dtype dtype, const void* from, void* to,
                                        Counts counts) const {
  Places places = PlacesOf(Transfer::kReduceScatter, counts);
  if (Size() == 1) {
    CopyAlone(from, to, BytesOf(dtype, places.Total()));
    return {};
  }
  if (channel_ != nullptr)
    return PlacedOnChannel(Transfer::kReduceScatter, dtype, from, to, places);
  Request request = BeginPlaced(Transfer::kReduceScatter, dtype, std::move(places));
  MPI_Ireduce_scatter(from, PartAt(to, request.places_, Rank()), request.places_.Sizes(),
                      MpiType(dtype), MPI_SUM, group_->Handle(), &request.handle_);
  return request;
}

Request Collectives::StartReduceScatterInPlace(Dtype dtype, void* data, Counts counts) const {
  if (Size() == 1 || channel_ != nullptr) return StartReduceScatter(dtype, data, data, counts);
  Request request =
      BeginPlaced(Transfer::kReduceScatter, dtype, PlacesOf(Transfer::kReduceScatter, counts));
  request.handle_ = request.sum_.Start(*group_, MpiType(dtype), data, request.places_.Sizes());
  return request;
}

void Collectives::AllGather(Dtype dtype, const void* from, void* to, Counts counts) const {
  if (Size() == 1 || channel_ != nullptr) return StartAllGather(dtype, from, to, counts).Wait();
  const Places places = PlacesOf(Transfer::kAllGather, counts);
  const Blocking blocking(Observe(Transfer::kAllGather, BytesOf(dtype, places.Total())));
  MPI_Allgatherv(PartAt(from, places, Rank()), places.Sizes()[Rank()], MpiType(dtype), to,
                 places.Sizes(), places.Starts(), MpiType(dtype), group_->Handle());
}

void Collectives::AllGatherInPlace(Dtype dtype, void* data, Counts counts) const {
  // A lone rank's part is already in place: the gather becomes a copy of memory to itself.
  AllGather(dtype, Size() == 1 ? data : MPI_IN_PLACE, data, counts);
}

Request Collectives::StartAllGather(Dtype dtype, const void* from, void* to, Counts counts) const {
  Places places = PlacesOf(Transfer::kAllGather, counts);
  if (Size() == 1) {
    CopyAlone(from, to, BytesOf(dtype, places.Total()));
    return {};
  }
  if (channel_ != nullptr) {
    if (from == MPI_IN_PLACE) from = ElementAt(to, dtype, places.Starts()[Rank()]);
    return PlacedOnChannel(Transfer::kAllGather, dtype, from, to, places);
  }
  Request request = BeginPlaced(Transfer::kAllGather, dtype, std::move(places));
  const int* const sizes = request.places_.Sizes();
  MPI_Iallgatherv(PartAt(from, request.places_, Rank()), sizes[Rank()], MpiType(dtype), to, sizes,
                  request.places_.Starts(), MpiType(dtype), group_->Handle(), &request.handle_);
  return request;
}

Request Collectives::StartAllGatherInPlace(Dtype dtype, void* data, Counts counts) const {
  return StartAllGather(dtype, Size() == 1 ? data : MPI_IN_PLACE, data, counts);
}

void Collectives::AllToAll(Dtype dtype, const void* from, void* to, Counts counts) const {
  CheckPlanned(Transfer::kAllToAll, counts.Largest(Size()) * Size());
  const Places sent(Transfer::kAllToAll, counts, Size());
  // Checks the largest rank's count, so that all ranks refuse if one must.
  CheckedCount(Transfer::kAllToAll, counts.Largest(Size()) * Size());
  if (Size() == 1) return CopyAlone(from, to, BytesOf(dtype, sent.Total()));
  const std::int64_t own = counts.Of(Rank(), Size());
  const Places taken(Transfer::kAllToAll, Counts::Cut(own * Size(), std::max(own, std::int64_t{1})),
                     Size());
  if (channel_ != nullptr) {
    return PlacedOnChannel(Transfer::kAllToAll, dtype, from, to, sent, &taken).Wait();
  }
  const Blocking blocking(Observe(Transfer::kAllToAll, BytesOf(dtype, sent.Total())));
  MPI_Alltoallv(from, sent.Sizes(), sent.Starts(), MpiType(dtype), to, taken.Sizes(),
                taken.Starts(), MpiType(dtype), group_->Handle());
}

void Collectives::Broadcast(Dtype dtype, void* data, std::int64_t count, int root) const {
  if (Size() == 1) return;
  if (channel_ != nullptr) {
    return OnChannel({.transfer = Transfer::kBroadcast,
                      .dtype = dtype,
                      .from = data,
                      .to = data,
                      .count = count,
                      .peer = root})
        .Wait();
  }
  const Blocking blocking(Observe(Transfer::kBroadcast, BytesOf(dtype, count)));
  for (std::int64_t begin = 0; begin < count; begin += kCollectivePiece) {
    const int piece = static_cast<int>(std::min(kCollectivePiece, count - begin));
    MPI_Bcast(ElementAt(data, dtype, begin), piece, MpiType(dtype), root, group_->Handle());
  }
}

Request Collectives::StartMessage(const Operation& operation) const {
  RequireOther(operation.transfer, Size());
  CheckPlanned(operation.transfer, operation.count);
  if (channel_ != nullptr) return OnChannel(operation);
  const int count = CheckedCount(operation.transfer, operation.count);
  const MPI_Datatype type = MpiType(operation.dtype);
  Request request =
      Begin(EventOf(operation.transfer, operation.Bytes(), operation.peer, operation.tag));
  if (operation.transfer == Transfer::kSend) {
    MPI_Isend(operation.from, count, type, operation.peer, operation.tag, group_->Handle(),
              &request.handle_);
  } else {
    MPI_Irecv(operation.to, count, type, operation.peer, operation.tag, group_->Handle(),
              &request.handle_);
  }
  return request;
}

Request Collectives::StartSend(Dtype dtype, const void* data, std::int64_t count, int to,
                               int tag) const {
  return StartMessage({.transfer = Transfer::kSend,
                       .dtype = dtype,
                       .from = data,
                       .count = count,
                       .peer = to,
                       .tag = tag});
}

Request Collectives::StartReceive(Dtype dtype, void* data, std::int64_t count, int from,
                                  int tag) const {
  return StartMessage({.transfer = Transfer::kReceive,
                       .dtype = dtype,
                       .to = data,
                       .count = count,
                       .peer = from,
                       .tag = tag});
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
  Event event = EventOf(Transfer::kSend, BytesOf(dtype, count));
  event.call = Call::kShift;
  requests[0] = OnChannel({.transfer = Transfer::kAllToAll,
                           .dtype = dtype,
                           .from = from,
                           .to = to,
                           .places = &places.sent,
                           .taken = &places.received},
                          event);
  ledger_->Record(name_, Transfer::kReceive, Size(), BytesOf(dtype, taken));  // the shift's receive
  return requests;
}

// Request: a transfer under way.

Request::Request(Request&& other) noexcept { *this = std::move(other); }

Request& Request::operator=(Request&& other) noexcept {
  observed_ = other.observed_;
  handle_ = std::exchange(other.handle_, MPI_REQUEST_NULL);
  channel_ = std::exchange(other.channel_, nullptr);
  ticket_ = other.ticket_;
  places_ = std::move(other.places_);
  sum_ = std::move(other.sum_);
  return *this;
}

bool Request::Test() {
  if (Complete()) return true;
  if (channel_ != nullptr) {
    if (observed_.Logged() || !channel_->Test(ticket_)) return false;
    Wait();
    return true;
  }
  int done = 0;
  MPI_Test(&handle_, &done, MPI_STATUS_IGNORE);
  if (done == 0) return false;
  Finish(0, Seconds() - Started());
  return true;
}

void Request::Wait() { Wait(Seconds()); }

void Request::Wait(double since) {
  if (Complete()) return;
  const double begin = Seconds();
  observed_.Await();
  if (channel_ != nullptr) {
    std::exchange(channel_, nullptr)->Wait(ticket_);
    return Finish(Seconds() - begin, 0);  // TakeExposed has the device's wait
  }
  MPI_Wait(&handle_, MPI_STATUS_IGNORE);
  Finish(Seconds() - begin, std::max(0.0, since - Started()));
}

void Request::Finish(double waited, double hidden) {
  sum_.Finish();
  observed_.End(waited, hidden);
  Places done = std::move(places_);  // returns its memory for reuse
}

// SumInPlace: checks the lengths of the parts first, then the library's name.

bool ScattersInPlace(const char* library, const int* counts, int ranks) {
  std::int64_t before = ranks > 0 ? counts[0] : 0;
  bool overlaps = false;
  for (int rank = 1; rank < ranks; ++rank) {
    overlaps = overlaps || counts[rank] > before;
    before += counts[rank];
  }
  return !overlaps || std::string_view(library).starts_with("Open MPI");
}

MPI_Request SumInPlace::Start(const Communicator& group, MPI_Datatype type, void* data,
                              const int* counts) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> library{};
  int length = 0, size = 0;
  MPI_Get_library_version(library.data(), &length);
  const void* from = MPI_IN_PLACE;
  if (!ScattersInPlace(library.data(), counts, group.Size())) {
    MPI_Type_size(type, &size);
    part_.resize(static_cast<std::size_t>(counts[group.Rank()]) * static_cast<std::size_t>(size));
    from = to_ = data;
    data = part_.data();
  }
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ireduce_scatter(from, data, counts, type, MPI_SUM, group.Handle(), &request);
  return request;
}

void SumInPlace::Finish() {
  if (!part_.empty()) std::memcpy(to_, part_.data(), part_.size());
  part_.clear();
}

// Observed: the reports to each observer.

Observed::Observed(const Communicator& group, Ledger& ledger, const Event& event)
    : event_(event),
      ledger_(&ledger),
      recorder_(group.Recorder()),
      log_(group.IsPlanned() ? ledger.Log() : nullptr) {
  ledger.Record(event.group, event.transfer, event.ranks, event.bytes);
  if (recorder_ != nullptr) {
    const int place = group.RecordedAs();
    flight_ = event.peer < 0
                  ? recorder_->Enter(place, event.call, event.bytes)
                  : recorder_->EnterMessage(place, event.call, event.bytes, event.peer, event.tag);
  }
  if (log_ == nullptr) return;
  number_ = log_->Start({.group = static_cast<std::int8_t>(event.group),
                         .transfer = static_cast<std::int8_t>(event.transfer),
                         .payload = static_cast<std::int8_t>(event.payload),
                         .ranks = event.ranks,
                         .bytes = event.bytes,
                         .peer = event.peer,
                         .tag = event.tag});
}

void Observed::Await() {
  if (recorder_ != nullptr) recorder_->Await(flight_);
  if (log_ != nullptr) log_->Wait(number_);
}

void Observed::End(double waited, double hidden) {
  if (recorder_ != nullptr) recorder_->Leave(flight_);
  ledger_->AddSeconds(event_.group, event_.transfer, waited, hidden);
  if (device::Recorder* const timeline = ledger_->Trace()) Show(*timeline, waited);
}

void Observed::Show(device::Recorder& timeline, double waited) const {
  constexpr double kShortest = 1e-6;  // seconds; shorter waits are the call's own time
  device::Slice slice = SliceOf(event_.group, event_.transfer, event_.bytes);
  slice.begin = event_.begin;
  slice.end = Seconds();
  if (flight_.peer >= 0) {
    slice.peer = event_.peer;
    slice.tag = event_.tag;
    slice.sequence = flight_.sequence;
  }
  if (!event_.on_channel) timeline.Add(slice);
  if (waited < kShortest) return;
  device::Slice wait = WaitFor(slice);
  wait.queue = device::SliceQueue::kHost;
  wait.begin = wait.end - waited;
  timeline.Add(wait);
}

// Real groups refuse such transfers too, but one by one; a plan does so before it allocates.
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

}  // namespace trireme::comm
