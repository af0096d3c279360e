// NcclChannel: the construction of its links. MPI carries NCCL's names of them.
#include <fmt/format.h>

#include <cstddef>
#include <thread>
#include <utility>

#include "nccl_channel.hpp"
#include "operations.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm::nccl {

namespace {

// A message shares the card with the computation, and a receive holds its blocks from when it was
// posted: enough for tens of GB/s, a few in a hundred of the card's multiprocessors.
constexpr int kMessageBlocks = 4;

constexpr std::int64_t kTrialBytes = 256;

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
  const int most_blocks = setup.shifts ? kMessageBlocks : 0;
  collectives_ = std::make_unique<Link>(Name(), id, size, rank, most_blocks);
  QueueCollective({.from = trial_.get(), .to = trial_.get(), .count = 1}, *collectives_, rank,
                  size);
  Await(*collectives_);
  if (!setup.shifts) return;
  const ShiftPlaces places(1, 1, rank, size);
  void* const second = static_cast<std::byte*>(trial_.get()) + kTrialBytes / 2;
  QueueCollective({.transfer = Transfer::kAllToAll,
                   .from = trial_.get(),
                   .to = second,
                   .places = &places.sent,
                   .taken = &places.received},
                  *collectives_, rank, size);
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

void NcclChannel::Await(const Link& link) {
  while (!link.Idle()) {
    const std::string failure = link.Failure();
    if (!failure.empty()) {
      AwaitEnds(GiveUp());
      throw RunError(fmt::format("NCCL, {}: no connection: {}", link.Name(), failure),
                     "NCCL_DEBUG=WARN in the environment says more.");
    }
    std::this_thread::yield();
  }
}

}  // namespace trireme::comm::nccl
