// Memory for whole units of a sharded model: blocks share some buffers of the largest one's size,
// every other unit has one of its own.
#ifndef TRIREME_PARALLEL_SHARDING_BUFFERS_HPP_
#define TRIREME_PARALLEL_SHARDING_BUFFERS_HPP_

#include <cstdint>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::parallel {

class UnitBuffers {
 public:
  static constexpr int kNone = -1;
  // `block_buffers` for the blocks, no more than one more than there are blocks.
  UnitBuffers(const tensor::Registry& registry, int block_buffers);
  std::int64_t Bytes() const;  // as allocated
  void Allocate();

  int Take(int unit);      // a free buffer for the unit, kNone: all are taken
  void Share(int buffer);  // one more user of a taken buffer
  void Give(int buffer);   // one user less
  void* At(int buffer) const { return places_[static_cast<std::size_t>(buffer)].memory.get(); }

 private:
  struct Place {
    std::int64_t bytes = 0;
    int users = 0;
    device::Buffer memory;
  };
  std::vector<Place> places_;  // the blocks' first
  int block_places_ = 0;
  std::vector<int> own_;  // [units]: its place; kNone: a block
};

// Which piece each unit is, where units are the pieces: [units], -1: other ranks hold it.
std::vector<int> PiecesOfUnits(const tensor::Registry& registry);

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_SHARDING_BUFFERS_HPP_
