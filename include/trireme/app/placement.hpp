// Placement: the number and the cores of each rank's OpenMP threads, and each rank's GPU.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/runtime.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/device/options.hpp"

namespace trireme::app {

// What one rank asks for, and what it may use.
struct RankThreads {
  int wanted = 0;                              // threads asked for; 0: the rank's share
  std::vector<device::HardwareThread> usable;  // threads to which the rank is bound
  double quota = 0;  // processors allowed to all ranks of the node (device::CpuQuota); 0: no limit
};

struct NodePlacement {
  int threads = 1;           // of this rank
  std::vector<int> numbers;  // hardware thread of each thread; empty: threads are not pinned
  std::string shortage;      // "2 ranks x 2 threads on 2 cores", "on a quota of 1.5 processors";
                             // empty: there is no shortage
};

// The placement of rank `rank` of the node. Ranks with the same binding divide its cores in the
// order of the ranks, each into neighbouring cores. Each thread gets a core of its own or, if there
// are too few cores, a hardware thread. A rank with wanted = 0 gets its share of the cores and of
// the node's quota, rounded up. pin = kAuto pins threads only if they fill all cores of the
// binding, because otherwise another program may be meant to use the rest.
NodePlacement PlaceOnNode(const std::vector<RankThreads>& node, int rank, device::Pin pin);

// The placement of this rank, and whether the whole job is pinned.
struct Placement {
  int threads = 1;           // of this rank
  std::vector<int> numbers;  // as in NodePlacement
  bool pinned = false;       // the threads of all ranks are pinned
};
// Sets the number of threads and pins them, as run.threads, run.pin and the environment say.
// Collective over the world. Rank 0 warns if a node has fewer cores than threads. With a GPU,
// run.pin = auto does not pin: threads that CUDA and NCCL start would inherit the cores of the
// thread that started them.
Placement PlaceThreads(const comm::Runtime& runtime, const device::Options& options, bool on_gpu);

// The choice of GPUs.

// Index of the GPU for rank `rank`, among those that this rank sees. visible: for each rank of the
// node, the identities of the GPUs it sees, in its order (CUDA_VISIBLE_DEVICES, a batch system's
// binding). Ranks that see the same GPUs take them in the order of the ranks; if there are more
// ranks than GPUs, several ranks share one.
int AssignGpu(const std::vector<std::vector<std::string>>& visible, int rank);

// Whether there are several ranks, and no GPU is seen by two of them.
bool SeeApart(const std::vector<std::vector<std::string>>& visible);

struct GpuChoice {
  bool use = false;     // false: the CPU computes
  int device = 0;       // index among those that this rank sees
  bool staged = false;  // ranks share a GPU, and transfers pass through the host
};
// Chooses a GPU or the CPU, as run.device and run.share_device say; `auto` takes GPUs if every rank
// sees one. Collective over the world. Warns if the ranks of a node see different GPUs (SeeApart).
// Throws AgreedError (exit code 2) with the deck's line if a GPU is asked for but missing (with the
// reason), if ranks would share one without run.share_device, or if they are to share it through
// NCCL and NCCL is older than 2.30.
GpuChoice ChooseGpu(const comm::Runtime& runtime, const device::Options& options,
                    const deck::Deck& deck);

}  // namespace trireme::app
