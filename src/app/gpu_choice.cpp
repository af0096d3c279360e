// Choice of GPUs: which rank takes which card, and why a job cannot have any.
#include "trireme/app/gpu_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/comm/channel.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::app {

namespace {

using Ids = std::vector<std::string>;

Ids Split(const std::string& text) {
  std::istringstream words(text);
  Ids ids;
  for (std::string id; words >> id;) ids.push_back(id);
  return ids;
}

}  // namespace

int AssignGpu(const std::vector<Ids>& visible, int rank) {
  const Ids& mine = visible.at(static_cast<std::size_t>(rank));
  const auto before =
      std::count(visible.begin(), visible.begin() + rank, mine);  // ranks that see the same
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

namespace {

// InputError where transfers inside and outside a step's graph may not use one communicator.
void RequireMixing(const device::Options& options, const deck::Deck& deck, int ranks) {
  const char* const mixing = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
  if (ranks == 1 || !options.graphs || mixing == nullptr || std::atoi(mixing) != 0) return;
  throw deck.Complain(
      "run.graphs",
      fmt::format("NCCL_GRAPH_MIXING_SUPPORT={} in the environment: NCCL may then hang or compute "
                  "nonsense where some transfers of a communicator are part of a step's graph and "
                  "others are not",
                  mixing),
      "Unset it (a site's module may have set it), or say run.graphs = no.");
}

}  // namespace

GpuChoice ChooseGpu(const comm::Runtime& runtime, const device::Options& options, const deck::Deck& deck) {
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
    visible.push_back(Split(text));
  }
  choice.device = AssignGpu(visible, node.Rank());
  std::map<std::string, int> ranks;  // of each card
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
        "Start one rank a GPU, or say run.share_device = yes: transfers then pass through the "
        "host, which is slow; with nccl they go through NCCL 2.30 or newer.");
  });
  return choice;
}

}  // namespace trireme::app
