// Placement of threads: shares of cores, pinning, and the warning about too few cores.
#include "trireme/app/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "trireme/device/stream.hpp"
#include "trireme/device/control_groups.hpp"

namespace trireme::app {

namespace {

using device::HardwareThread;

std::string Count(std::size_t number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

// The first hardware thread of each core.
std::vector<HardwareThread> Cores(const std::vector<HardwareThread>& threads) {
  std::vector<HardwareThread> cores;
  for (const HardwareThread& thread : threads) {
    if (cores.empty() || cores.back().core != thread.core) cores.push_back(thread);
  }
  return cores;
}

// Ranks that share what they are bound to, and what that is.
struct Sharers {
  std::vector<std::size_t> ranks;  // of the node
  std::vector<HardwareThread> usable;
  bool alike = true;  // all are bound to all of it
};

Sharers SharersOf(const std::vector<RankThreads>& node, std::size_t rank) {
  Sharers sharers{{}, node[rank].usable};
  const auto is_usable = [&](const HardwareThread& thread) {
    return std::find(sharers.usable.begin(), sharers.usable.end(), thread) != sharers.usable.end();
  };
  for (std::size_t other = 0; other < node.size(); ++other) {
    const auto& theirs = node[other].usable;
    if (std::none_of(theirs.begin(), theirs.end(), is_usable)) continue;
    sharers.ranks.push_back(other);
    sharers.alike = sharers.alike && theirs == sharers.usable;
  }
  return sharers;
}

std::string Shortage(const std::vector<std::size_t>& threads, std::size_t total,
                     const std::string& room) {
  const bool uniform = std::all_of(threads.begin(), threads.end(),
                                   [&](std::size_t count) { return count == threads[0]; });
  return fmt::format(
      "{} {} on {}", Count(threads.size(), "rank"),
      uniform ? "x " + Count(threads[0], "thread") : "with " + Count(total, "thread") + " in all",
      room);
}

// Whole processors of a quota for one of so many ranks.
std::size_t QuotaShare(double quota, std::size_t ranks) {
  return static_cast<std::size_t>(std::ceil(quota / static_cast<double>(ranks)));
}

// As text, for the ranks of the node.
std::string Pack(const RankThreads& mine) {
  std::string text = fmt::format("{} {}", mine.wanted, mine.quota);
  for (const HardwareThread& thread : mine.usable) {
    text += fmt::format(" {} {}", thread.number, thread.core);
  }
  return text;
}

RankThreads Unpack(const std::string& text) {
  std::istringstream numbers(text);
  RankThreads rank;
  numbers >> rank.wanted >> rank.quota;
  for (HardwareThread thread; numbers >> thread.number >> thread.core;) {
    rank.usable.push_back(thread);
  }
  return rank;
}

// Threads that the environment has placed are left alone; so are a GPU's, unless asked for.
device::Pin ChoosePin(device::Pin wanted, bool on_gpu) {
  if (device::ThreadsArePlaced() || (wanted == device::Pin::kAuto && on_gpu)) return device::Pin::kNo;
  return wanted;
}

// One line for all nodes.
void Warn(const comm::Runtime& runtime, const std::string& shortage) {
  const comm::Communicator& world = runtime.World();
  const std::int64_t here = runtime.Node().Max(std::int64_t{shortage.empty() ? 0 : 1});
  const std::int64_t nodes = world.Sum(runtime.Node().IsRoot() ? here : 0);
  if (nodes == 0) return;
  const std::int64_t first =
      world.Min(std::int64_t{shortage.empty() ? world.Size() : world.Rank()});
  const std::string text = world.Broadcast(shortage, static_cast<int>(first));
  if (!world.IsRoot()) return;
  fmt::print(stderr,
             "warning: {} of {}: expect it to be slow. Ask for more cores or fewer threads "
             "(run.threads, OMP_NUM_THREADS); OMP_WAIT_POLICY=passive makes the best of it.\n",
             text, nodes == 1 ? "a node" : fmt::format("a node, and {} in all are short", nodes));
  std::fflush(stderr);
}

}  // namespace

NodePlacement PlaceOnNode(const std::vector<RankThreads>& node, int rank, device::Pin pin) {
  const auto self = static_cast<std::size_t>(rank);
  const Sharers sharers = SharersOf(node, self);
  const std::vector<HardwareThread> cores = Cores(sharers.usable);
  const double quota = node[self].quota;
  std::size_t share = std::max<std::size_t>(1, cores.size() / sharers.ranks.size());
  if (quota > 0) share = std::min(share, QuotaShare(quota, node.size()));
  std::vector<std::size_t> threads;
  std::size_t before = 0, total = 0;
  for (const std::size_t other : sharers.ranks) {
    if (other == self) before = total;
    threads.push_back(node[other].wanted > 0 ? static_cast<std::size_t>(node[other].wanted)
                                             : share);
    total += threads.back();
  }
  NodePlacement placement;
  placement.threads = node[self].wanted > 0 ? node[self].wanted : static_cast<int>(share);
  const auto& pool = total <= cores.size() ? cores : sharers.usable;
  if (!sharers.alike) return placement;  // in part: who may use what is not for us to say
  if (total > pool.size()) {
    placement.shortage = Shortage(threads, total, Count(cores.size(), "core"));
    return placement;
  }
  if (quota > 0 && total > QuotaShare(quota, 1)) {
    placement.shortage = Shortage(
        threads, total, fmt::format("a quota of {:.4g} processor{}", quota, quota == 1 ? "" : "s"));
    return placement;
  }
  if (pin == device::Pin::kNo || (pin == device::Pin::kAuto && total != pool.size())) return placement;
  const std::size_t begin = before * pool.size() / total;
  for (std::size_t i = 0; i < static_cast<std::size_t>(placement.threads); ++i) {
    placement.numbers.push_back(pool[begin + i].number);
  }
  return placement;
}

Placement PlaceThreads(const comm::Runtime& runtime, const device::Options& options, bool on_gpu) {
  const comm::Communicator& node = runtime.Node();
  const int wanted = device::RequestedThreads(options.threads);
  std::vector<RankThreads> ranks;
  for (const std::string& text :
       node.Gather(Pack({wanted, device::DescribeThreads(device::UsableNumbers()), device::CpuQuota()}))) {
    ranks.push_back(Unpack(text));
  }
  const NodePlacement mine = PlaceOnNode(ranks, node.Rank(), ChoosePin(options.pin, on_gpu));
  Placement placement;
  placement.threads = device::ConfigureThreads(mine.threads, 1);
  placement.numbers = mine.numbers;
  const bool pinned = !placement.numbers.empty() && device::PinThreads(placement.numbers);
  placement.pinned = runtime.World().Min(std::int64_t{pinned ? 1 : 0}) == 1;
  Warn(runtime, mine.shortage);
  return placement;
}

}  // namespace trireme::app
