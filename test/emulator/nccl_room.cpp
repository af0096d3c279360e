// NcclRoom: the sums over the operations that have begun.
#include "nccl_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "settings.hpp"
#include "stream.hpp"

namespace emulator {
namespace {

int begun = 0, occupied = 0;  // operations, blocks
int most_occupied = 0;

}  // namespace

int BlocksOfNccl() {
  static const int blocks = static_cast<int>(Number("TRIREME_EMULATOR_NCCL_BLOCKS", 32));
  return blocks;
}

int MostBlocks() { return most_occupied; }

void ForgetMostBlocks() { most_occupied = 0; }

void NcclRoom::Take(int blocks) {
  static const int most = static_cast<int>(Number("TRIREME_EMULATOR_MULTIPROCESSORS", 132));
  static const int queues = static_cast<int>(Number("CUDA_DEVICE_MAX_CONNECTIONS", 8));
  ++begun;
  occupied += blocks;
  blocks_ = blocks;
  most_occupied = std::max(most_occupied, occupied);
  if (occupied > most) {
    Die(
        fmt::format("{} operations of NCCL that wait for other ranks occupy {} blocks of {} "
                    "multiprocessors (TRIREME_EMULATOR_MULTIPROCESSORS): no kernel can start",
                    begun, occupied, most));
  }
  if (begun >= queues) {
    Die(
        fmt::format("{} operations of NCCL that wait for other ranks occupy all {} hardware queues "
                    "(CUDA_DEVICE_MAX_CONNECTIONS): no kernel can start",
                    begun, queues));
  }
}

void NcclRoom::Leave() {
  if (blocks_ == 0) return;
  occupied -= std::exchange(blocks_, 0);
  --begun;
}

}  // namespace emulator
