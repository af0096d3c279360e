// MeasureLinks: sums and gathers of one element and of megabytes.
#include "links.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::predict {

namespace {

constexpr std::int64_t kElements = std::int64_t{1} << 20;  // 4 MiB
constexpr std::int64_t kLinkBytes = kElements * 4;

// Seconds of transfers over a group; bandwidths: bytes that a rank sends (comm::Moved) by seconds.
struct Speeds {
  double reduction = 0, gather = 0;  // bytes/s
  double latency = 0;                // s of a sum of one element
};

// The median over repetitions of what the slowest rank takes.
double Slowest(const comm::Communicator& group, const std::function<void()>& transfer) {
  constexpr int kTimes = 7;
  std::vector<double> seconds(kTimes);
  transfer();  // makes connections
  for (double& each : seconds) {
    group.Barrier();
    const double start = Seconds();
    transfer();
    each = group.Max(Seconds() - start);
  }
  const auto middle = seconds.begin() + kTimes / 2;
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

Speeds SpeedsOf(const Subject& subject, const comm::Communicator& group) {
  const int ranks = group.Size();
  comm::ProcessGrid grid(group, {.pipeline = 1, .data = ranks, .context = 1, .tensor = 1});
  if (subject.use_gpu) subject.use_gpu(grid);
  const comm::Collectives& data = grid.Over(comm::Group::kData);
  device::Arena arena(kLinkBytes, subject.stream.Where());
  void* const operand = arena.Allocate(kLinkBytes);
  device::Repeat(subject.stream, std::vector<std::byte>(4), operand, kLinkBytes);
  const auto done = [&] { device::Synchronise(subject.stream); };
  done();
  const auto sum = [&](std::int64_t elements) {
    return Slowest(group, [&, elements] {
      data.StartAllReduce(Dtype::kFloat32, operand, elements).Wait();
      done();
    });
  };
  std::vector<std::int64_t> parts(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    parts[static_cast<std::size_t>(rank)] = PartOf(kElements, rank, ranks).Size();
  }
  const double gather = Slowest(group, [&] {
    data.StartAllGatherInPlace(Dtype::kFloat32, operand, parts).Wait();
    done();
  });
  Speeds speeds;
  speeds.latency = sum(1);
  const auto speed = [&](comm::Transfer transfer, double seconds) {
    const double rest = std::max(seconds - speeds.latency, 0.1 * seconds);
    return comm::Moved(transfer, ranks, kLinkBytes) / rest;
  };
  speeds.reduction = speed(comm::Transfer::kAllReduce, sum(kElements));
  speeds.gather = speed(comm::Transfer::kAllGather, gather);
  return speeds;
}

// Steps of a sum's algorithm over so many ranks, or nodes.
double StepsOf(int ranks) { return 2 * std::ceil(std::log2(ranks)); }

}  // namespace

void MeasureLinks(const Subject& subject, Machine& machine) {
  const comm::Communicator& world = subject.world;
  const int node_ranks = static_cast<int>(world.Max(std::int64_t{subject.node.Size()}));
  const int nodes = static_cast<int>(CeilDivide(world.Size(), node_ranks));
  // Ranks of several nodes measure their own at the same time; the slowest counts.
  Speeds inner;
  if (node_ranks > 1 && subject.node.Size() > 1) inner = SpeedsOf(subject, subject.node);
  const auto least = [&](double value) {
    return -world.Max(value > 0 ? -value : -std::numeric_limits<double>::infinity());
  };
  Link& node = machine.node;
  if (node_ranks > 1) {
    node.bandwidth = least(inner.gather);
    node.reduction = least(inner.reduction);
    node.latency = world.Max(inner.latency) / StepsOf(node_ranks);
  } else {
    // Each byte is read and written.
    node.bandwidth = machine.memory / 2;
    machine.assumptions.emplace_back("links of a node: half its memory's speed, for want of ranks");
  }
  machine.network = node;
  if (nodes > 1) {
    const Speeds outer = SpeedsOf(subject, world);
    const double shared = node_ranks;  // ranks of a node send at once
    machine.network.bandwidth = outer.gather / shared;
    machine.network.reduction = outer.reduction / shared;
    const double inside = node_ranks > 1 ? node.latency * StepsOf(node_ranks) : 0;
    machine.network.latency = std::max(0.0, outer.latency - inside) / StepsOf(nodes);
  } else {
    machine.assumptions.emplace_back("the network: as fast as a node inside, for want of nodes");
  }
}

}  // namespace trireme::predict
