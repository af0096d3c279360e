// UnitBuffers: sizes and users of the buffers; UnitPieces: the pieces of units.
#include "sharding_buffers.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"

namespace trireme::parallel {

UnitBuffers::UnitBuffers(const kernels::Registry& registry, Dtype dtype, device::Kind where,
                         int block_buffers) {
  const auto size = static_cast<std::int64_t>(SizeOf(dtype));
  const auto& units = registry.Units();
  std::int64_t largest = 0;
  int blocks = 0;
  for (const kernels::Unit& unit : units) {
    if (!unit.block || unit.range.Size() == 0) continue;
    largest = std::max(largest, unit.range.Size() * size);
    ++blocks;
  }
  block_places_ = blocks > 0 ? std::min(block_buffers, blocks + 1) : 0;
  for (int i = 0; i < block_places_; ++i)
    places_.push_back({0, device::AllocateZeroed(largest, where)});
  own_.assign(units.size(), kNone);
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i].block || units[i].range.Size() == 0) continue;
    own_[i] = static_cast<int>(places_.size());
    places_.push_back({0, device::AllocateZeroed(units[i].range.Size() * size, where)});
  }
}

std::int64_t UnitBuffers::Bytes() const {
  std::int64_t bytes = 0;
  for (const Place& place : places_) bytes += device::BytesOf(place.memory);
  return bytes;
}

int UnitBuffers::Take(int unit) {
  const int own = own_[static_cast<std::size_t>(unit)];
  const int begin = own == kNone ? 0 : own;
  const int end = own == kNone ? block_places_ : own + 1;
  for (int i = begin; i < end; ++i) {
    if (places_[static_cast<std::size_t>(i)].users > 0) continue;
    Share(i);
    return i;
  }
  return kNone;
}

void UnitBuffers::Share(int buffer) { ++places_[static_cast<std::size_t>(buffer)].users; }

void UnitBuffers::Give(int buffer) { --places_[static_cast<std::size_t>(buffer)].users; }

UnitPieces::UnitPieces(const kernels::Registry& registry) : registry_(&registry) {
  const auto& pieces = registry.Owns().pieces;
  std::size_t next = 0;
  for (const kernels::Unit& unit : registry.Units()) {
    const bool held = unit.range.Size() > 0;
    if (held && (next == pieces.size() || pieces[next].range.begin != unit.range.begin)) {
      throw RunError("sharding: " + unit.name + " is no piece of its own",
                     "This is a bug in Trireme.");
    }
    numbers_.push_back(held ? static_cast<int>(next++) : -1);
  }
}

}  // namespace trireme::parallel
