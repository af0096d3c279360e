// NcclChannel: the construction of its links. MPI carries NCCL's names of them.
#include <fmt/format.h>
#include <time.h>

#include <cstddef>
#include <thread>
#include <utility>

#include "make_channel.hpp"
#include "nccl_channel.hpp"
#include "operations.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm::nccl {

namespace {

constexpr std::int64_t kTrialBytes = 256;

// Messages that cross: twice what NCCL takes from a sender before the receiver comes (4 MiB a
// block). The limit is a hundred times what a slow network needs.
constexpr std::int64_t kCrossingBytes = std::int64_t{32} << 20;
constexpr double kCrossingSeconds = 10;

// Seconds in which this thread had a core. A host that polls has one all the time, unless the
// machine is short of them, or the job is suspended: then nothing can arrive either.
double OwnSeconds() {
  constexpr double kNano = 1e-9;
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + kNano * static_cast<double>(time.tv_nsec);
}

ncclUniqueId NewId() {
  ncclUniqueId id{};
  Check(ncclGetUniqueId(&id), "a name for a communicator");
  return id;
}

}  // namespace

void NcclChannel::ConnectCollectives(const ChannelSetup& setup) {
  trial_ = device::AllocateZeroed(kTrialBytes, device::Kind::kCuda);
  ncclUniqueId id{};
  group_.Together([&] {
    if (group_.IsRoot()) id = NewId();
  });
  group_.Broadcast(&id, sizeof id);
  const int rank = group_.Rank(), size = group_.Size();
  const int most_blocks = MostBlocksOfCollective(setup);
  collectives_ = std::make_unique<Link>(Name(), id, size, rank, most_blocks);
  place_ = {.rank = rank, .ranks = size, .neighbours = setup.group == Group::kShard};
  QueueCollective({.from = trial_.get(), .to = trial_.get(), .count = 1}, *collectives_, place_);
  Await(*collectives_);
  if (setup.shifts || place_.neighbours) ConnectNeighbours(1);
  if (place_.neighbours) ConnectNeighbours(-1);
}

// way: 1 to the next rank around the ring, -1 to the previous one.
void NcclChannel::ConnectNeighbours(int way) {
  const int size = place_.ranks;
  const Places sent(Transfer::kSend, 1, (place_.rank + way + size) % size, size);
  const Places taken(Transfer::kReceive, 1, (place_.rank - way + size) % size, size);
  void* const second = static_cast<std::byte*>(trial_.get()) + kTrialBytes / 2;
  QueueCollective({.transfer = Transfer::kAllToAll,
                   .from = trial_.get(),
                   .to = second,
                   .places = &sent,
                   .taken = &taken},
                  *collectives_, place_);
  Await(*collectives_);
}

// One edge after another in an order that all ranks share, in which neighbours that do not meet
// connect at the same time: senders of even rank first.
void NcclChannel::ConnectEdges(const ChannelSetup& setup) {
  const int size = group_.Size();
  const auto connect = [&](int tag, int way) {
    for (const int parity : {0, 1}) {
      for (int sender = parity; sender < size; sender += 2) {
        const int receiver = sender + way;
        const bool closes = receiver < 0 || receiver == size;
        if (closes && !setup.closed) continue;
        ConnectEdge(sender, (receiver + size) % size, tag);
      }
    }
  };
  for (const int tag : setup.to_next) connect(tag, 1);
  for (const int tag : setup.to_previous) connect(tag, -1);
}

void NcclChannel::ConnectEdge(int sender, int receiver, int tag) {
  const bool outgoing = group_.Rank() == sender;
  if (!outgoing && group_.Rank() != receiver) return;
  const int peer = outgoing ? receiver : sender;
  ncclUniqueId id{};
  if (outgoing) {
    id = NewId();
    MPI_Send(&id, sizeof id, MPI_BYTE, peer, tag, group_.Handle());
  } else {
    MPI_Recv(&id, sizeof id, MPI_BYTE, peer, tag, group_.Handle(), MPI_STATUS_IGNORE);
  }
  const std::string name =
      fmt::format("{}, messages of tag {} from rank {} to {}", Name(), tag, sender, receiver);
  Edge edge = {.peer = peer, .tag = tag, .outgoing = outgoing, .link = nullptr};
  edge.link = std::make_unique<Link>(name, id, 2, outgoing ? 0 : 1, kMessageBlocks);
  const Operation trial = {.transfer = outgoing ? Transfer::kSend : Transfer::kReceive,
                           .from = trial_.get(),
                           .to = trial_.get(),
                           .count = 1};
  outgoing ? QueueSend(trial, *edge.link) : QueueReceive(trial, *edge.link);
  Await(*edge.link);
  edges_.push_back(std::move(edge));
}

// Which order of launches NCCL has depends on the driver and on the CUDA with which NCCL itself was
// built, of which it does not tell. So neighbours try what stages do: a message to each other, on
// both ranks the send before the receive.
void NcclChannel::RequireCrossing(const ChannelSetup& setup) {
  if (setup.to_next.empty() || setup.to_previous.empty()) return;
  const device::Buffer out = device::AllocateZeroed(kCrossingBytes, device::Kind::kCuda);
  const device::Buffer in = device::AllocateZeroed(kCrossingBytes, device::Kind::kCuda);
  const auto tried = [&](const Edge& edge) {
    return edge.tag == setup.to_next[0] || edge.tag == setup.to_previous[0];
  };
  const Operation message = {.from = out.get(),
                             .to = in.get(),
                             .count = kCrossingBytes / static_cast<std::int64_t>(sizeof(float))};
  for (const Edge& edge : edges_) {
    if (edge.outgoing && tried(edge)) QueueSend(message, *edge.link);
  }
  for (const Edge& edge : edges_) {
    if (!edge.outgoing && tried(edge)) QueueReceive(message, *edge.link);
  }
  const double start = OwnSeconds();
  bool through = true;
  for (const Edge& edge : edges_) {
    through = through && Await(*edge.link, start + kCrossingSeconds);
  }
  if (group_.Min(std::int64_t{through}) == 1) return;
  AwaitEnds(GiveUp());
  throw AgreedError(
      ExitCode::kBadInput,
      fmt::format("stages on GPUs (grid.pipeline), and {} that runs a GPU's transfers one by one: "
                  "messages of two stages to each other did not arrive within {:.0f} s",
                  Library(), kCrossingSeconds),
      "NCCL goes by the older of its own CUDA and the driver's: load one that was built with CUDA "
      "12.3 or newer, or cut the ranks along other axes of the grid.");
}

bool NcclChannel::Await(const Link& link, double until) {
  while (!link.Idle()) {
    if (OwnSeconds() > until) return false;
    const std::string failure = link.Failure();
    if (!failure.empty()) {
      AwaitEnds(GiveUp());
      throw RunError(fmt::format("NCCL, {}: no connection: {}", link.Name(), failure),
                     "NCCL_DEBUG=WARN in the environment says more.");
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace trireme::comm::nccl
