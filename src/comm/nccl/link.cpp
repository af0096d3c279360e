// Link: a communicator's start, health and end. It is a blocking one: its calls return when they
// are queued, which takes microseconds and may be recorded in a graph, where a non-blocking one
// starts a thread for every call. Asynchronous errors are polled all the same.
#include "link.hpp"

#include <fmt/format.h>

#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::comm::nccl {

void Check(ncclResult_t result, const std::string& what, ncclComm_t communicator) {
  if (result == ncclSuccess) return;
  std::string message = fmt::format("NCCL, {}: {}", what, ncclGetErrorString(result));
  const char* more = ncclGetLastError(communicator);
  if (more != nullptr && *more != '\0') message += fmt::format(" ({})", more);
  throw RunError(message, "NCCL_DEBUG=WARN in the environment says more.");
}

Link::Link(std::string name, const ncclUniqueId& id, int ranks, int rank, int most_blocks)
    : name_(std::move(name)) {
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

void Link::Abort() {
  if (communicator_ != nullptr) ncclCommAbort(std::exchange(communicator_, nullptr));
}

}  // namespace trireme::comm::nccl
