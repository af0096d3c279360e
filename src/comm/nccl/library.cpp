// The name and version of NCCL.
#include <fmt/format.h>
#include <nccl.h>

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

}  // namespace trireme::comm::nccl
