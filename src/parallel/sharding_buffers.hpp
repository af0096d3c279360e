// Memory for whole units of a sharded model: blocks share some buffers of the largest one's size,
// every other unit has one of its own.
#ifndef TRIREME_SRC_PARALLEL_SHARDING_BUFFERS_HPP_
#define TRIREME_SRC_PARALLEL_SHARDING_BUFFERS_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::parallel {

class UnitBuffers {
 public:
  static constexpr int kNone = -1;
  // Allocates `block_buffers` for the blocks, at most one more than there are blocks.
  UnitBuffers(const kernels::Registry& registry, Dtype dtype, device::Kind where, int block_buffers);
  std::int64_t Bytes() const;

  int Take(int unit);      // a free buffer for the unit, kNone: all are taken
  void Share(int buffer);  // one more user of a taken buffer
  void Give(int buffer);   // one user less
  void* At(int buffer) const { return places_[static_cast<std::size_t>(buffer)].memory.get(); }

 private:
  struct Place {
    int users = 0;
    device::Buffer memory;
  };
  std::vector<Place> places_;  // the blocks' first
  int block_places_ = 0;
  std::vector<int> own_;  // [units]: its place; kNone: a block
};

// Pieces of a registry in which every unit is one piece.
class UnitPieces {
 public:
  explicit UnitPieces(const kernels::Registry& registry);  // `registry` must outlive this
  bool Held(int unit) const { return Number(unit) >= 0; }
  int Number(int unit) const { return numbers_[static_cast<std::size_t>(unit)]; }  // of the piece
  const kernels::Piece& PieceOf(int unit) const {  // of one that is held
    return registry_->Owns().pieces[static_cast<std::size_t>(Number(unit))];
  }
  const std::string& NameOf(int unit) const {
    return registry_->Units()[static_cast<std::size_t>(unit)].name;
  }

 private:
  const kernels::Registry* registry_;
  std::vector<int> numbers_;  // [units]; -1: other ranks hold it
};

}  // namespace trireme::parallel

#endif  // TRIREME_SRC_PARALLEL_SHARDING_BUFFERS_HPP_
