// Choice of the GPU that each rank of a node takes.
#ifndef TRIREME_APP_GPU_CHOICE_HPP_
#define TRIREME_APP_GPU_CHOICE_HPP_

#include <string>
#include <vector>

#include "trireme/comm/runtime.hpp"
#include "trireme/device/options.hpp"

namespace trireme::app {

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
GpuChoice ChooseGpu(const comm::Runtime& runtime, const device::Options& options, const deck::Deck& deck);

}  // namespace trireme::app

#endif  // TRIREME_APP_GPU_CHOICE_HPP_
