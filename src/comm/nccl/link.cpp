// Link: a communicator's start, health and end. It is a blocking one: its calls return when they
// are queued, which takes microseconds and may be recorded in a graph, where a non-blocking one
// starts a thread for every call. Asynchronous errors are polled all the same.
#include "link.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::comm::nccl {

void Check(ncclResult_t result, const std::string& what, ncclComm_t communicator) {
  if (result == ncclSuccess) return;
  std::string message = fmt::format("NCCL, {}: {}", what, ncclGetErrorString(result));
  const char* more = ncclGetLastError(communicator);
  if (more != nullptr && *more != '\0') message += fmt::format(" ({})", more);
  const char* const sharing = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = sharing != nullptr && std::atoi(sharing) != 0;
  throw RunError(message, may_share
                              ? "NCCL_DEBUG=WARN in the environment says more. If ranks share "
                                "a GPU: run.share_device = yes does without NCCL."
                              : "NCCL_DEBUG=WARN in the environment says more.");
}

Link::Link(std::string name, const ncclUniqueId& id, int ranks, int rank, int most_blocks)
    : name_(std::move(name)) {
  device::cuda::Check(cudaGetDevice(&device_), "the current GPU");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (most_blocks > 0) config.maxCTAs = most_blocks;
  Check(ncclCommInitRankConfig(&communicator_, ranks, id, rank, &config), name_ + ": starting");
  // Ahead of the computation's blocks wherever one ends: a transfer is short, and others wait.
  int least = 0, greatest = 0;
  device::cuda::Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priority of a queue");
  device::cuda::Check(cudaStreamCreateWithPriority(&queue_, cudaStreamNonBlocking, greatest),
                      "a queue for transfers");
}

Link::~Link() {
  Abort();
  if (queue_ != nullptr) cudaStreamDestroy(queue_);
}

std::string Link::Failure() const {
  if (communicator_ == nullptr) return "its transfers were given up";
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &found);
  const ncclResult_t result = asked != ncclSuccess ? asked : found;
  if (result == ncclSuccess || result == ncclInProgress) return "";
  return ncclGetErrorString(result);
}

bool Link::Idle() const {
  const cudaError_t code = cudaStreamQuery(queue_);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();  // no error
    return false;
  }
  device::cuda::Check(code, "a transfer");
  return true;
}

void Link::Destroy() {
  if (communicator_ != nullptr) ncclCommDestroy(std::exchange(communicator_, nullptr));
}

std::shared_future<void> Link::Abort() noexcept {
  const ncclComm_t communicator = std::exchange(communicator_, nullptr);
  if (end_.valid()) return end_;
  std::packaged_task<void()> abort([communicator, device = device_] {
    if (communicator == nullptr) return;
    // A thread starts with the first GPU, which NCCL would open when it goes back to it.
    cudaSetDevice(device);
    ncclCommAbort(communicator);
  });
  end_ = abort.get_future().share();
  if (communicator == nullptr) {
    abort();
    return end_;
  }
  try {
    std::thread(std::move(abort)).detach();
  } catch (const std::system_error&) {
    // No thread to be had: better to wait here than not to end it.
    ncclCommAbort(communicator);
  }
  return end_;
}

}  // namespace trireme::comm::nccl
