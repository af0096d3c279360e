// One planned piece of memory for activations and scratch, handed out in order and given back in
// reverse. A measuring arena hands out no memory and finds how much a real one needs.
#ifndef TRIREME_DEVICE_ARENA_HPP_
#define TRIREME_DEVICE_ARENA_HPP_

#include <cstdint>
#include <memory>

#include "trireme/device/stream.hpp"

namespace trireme::device {

// Zeroed memory on 128-byte boundaries, freed with its owner. Throws RunError when there is none.
// kCuda: on the GPU that this thread has opened (device/gpu.hpp).
struct Free {
  std::int64_t bytes = 0;  // what the counters below lose
  Kind kind = Kind::kCpu;
  void operator()(void* data) const;
};
using Buffer = std::unique_ptr<void, Free>;
Buffer AllocateZeroed(std::int64_t bytes, Kind kind = Kind::kCpu);
// Bytes that a buffer takes, as the counters below count it; 0 for none.
inline std::int64_t BytesOf(const Buffer& buffer) {
  return buffer == nullptr ? 0 : buffer.get_deleter().bytes;
}

// The allocator's own counters: bytes of all Buffers that live in this process and on its GPU, and
// their highest sum since ResetPeakAllocatedBytes. Rounded up to 128 a buffer, as allocated.
std::int64_t AllocatedBytes();
std::int64_t PeakAllocatedBytes();
void ResetPeakAllocatedBytes();

class Arena {
 public:
  explicit Arena(std::int64_t bytes, Kind kind = Kind::kCpu);  // one allocation, now
  // In somebody else's memory, 128-byte aligned, which must outlive the arena.
  Arena(void* memory, std::int64_t bytes);
  static Arena Measuring() { return Arena(); }

  bool IsMeasuring() const { return base_ == nullptr; }
  // `bytes` rounded up to 128, uninitialised; nullptr from a measuring arena. A full arena is a
  // programming error: RunError.
  void* Allocate(std::int64_t bytes);

  // Stack discipline: everything allocated after Mark() is given back by Release(mark).
  std::int64_t Mark() const { return used_; }
  void Release(std::int64_t mark) { used_ = mark; }
  std::int64_t Peak() const { return peak_; }  // bytes, highest since construction

 private:
  Arena() = default;
  Buffer memory_;  // none where the memory is somebody else's
  void* base_ = nullptr;
  std::int64_t capacity_ = 0;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_ARENA_HPP_
