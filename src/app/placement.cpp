// Placement of threads (shares of cores, pinning, a warning if cores are too few) and of GPUs.
#include "trireme/app/placement.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "trireme/base/files.hpp"
#include "trireme/comm/channel.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/stream.hpp"

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

// Ranks whose bindings overlap with one rank's binding.
struct Sharers {
  std::vector<std::size_t> ranks;      // their numbers on the node; that rank is among them
  std::vector<HardwareThread> usable;  // that rank's binding
  bool alike = true;                   // all these ranks have the same binding
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

// One rank's share of a quota of processors, rounded up.
std::size_t QuotaShare(double quota, std::size_t ranks) {
  return static_cast<std::size_t>(std::ceil(quota / static_cast<double>(ranks)));
}

// Encodes `mine` as text for the node's other ranks.
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

// kNo if the environment has placed the threads, or if pinning is automatic and a GPU computes.
device::Pin ChoosePin(device::Pin wanted, bool on_gpu) {
  if (device::ThreadsArePlaced() || (wanted == device::Pin::kAuto && on_gpu))
    return device::Pin::kNo;
  return wanted;
}

// Prints one warning for all nodes. Collective over the world.
void Warn(const comm::Runtime& runtime, const std::string& shortage) {
  const comm::Communicator& world = runtime.World();
  const std::int64_t here = runtime.Node().Max(std::int64_t{shortage.empty() ? 0 : 1});
  const std::int64_t nodes = world.Sum(runtime.Node().IsRoot() ? here : 0);
  if (nodes == 0) return;
  const std::int64_t first =
      world.Min(std::int64_t{shortage.empty() ? world.Size() : world.Rank()});
  const std::string text = world.Broadcast(shortage, static_cast<int>(first));
  // A self-test places threads for each of its jobs: do not repeat the same warning.
  static std::string told;
  if (!world.IsRoot() || text == told) return;
  told = text;
  fmt::print(stderr,
             "warning: {} of a node{}: expect it to be slow. Ask for more cores or fewer threads "
             "(run.threads, OMP_NUM_THREADS); OMP_WAIT_POLICY=passive makes the best of it.\n",
             text, nodes == 1 ? "" : fmt::format(" ({} nodes have too few cores)", nodes));
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
  if (!sharers.alike) return placement;  // bindings overlap in part: cannot divide them
  if (total > pool.size()) {
    placement.shortage = Shortage(threads, total, Count(cores.size(), "core"));
    return placement;
  }
  if (quota > 0 && total > QuotaShare(quota, 1)) {
    placement.shortage = Shortage(
        threads, total, fmt::format("a quota of {:.4g} processor{}", quota, quota == 1 ? "" : "s"));
    return placement;
  }
  if (pin == device::Pin::kNo || (pin == device::Pin::kAuto && total != pool.size()))
    return placement;
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
  for (const std::string& text : node.Gather(
           Pack({wanted, device::DescribeThreads(device::UsableNumbers()), device::CpuQuota()}))) {
    ranks.push_back(Unpack(text));
  }
  const NodePlacement mine = PlaceOnNode(ranks, node.Rank(), ChoosePin(options.pin, on_gpu));
  Placement placement;
  placement.threads = device::ConfigureThreads(mine.threads, 1);
  placement.numbers = mine.numbers;
  const bool pinned = !placement.numbers.empty() && device::PinThreads(placement.numbers);
  placement.pinned = comm::TrueEverywhere(runtime.World(), pinned);
  Warn(runtime, mine.shortage);
  return placement;
}

// The choice of GPUs: which rank takes which GPU, and errors if that is impossible.

using Ids = std::vector<std::string>;

int AssignGpu(const std::vector<Ids>& visible, int rank) {
  const Ids& mine = visible.at(static_cast<std::size_t>(rank));
  const auto before =
      std::count(visible.begin(), visible.begin() + rank, mine);  // lower ranks that see the same
  return static_cast<int>(before % std::max<std::ptrdiff_t>(1, std::ssize(mine)));
}

bool SeeApart(const std::vector<Ids>& visible) {
  std::map<std::string, int> ranks;
  for (const Ids& ids : visible) {
    for (const std::string& id : ids) ++ranks[id];
  }
  const auto alone = [](const auto& entry) { return entry.second == 1; };
  return visible.size() > 1 && std::ranges::all_of(ranks, alone);
}

// Throws InputError if NCCL is set not to mix transfers inside and outside of a graph.
static void RequireMixing(const device::Options& options, const deck::Deck& deck, int ranks) {
  if (ranks == 1 || options.graphs == device::Graphs::kNo) return;
  const char* const mixing = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
  if (mixing == nullptr || std::atoi(mixing) != 0) return;
  throw deck.Complain(
      "run.graphs",
      fmt::format("NCCL_GRAPH_MIXING_SUPPORT={} in the environment: NCCL may then hang or compute "
                  "nonsense where some transfers of a communicator are part of a step's graph and "
                  "others are not",
                  mixing),
      "Unset it (a site's module may have set it), or say run.graphs = no.");
}

GpuChoice ChooseGpu(const comm::Runtime& runtime, const device::Options& options,
                    const deck::Deck& deck) {
  const comm::Communicator &world = runtime.World(), &node = runtime.Node();
  GpuChoice choice;
  if (!device::MayTakeGpu(options.device)) return choice;
  const std::string why = device::WhyNoGpu();
  choice.use = world.Min(std::int64_t{why.empty()}) == 1;
  world.Together([&] {
    if (options.device == device::Device::kAuto || why.empty()) return;
    throw deck.Complain("run.device", why,
                        device::GpuBuilt() ? "Run where each rank sees a GPU (nvidia-smi shows "
                                             "them), or use run.device = cpu."
                                           : "Build with -DTRIREME_CUDA=ON (doc/gpu.md), or use "
                                             "run.device = cpu.");
  });
  if (!choice.use) return choice;
  std::vector<Ids> visible;
  for (const std::string& text : node.Gather(fmt::format("{}", fmt::join(device::GpuIds(), " ")))) {
    visible.push_back(WordsIn(text));
  }
  choice.device = AssignGpu(visible, node.Rank());
  std::map<std::string, int> ranks;  // by GPU: number of ranks
  for (int rank = 0; rank < node.Size(); ++rank) {
    const auto device = static_cast<std::size_t>(AssignGpu(visible, rank));
    ++ranks[visible[static_cast<std::size_t>(rank)][device]];
  }
  const auto most = std::max_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool shared = world.Max(std::int64_t{most->second > 1}) == 1;
  choice.staged = shared && options.share_device == device::ShareDevice::kYes;
  if (world.Max(std::int64_t{SeeApart(visible)}) == 1 && world.IsRoot()) {
    fmt::print(stderr,
               "warning: each rank of a node sees GPUs of its own (srun --gpus-per-task, "
               "--gpu-bind). Where a variable hides the others (CUDA_VISIBLE_DEVICES) NCCL copies "
               "between them directly all the same; where a control group does, it copies through "
               "the host (SHM in the line links). Let all ranks see all then (--gres=gpu:N): each "
               "takes its own.\n");
    std::fflush(stderr);
  }
  world.Together([&] {
    if (!choice.staged) RequireMixing(options, deck, world.Size());
    if (shared && options.share_device == device::ShareDevice::kNccl) {
      const std::string refusal = comm::LetRanksShareGpus();
      if (refusal.empty()) return;
      throw deck.Complain("run.share_device", refusal,
                          "Load NCCL 2.30 or newer, or say run.share_device = yes: transfers "
                          "then pass through the host.");
    }
    if (most->second == 1 || options.share_device != device::ShareDevice::kNo) return;
    throw deck.Complain(
        "run.share_device",
        fmt::format("{} ranks of this node have {} GPU{}: {} of them would share one", node.Size(),
                    ranks.size(), ranks.size() == 1 ? "" : "s", most->second),
        "Start one rank per GPU, or say run.share_device = yes: transfers then pass through the "
        "host, which is slow; with nccl they go through NCCL 2.30 or newer.");
  });
  return choice;
}

}  // namespace trireme::app
