// StagedChannel: each transfer through page-locked host memory and non-blocking MPI.
#include "staged_channel.hpp"

#include <mpi.h>

namespace trireme::comm {

namespace {

constexpr std::int64_t kAlignment = 128;  // bytes; of the second operand in a buffer

// MPI type of operands that are only moved: bf16 is two bytes that MPI does not interpret.
MPI_Datatype TypeMoved(Dtype dtype) {
  return dtype == Dtype::kBfloat16 ? MPI_UINT16_T : MpiType(dtype);
}

// Bytes of host memory that an operation needs.
std::int64_t HostBytes(const Operation& operation) {
  const std::int64_t bytes = operation.Bytes();
  if (operation.taken == nullptr) return bytes;
  return RoundUp(bytes, kAlignment) + BytesOf(operation.dtype, operation.taken->Total());
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

// Takes the smallest free flight that is large enough, else the largest, which then grows; a new
// one if all are in use. Allocates nothing more once as many transfers as large have run at a time.
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
  flight.copied.Await();  // the flight's last transfer
  if (flight.capacity < bytes || flight.memory == nullptr) {
    flight.memory = device::AllocatePinned(bytes, stream_.Where());
    flight.capacity = bytes;
  }
  return flight;
}

// Copies `count` elements of the operand to the host, to element `at` of the flight's memory.
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
  flight.arrived =
      static_cast<char*>(memory) + RoundUp(BytesOf(operation.dtype, total), kAlignment);
  flight.bytes = BytesOf(operation.dtype, operation.taken->Total());
  MPI_Ialltoallv(memory, sizes, sizes + ranks, type, const_cast<char*>(flight.arrived),
                 sizes + 2 * ranks, sizes + 3 * ranks, type, group_.Handle(), &flight.request);
}

// Starts a sum (or maximum) of `count` elements. bf16 is summed in fp32 and rounded once, by every
// rank from the same sums.
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
    for (std::size_t i = 0; i < flight.sums.size(); ++i) flight.sums[i] = FromBfloat16(bits[i]);
    flight.rounded = own;
    operand = flight.sums.data();
    type = MPI_FLOAT;
  }
  if (scatters) {
    flight.request = flight.scattered.Start(group_, type, operand, flight.places.data());
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
  flight.scattered.Finish();
  auto* bits = static_cast<std::uint16_t*>(flight.memory.get());
  for (std::int64_t i = 0; i < flight.rounded; ++i) {
    bits[i] = RoundToBfloat16(flight.sums[static_cast<std::size_t>(i)]);
  }
  if (flight.bytes > 0) {
    device::StartCopyIn(stream_, flight.arrived, flight.to, flight.bytes);
    if (stream_.OnGpu()) flight.copied.Record(stream_.gpu->queue);
  }
  flight.running = false;
}

}  // namespace trireme::comm
