// Number of OpenMP threads of each rank of a node, and the cores on which they run.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/runtime.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/device/options.hpp"

namespace trireme::app {

// Wish, binding and limit of one rank.
struct RankThreads {
  int wanted = 0;  // 0: its share
  std::vector<device::HardwareThread> usable;
  double quota = 0;  // processors that the node's ranks may use together (device::CpuQuota); 0: any
};

struct NodePlacement {
  int threads = 1;           // of this rank
  std::vector<int> numbers;  // of the hardware threads, one per thread; empty: they are not pinned
  std::string shortage;      // "2 ranks x 2 threads on 2 cores", "on a quota of 1.5 processors";
                             // empty: there are enough
};

// Placement of rank `rank` of the node's ranks. Ranks that are bound alike share the cores they are
// bound to: a rank's cores lie side by side, in the order of the ranks. A thread has a core of its
// own or, if there are fewer cores, a hardware thread. A rank without a wish takes its share of the
// cores, and of the node's quota, rounded up. kAuto: pinned if the ranks use all cores that they
// may use, so that no other program can be meant to share them.
NodePlacement PlaceOnNode(const std::vector<RankThreads>& node, int rank, device::Pin pin);

// Placement of this rank, and whether the whole job is pinned.
struct Placement {
  int threads = 1;           // of this rank
  std::vector<int> numbers;  // as above
  bool pinned = false;       // all ranks' threads are
};
// Collective over the world. Sets the number of threads and pins them, as run.threads and run.pin
// and the environment say; rank 0 warns if a node has fewer cores than threads. With a GPU,
// run.pin = auto pins nothing: threads that CUDA and NCCL start keep to the cores of the thread
// that made them.
Placement PlaceThreads(const comm::Runtime& runtime, const device::Options& options, bool on_gpu);

// Choice of the GPU that each rank of a node takes.

// Number of the card of rank `rank`, among those that this rank sees. visible: for each rank of the
// node, the identities of the cards that it sees, in its order (CUDA_VISIBLE_DEVICES, a batch
// system's binding). Ranks that see the same cards take them in the order of the ranks; with more
// ranks than cards several share one.
int AssignGpu(const std::vector<std::vector<std::string>>& visible, int rank);

// Whether several ranks see cards, and no card is seen by two of them.
bool SeeApart(const std::vector<std::vector<std::string>>& visible);

struct GpuChoice {
  bool use = false;     // false: the CPU computes
  int device = 0;       // among those that this rank sees
  bool staged = false;  // ranks share a card, and transfers pass through the host
};
// Collective over the world. Follows run.device and run.share_device; `auto` takes GPUs if every
// rank sees one. Warns where the ranks of a node see apart. AgreedError (exit code 2) with the
// deck's line if a GPU is asked for and missing (with the reason), if ranks would share a card
// without run.share_device, or if they would through NCCL and NCCL is older than 2.30.
GpuChoice ChooseGpu(const comm::Runtime& runtime, const device::Options& options,
                    const deck::Deck& deck);

}  // namespace trireme::app
