// Chooses the channel for a group of GPUs. No other file of this folder knows whether CUDA was
// built in.
#include "trireme/comm/channel.hpp"

#include <fmt/format.h>

#include <chrono>

#include "nccl/nccl.hpp"
#include "staged_channel.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::comm {

namespace {
constexpr bool kCuda = TRIREME_CUDA != 0;

// A transfer that was given up ends within milliseconds; if its card or network hangs, never.
constexpr std::chrono::seconds kPatience{3};
}  // namespace

std::int64_t Operation::Bytes() const {
  return BytesOf(dtype, places == nullptr ? count : places->Total());
}

device::Slice SliceOf(Group group, Transfer transfer, std::int64_t bytes) {
  device::Slice slice;
  slice.name = device::SliceName::kTransfer;
  slice.category = device::SliceCategory::kTransfer;
  slice.queue = device::SliceQueue::kTransfers;
  slice.group = static_cast<std::int8_t>(group);
  slice.transfer = static_cast<std::int8_t>(transfer);
  slice.bytes = bytes;
  return slice;
}

device::Slice WaitFor(const device::Slice& transfer) {
  device::Slice wait = transfer;
  const bool stage = static_cast<Group>(wait.group) == Group::kPipeline &&
                     static_cast<Transfer>(wait.transfer) == Transfer::kReceive;
  wait.name = stage ? device::SliceName::kBubble : device::SliceName::kWait;
  wait.category = device::SliceCategory::kWait;
  return wait;
}

void AwaitEnds(const std::vector<std::shared_future<void>>& ends) noexcept {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (const std::shared_future<void>& end : ends) end.wait_until(until);
}

std::string GpuTransferLibrary() {
  if constexpr (kCuda) return nccl::Library();
  return "";
}

std::string LetRanksShareGpus() {
  if constexpr (kCuda) return nccl::LetRanksShareGpus();
  return "a program built without CUDA";
}

bool GraphsHoldSeveralGroups() {
  if constexpr (kCuda) return nccl::GraphsOverlapTransfers();
  return true;
}

std::vector<std::pair<std::string, std::string>> DescribeGpuTransfers() {
  if constexpr (kCuda) return nccl::DescribeLog();
  return {};
}

int MostBlocksOfCollective(const ChannelSetup& setup) {
  // Sums of gradients and gathered parameters travel beside the computation; 16 blocks saturate the
  // links of a node (NCCL may choose 32, a quarter of an H100).
  constexpr int kBeside = 16;
  if (setup.shifts) return kMessageBlocks;
  return setup.group == Group::kData || setup.group == Group::kShard ? kBeside : 0;
}

void RequireOrderedLaunches(int groups, bool crossing) {
  if constexpr (kCuda) {
    const std::string driver = crossing ? nccl::SerialisingDriver() : "";
    if (!driver.empty()) {
      throw InputError(
          fmt::format("stages on GPUs (grid.pipeline), and a driver for CUDA {}: before 12.3 NCCL "
                      "runs a GPU's transfers one by one, and messages of two stages to each other "
                      "may wait for ever",
                      driver),
          "Load a newer driver, or CUDA's package for older ones (cuda-compat), or cut the ranks "
          "along other axes of the grid.");
    }
    if (groups <= 1 || nccl::OrdersLaunches()) return;
    throw InputError(
        fmt::format("{} groups of ranks with GPUs (grid), and {}: before 2.26 transfers of one "
                    "group may wait for ever for those of another",
                    groups, nccl::Library()),
        "Load NCCL 2.26 or newer, or cut the ranks along one axis of the grid alone.");
  }
}

std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup) {
  if (group.Size() == 1 || !setup.stream.OnGpu()) return nullptr;
  const Recorded recorded(group, Call::kConnect);
  if (setup.staged) return std::make_unique<StagedChannel>(group, setup);
  if constexpr (kCuda) return nccl::MakeChannel(group, setup);
  throw RunError("transfers between GPUs in a program built without CUDA",
                 "This is a bug in Trireme.");
}

}  // namespace trireme::comm
