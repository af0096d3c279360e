// Network: ring and tree algorithms. Bandwidth terms are those of Thakur et al. 2005 (comm::Moved);
// a ring takes n - 1 steps (an all-reduce twice as many), a tree 2 log2 n.
#include "network.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/partition.hpp"

namespace trireme::predict {

using comm::Group, comm::Transfer;

Network::Network(const Machine& machine, const comm::GridShape& shape,
                 const comm::GridOptions& options, int rank)
    : machine_(machine),
      shape_(shape),
      shard_ranks_(comm::ShardRanks(shape, options)),
      rank_(rank) {}

int Network::StrideOf(Group group) const {
  const int replica = shape_.data * shape_.context * shape_.tensor;
  switch (group) {
    case Group::kShard:
    case Group::kContext:
      return shape_.tensor;
    case Group::kData:
      return shape_.tensor * shard_ranks_;
    case Group::kPipeline:
    case Group::kEmbedding:
      return replica;
    case Group::kWorld:
    case Group::kTensor:
    case Group::kKeyValue:
    case Group::kReplica:
      break;
  }
  return 1;
}

// At most; groups may lie across nodes' borders.
int Network::RanksOnNode(Group group, int ranks) const {
  if (group == Group::kReplica) {
    return std::min({ranks, machine_.ranks_per_node, shape_.tensor});
  }
  const int room = std::max(1, machine_.ranks_per_node / StrideOf(group));
  return std::min(ranks, room);
}

Cost Network::OfMessage(const device::LoggedTransfer& transfer) const {
  const auto group = static_cast<Group>(transfer.group);
  // A shift around the ring: some member sends to another node, and all wait for it.
  bool leaves = RanksOnNode(group, transfer.ranks) < transfer.ranks;
  if (transfer.peer >= 0 && group == Group::kPipeline) {
    const int here = comm::Locate(rank_, shape_).pipeline;
    const int other = rank_ + (transfer.peer - here) * StrideOf(group);
    leaves = rank_ / machine_.ranks_per_node != other / machine_.ranks_per_node;
  }
  const Link& link = leaves ? machine_.network : machine_.node;
  return {link.latency, static_cast<double>(transfer.bytes) / link.bandwidth, leaves};
}

Cost Network::Of(const device::LoggedTransfer& transfer) const {
  const auto kind = static_cast<Transfer>(transfer.transfer);
  const auto group = static_cast<Group>(transfer.group);
  if (kind == Transfer::kReceive) return {};
  if (kind == Transfer::kSend) return OfMessage(transfer);
  const int ranks = transfer.ranks, here = RanksOnNode(group, ranks);
  const int nodes = CeilDivide(ranks, here);
  const bool leaves = nodes > 1;
  const bool sums = kind == Transfer::kAllReduce || kind == Transfer::kReduceScatter;
  const auto speed = [sums](const Link& link) {
    return sums && link.reduction > 0 ? link.reduction : link.bandwidth;
  };
  // The members of a node share their adapters.
  double bandwidth = speed(machine_.node);
  if (leaves) {
    bandwidth = here * speed(machine_.network);
    if (here > 1) bandwidth = std::min(bandwidth, speed(machine_.node));
  }
  const double moved = comm::Moved(kind, ranks, transfer.bytes);
  const double rounds = kind == Transfer::kAllReduce ? 2 : 1;
  // A ring goes through every rank, and leaves each node once.
  const int crossings = leaves ? nodes : 0;
  const double ring = rounds * (crossings * machine_.network.latency +
                                std::max(0, ranks - 1 - crossings) * machine_.node.latency);
  const double tree = 2 * (std::ceil(std::log2(nodes)) * machine_.network.latency +
                           std::ceil(std::log2(here)) * machine_.node.latency);
  const bool has_tree = kind == Transfer::kAllReduce || kind == Transfer::kBroadcast;
  return {has_tree ? std::min(ring, tree) : ring, moved / bandwidth, leaves};
}

}  // namespace trireme::predict
