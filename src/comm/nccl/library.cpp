// The name and version of NCCL, and the order of its launches.
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstdlib>

#include "make_channel.hpp"

namespace trireme::comm::nccl {

std::string Library() {
  constexpr int kMajor = 10000, kMinor = 100;  // 22803 is 2.28.3
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL of unknown version";
  return fmt::format("NCCL {}.{}.{}", version / kMajor, version % kMajor / kMinor,
                     version % kMinor);
}

// The variables are NCCL's (user guide, "Environment variables"), which reads them when the first
// communicator is made; those that the user has set stay.
std::string LetRanksShareGpus() {
  constexpr int kFirst = 23000, kKeep = 0;
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version < kFirst) {
    return fmt::format("{}: before 2.30 ranks that share a GPU cannot meet", Library());
  }
  const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (allowed != nullptr && std::atoi(allowed) == 0) {
    return fmt::format("NCCL_MULTI_RANK_GPU_ENABLE={} in the environment forbids it", allowed);
  }
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", kKeep);
  setenv("NCCL_NVLS_ENABLE", "0", kKeep);  // needs a card for each rank
  setenv("NCCL_MAX_CTAS", "4", kKeep);     // all ranks' blocks have to fit the card side by side
  return "";
}

bool OrdersLaunches() {
  constexpr int kFirst = 22600;
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess && version >= kFirst;
}

namespace {

// Whether NCCL orders launches itself and the driver is for a CUDA before `first`, as it tells it:
// 12030 is 12.3. driver: its CUDA.
bool OrdersWithDriverBefore(int first, int& driver) {
  const char* const ordered = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return ordered != nullptr && std::atoi(ordered) != 0 && OrdersLaunches() &&
         cudaDriverGetVersion(&driver) == cudaSuccess && driver < first;
}

}  // namespace

std::string SerialisingDriver() {
  constexpr int kFirst = 12030;  // with events of launches
  int driver = 0;
  if (!OrdersWithDriverBefore(kFirst, driver)) return "";
  return fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
}

bool GraphsOverlapTransfers() {
  constexpr int kFirst = 12090;  // NCCL's enqueue.cc, getImplicitOrder
  int driver = 0;
  return !OrdersWithDriverBefore(kFirst, driver);
}

}  // namespace trireme::comm::nccl
