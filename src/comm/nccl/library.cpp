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

bool OrdersLaunches() {
  constexpr int kFirst = 22600;
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess && version >= kFirst;
}

std::string SerialisingDriver() {
  constexpr int kFirst = 12030;  // with events of launches
  const char* const ordered = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  int driver = 0;
  if (ordered == nullptr || std::atoi(ordered) == 0 || !OrdersLaunches() ||
      cudaDriverGetVersion(&driver) != cudaSuccess || driver >= kFirst) {
    return "";
  }
  return fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
}

}  // namespace trireme::comm::nccl
