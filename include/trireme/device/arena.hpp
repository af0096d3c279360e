// Memory: zeroed buffers with an owner, their counters, and arenas. An arena is one buffer for
// activations and scratch, handed out in order and given back in reverse.
#ifndef TRIREME_DEVICE_ARENA_HPP_
#define TRIREME_DEVICE_ARENA_HPP_

#include <cstdint>
#include <memory>

#include "trireme/device/stream.hpp"

namespace trireme::device {

struct Free {
  std::int64_t bytes = 0;  // subtracted from the counters below
  Kind kind = Kind::kCpu;
  void operator()(void* data) const;
};
using Buffer = std::unique_ptr<void, Free>;

// Zeroed memory on a 128-byte boundary, freed with its owner; never null. RunError if there is too
// little.
//   kCuda     on the GPU that this thread has opened (device/gpu.hpp)
//   kPlanned  no memory: an address of its own, which faults when it is touched
Buffer AllocateZeroed(std::int64_t bytes, Kind kind = Kind::kCpu);
// Bytes that a buffer takes, as the counters below count it; 0 for none.
inline std::int64_t BytesOf(const Buffer& buffer) {
  return buffer == nullptr ? 0 : buffer.get_deleter().bytes;
}

// Bytes of all live Buffers of this process and on its GPU, each rounded up to 128, and their
// highest sum since ResetPeakAllocatedBytes. Planned buffers are not among them.
std::int64_t AllocatedBytes();
std::int64_t PeakAllocatedBytes();
void ResetPeakAllocatedBytes();
// Bytes of all live planned Buffers, each rounded up to 128.
std::int64_t PlannedBytes();

class Arena {
 public:
  // Allocates once, here.
  explicit Arena(std::int64_t bytes, Kind kind = Kind::kCpu);
  // Uses memory of another owner, 128-byte aligned, which must outlive the arena.
  Arena(void* memory, std::int64_t bytes);
  // An arena that hands out no memory and finds how much a real one needs.
  static Arena Measuring() { return Arena(); }

  bool IsMeasuring() const { return base_ == nullptr; }
  // `bytes` rounded up to 128, uninitialised; nullptr from a measuring arena. RunError (a
  // programming error) if the arena is full.
  void* Allocate(std::int64_t bytes);

  // Stack discipline: Release(mark) gives back everything allocated after Mark().
  std::int64_t Mark() const { return used_; }
  void Release(std::int64_t mark) { used_ = mark; }
  std::int64_t Peak() const { return peak_; }  // bytes, highest since construction

 private:
  Arena() = default;
  Buffer memory_;  // null if another owner has the memory
  void* base_ = nullptr;
  std::int64_t capacity_ = 0;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_ARENA_HPP_
