// One planned piece of memory for activations and scratch, handed out in order and given back in
// reverse. A measuring arena hands out no memory and finds how much a real one needs.
#ifndef TRIREME_DEVICE_ARENA_HPP_
#define TRIREME_DEVICE_ARENA_HPP_

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace trireme::device {

// Zeroed memory on 128-byte boundaries, freed with its owner. Throws RunError when there is none.
struct Free {
  void operator()(void* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<void, Free>;
Buffer AllocateZeroed(std::int64_t bytes);

class Arena {
 public:
  explicit Arena(std::int64_t bytes);  // one allocation, now
  static Arena Measuring() { return Arena(); }

  bool IsMeasuring() const { return !memory_; }
  // `bytes` rounded up to 128, uninitialised; nullptr from a measuring arena. A full arena is a
  // programming error: RunError.
  void* Allocate(std::int64_t bytes);

  // Stack discipline: everything allocated after Mark() is given back by Release(mark).
  std::int64_t Mark() const { return used_; }
  void Release(std::int64_t mark) { used_ = mark; }
  std::int64_t Peak() const { return peak_; }  // bytes, highest since construction

 private:
  Arena() = default;
  Buffer memory_;
  std::int64_t capacity_ = 0;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_ARENA_HPP_
