// StagedChannel: each transfer of a group through page-locked memory and non-blocking MPI.
#include "staged_channel.hpp"

#include <mpi.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/device/activities.hpp"

namespace trireme::comm {

namespace {

constexpr std::int64_t kAlignment = 128;  // of the second of two operands in one buffer

std::int64_t BytesOf(Dtype dtype, std::int64_t count) {
  return count * static_cast<std::int64_t>(SizeOf(dtype));
}
std::int64_t Rounded(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Type of operands that are only moved: bf16 is two bytes that MPI does not interpret.
MPI_Datatype TypeMoved(Dtype dtype) {
  return dtype == Dtype::kBfloat16 ? MPI_UINT16_T : MpiType(dtype);
}

float Widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest, ties to even; what is not a number stays so.
std::uint16_t RoundedToBf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  constexpr std::uint32_t kInfinity = 0x7f800000u, kQuiet = 0x40u;
  if ((bits & ~0x80000000u) > kInfinity) return static_cast<std::uint16_t>(bits >> 16 | kQuiet);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Bytes of host memory that an operation needs.
std::int64_t HostBytes(const Operation& operation) {
  if (operation.places == nullptr) return BytesOf(operation.dtype, operation.count);
  const std::int64_t bytes = BytesOf(operation.dtype, operation.places->Total());
  if (operation.taken == nullptr) return bytes;
  return Rounded(bytes) + BytesOf(operation.dtype, operation.taken->Total());
}

}  // namespace

StagedChannel::StagedChannel(const Communicator& group, const ChannelSetup& setup)
    : group_(group.Duplicate()), stream_(setup.stream) {}

int StagedChannel::Start(const Operation& operation) {
  if (operation.places == nullptr) CheckedCount(operation.transfer, operation.count);
  int ticket = 0;
  Flight& flight = Take(HostBytes(operation), ticket);
  flight.to = nullptr;
  flight.bytes = flight.rounded = 0;
  Post(operation, flight);
  flight.running = true;
  return ticket;
}

// The smallest place that is large enough, else the largest, which grows; a new one where all are
// taken. Places allocate nothing once there were as many transfers as large at a time.
StagedChannel::Flight& StagedChannel::Take(std::int64_t bytes, int& ticket) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(flights_.size()); ++i) {
    const Flight& flight = flights_[static_cast<std::size_t>(i)];
    if (flight.running) continue;
    const std::int64_t have = best < 0 ? -1 : flights_[static_cast<std::size_t>(best)].capacity;
    const bool better =
        have < bytes ? flight.capacity > have : flight.capacity >= bytes && flight.capacity < have;
    if (best < 0 || better) best = i;
  }
  if (best < 0) {
    best = static_cast<int>(flights_.size());
    flights_.emplace_back().copied = device::Event(stream_);
  }
  ticket = best;
  Flight& flight = flights_[static_cast<std::size_t>(best)];
  flight.copied.Await();  // the rest of the transfer before
  if (flight.capacity < bytes || flight.memory == nullptr) {
    flight.memory = device::AllocatePinned(bytes, stream_.Where());
    flight.capacity = bytes;
  }
  return flight;
}

// Copies `count` elements of the operand out, to element `at` of the flight's memory.
void* StagedChannel::Fetch(const Operation& operation, Flight& flight, std::int64_t at,
                           std::int64_t count) {
  void* host = ElementAt(flight.memory.get(), operation.dtype, at);
  device::StartCopyOut(stream_, operation.from, host, BytesOf(operation.dtype, count));
  device::Synchronise(stream_);
  return host;
}

void StagedChannel::Post(const Operation& operation, Flight& flight) {
  if (operation.places != nullptr) return PostPlaced(operation, flight);
  const int count = static_cast<int>(operation.count);
  const MPI_Datatype type = TypeMoved(operation.dtype);
  char* memory = static_cast<char*>(flight.memory.get());
  const auto arrives = [&] {
    flight.arrived = memory;
    flight.to = operation.to;
    flight.bytes = BytesOf(operation.dtype, count);
  };
  switch (operation.transfer) {
    case Transfer::kBroadcast:
      if (group_.Rank() == operation.peer) {
        Fetch(operation, flight, 0, count);
        if (operation.from != operation.to) arrives();
      } else {
        arrives();
      }
      MPI_Ibcast(memory, count, type, operation.peer, group_.Handle(), &flight.request);
      return;
    case Transfer::kSend:
      Fetch(operation, flight, 0, count);
      MPI_Isend(memory, count, type, operation.peer, operation.tag, group_.Handle(),
                &flight.request);
      return;
    case Transfer::kReceive:
      arrives();
      MPI_Irecv(memory, count, type, operation.peer, operation.tag, group_.Handle(),
                &flight.request);
      return;
    default:
      return PostSum(operation, flight, count);
  }
}

void StagedChannel::PostPlaced(const Operation& operation, Flight& flight) {
  const auto ranks = static_cast<std::size_t>(group_.Size());
  const auto rank = static_cast<std::size_t>(group_.Rank());
  flight.places.assign(operation.places->Sizes(), operation.places->Sizes() + 2 * ranks);
  const std::int64_t total = operation.places->Total();
  if (operation.transfer == Transfer::kReduceScatter) return PostSum(operation, flight, total);
  const MPI_Datatype type = TypeMoved(operation.dtype);
  const int* sizes = flight.places.data();
  void* memory = flight.memory.get();
  flight.to = operation.to;
  if (operation.transfer == Transfer::kAllGather) {
    Fetch(operation, flight, sizes[ranks + rank], sizes[rank]);
    flight.arrived = static_cast<char*>(memory);
    flight.bytes = BytesOf(operation.dtype, total);
    MPI_Iallgatherv(MPI_IN_PLACE, 0, type, memory, sizes, sizes + ranks, type, group_.Handle(),
                    &flight.request);
    return;
  }
  const int* taken = operation.taken->Sizes();
  flight.places.insert(flight.places.end(), taken, taken + 2 * ranks);
  sizes = flight.places.data();
  Fetch(operation, flight, 0, total);
  flight.arrived = static_cast<char*>(memory) + Rounded(BytesOf(operation.dtype, total));
  flight.bytes = BytesOf(operation.dtype, operation.taken->Total());
  MPI_Ialltoallv(memory, sizes, sizes + ranks, type, const_cast<char*>(flight.arrived),
                 sizes + 2 * ranks, sizes + 3 * ranks, type, group_.Handle(), &flight.request);
}

// Starts a sum of `count` elements on every rank. bf16 is added up in fp32 and rounded once, by
// every rank from the same sums.
void StagedChannel::PostSum(const Operation& operation, Flight& flight, std::int64_t count) {
  void* operand = Fetch(operation, flight, 0, count);
  MPI_Datatype type = MpiType(operation.dtype);
  flight.arrived = static_cast<char*>(operand);
  flight.to = operation.to;
  const bool scatters = operation.transfer == Transfer::kReduceScatter;
  const std::int64_t own =
      scatters ? flight.places[static_cast<std::size_t>(group_.Rank())] : count;
  flight.bytes = BytesOf(operation.dtype, own);
  if (operation.dtype == Dtype::kBfloat16) {
    const auto* bits = static_cast<const std::uint16_t*>(operand);
    flight.sums.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < flight.sums.size(); ++i) flight.sums[i] = Widened(bits[i]);
    flight.rounded = own;
    operand = flight.sums.data();
    type = MPI_FLOAT;
  }
  if (scatters) {
    const void* from = MPI_IN_PLACE;
    if (!ScattersInPlace(flight.places.data(), group_.Size())) {
      int size = 0;
      MPI_Type_size(type, &size);
      flight.operand = operand;
      flight.part.resize(static_cast<std::size_t>(own * size));
      from = std::exchange(operand, flight.part.data());
    }
    MPI_Ireduce_scatter(from, operand, flight.places.data(), type, MPI_SUM, group_.Handle(),
                        &flight.request);
    return;
  }
  const MPI_Op reduction = operation.reduction == Reduction::kMax ? MPI_MAX : MPI_SUM;
  MPI_Iallreduce(MPI_IN_PLACE, operand, static_cast<int>(count), type, reduction, group_.Handle(),
                 &flight.request);
}

bool StagedChannel::Test(int ticket) {
  int done = 0;
  MPI_Test(&flights_[static_cast<std::size_t>(ticket)].request, &done, MPI_STATUS_IGNORE);
  return done != 0;
}

void StagedChannel::Wait(int ticket) {
  Flight& flight = flights_[static_cast<std::size_t>(ticket)];
  MPI_Wait(&flight.request, MPI_STATUS_IGNORE);
  if (!flight.part.empty()) std::memcpy(flight.operand, flight.part.data(), flight.part.size());
  flight.part.clear();
  auto* bits = static_cast<std::uint16_t*>(flight.memory.get());
  for (std::int64_t i = 0; i < flight.rounded; ++i) {
    bits[i] = RoundedToBf16(flight.sums[static_cast<std::size_t>(i)]);
  }
  if (flight.bytes > 0) {
    device::StartCopyIn(stream_, flight.arrived, flight.to, flight.bytes);
    if (stream_.OnGpu()) flight.copied.Record(stream_.gpu->queue);
  }
  flight.running = false;
}

// ScattersInPlace: by the lengths of the parts first, then by the library's name.

bool ScattersInPlace(const char* library, const int* counts, int ranks) {
  std::int64_t before = ranks > 0 ? counts[0] : 0;
  bool overlaps = false;
  for (int rank = 1; rank < ranks; ++rank) {
    overlaps = overlaps || counts[rank] > before;
    before += counts[rank];
  }
  return !overlaps || std::string_view(library).starts_with("Open MPI");
}

bool ScattersInPlace(const int* counts, int ranks) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> library{};
  int length = 0;
  MPI_Get_library_version(library.data(), &length);
  return ScattersInPlace(library.data(), counts, ranks);
}

// Request: a transfer under way. The ledger counts it when it starts, and its seconds at the end.

Request::Request(Request&& other) noexcept { *this = std::move(other); }

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  handle_ = std::exchange(other.handle_, MPI_REQUEST_NULL);
  channel_ = std::exchange(other.channel_, nullptr);
  ticket_ = other.ticket_;
  traced_ = other.traced_;
  log_ = other.log_;
  ledger_ = other.ledger_;
  group_ = other.group_;
  transfer_ = other.transfer_;
  group_size_ = other.group_size_;
  payload_ = other.payload_;
  started_ = other.started_;
  recorder_ = other.recorder_;
  flight_ = other.flight_;
  places_ = std::move(other.places_);
  part_ = std::move(other.part_);
  part_to_ = std::exchange(other.part_to_, nullptr);
  return *this;
}

bool Request::Test() {
  if (Complete()) return true;
  if (channel_ != nullptr) {
    if (log_ != nullptr || !channel_->Test(ticket_)) return false;
    Wait();
    return true;
  }
  int done = 0;
  MPI_Test(&handle_, &done, MPI_STATUS_IGNORE);
  if (done == 0) return false;
  Finish(0, Seconds() - started_);
  return true;
}

void Request::Wait() { Wait(Seconds()); }

void Request::Wait(double since) {
  if (Complete()) return;
  const double begin = Seconds();
  if (recorder_ != nullptr) recorder_->Await(flight_);
  if (channel_ != nullptr) {
    if (log_ != nullptr) log_->Wait(ticket_);
    std::exchange(channel_, nullptr)->Wait(ticket_);
    return Finish(Seconds() - begin, 0);  // the channel tells how long the device waits
  }
  MPI_Wait(&handle_, MPI_STATUS_IGNORE);
  Finish(Seconds() - begin, std::max(0.0, since - started_));
}

void Request::BeginFlight(const Communicator& group, Call call) {
  ledger_->Record(group_, transfer_, group_size_, payload_);
  recorder_ = group.Recorder();
  if (recorder_ != nullptr) flight_ = recorder_->Enter(group.RecordedAs(), call, payload_);
}

void Request::BeginMessage(const Communicator& group, Call call, int peer, int tag) {
  ledger_->Record(group_, transfer_, group_size_, payload_);
  recorder_ = group.Recorder();
  if (recorder_ == nullptr) return;
  flight_ = recorder_->EnterMessage(group.RecordedAs(), call, payload_, peer, tag);
}

void Request::ScatterInPlace(const Communicator& group, Dtype dtype, void* data) {
  const int* const sizes = places_.Sizes();
  const void* from = MPI_IN_PLACE;
  void* to = data;
  if (!ScattersInPlace(sizes, group.Size())) {
    part_.resize(static_cast<std::size_t>(sizes[group.Rank()]) * SizeOf(dtype));
    from = part_to_ = data;
    to = part_.data();
  }
  MPI_Ireduce_scatter(from, to, sizes, MpiType(dtype), MPI_SUM, group.Handle(), &handle_);
}

void Request::Finish(double waited, double hidden) {
  if (recorder_ != nullptr) recorder_->Leave(flight_, 0);
  if (part_to_ != nullptr && !part_.empty()) std::memcpy(part_to_, part_.data(), part_.size());
  part_to_ = nullptr;
  part_.clear();
  ledger_->AddSeconds(group_, transfer_, waited, hidden);
  if (device::Recorder* const recorder = ledger_->Trace()) Trace(*recorder, waited);
  Places done = std::move(places_);  // for the next transfer
}

void Request::Trace(device::Recorder& recorder, double waited) const {
  device::Slice slice = SliceOf(group_, transfer_, payload_);
  slice.begin = started_;
  slice.end = Seconds();
  if (flight_.peer >= 0) {
    slice.peer = flight_.peer;
    slice.tag = flight_.tag;
    slice.sequence = flight_.sequence;
  }
  if (!traced_) recorder.Add(slice);
  TraceWait(recorder, slice, waited);
}

void Collectives::Carry(Request& request, const Operation& operation) const {
  request.ticket_ = channel_->Start(operation);
  request.channel_ = channel_;
  request.traced_ = channel_->Traces();
}

}  // namespace trireme::comm
