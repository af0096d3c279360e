// Copies between the host and a stream's memory. On the CPU both are the same memory, and copies
// are complete on return. On a planned stream every call returns at once and touches nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "trireme/device/stream.hpp"

namespace trireme::device {

struct FreePinned {
  Kind kind = Kind::kCpu;
  void operator()(void* data) const;
};
using PinnedBuffer = std::unique_ptr<void, FreePinned>;

// Zeroed host memory, never null and not counted. RunError if there is too little.
//   kCpu      ordinary memory
//   kCuda     page-locked: a GPU copies from and to it while the host goes on
//   kPlanned  no memory: a unique address, which faults when it is touched
PinnedBuffer AllocatePinned(std::int64_t bytes, Kind kind);

// host: any host memory. The copies run after the work queued before and are complete on return. On
// a planned stream CopyOut leaves `host` unchanged.
void CopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes);
void CopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes);

// Queued copies. `host` must be pinned and stay untouched until the stream has passed the copy.
void StartCopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes);
void StartCopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes);
// StartCopyIn on the input queue, ahead of the computation.
void StartInput(const Stream& stream, const void* host, void* device, std::int64_t bytes);

// Fills device memory with repetitions of a pattern in host memory. Most of it is queued.
void Repeat(const Stream& stream, std::span<const std::byte> pattern, void* device,
            std::int64_t bytes);

// Queued: a copy, and a fill with zeros, within the stream's memory.
void CopyWithin(const Stream& stream, const void* from, void* to, std::int64_t bytes);
void SetZero(const Stream& stream, void* data, std::int64_t bytes);

// Waits for everything that is queued. RunError if a kernel or a copy failed.
void Synchronise(const Stream& stream);

// Waits in its destructor for everything queued on a stream, so that memory may be freed
// afterwards: declare it as the last member, which is destroyed first. If an exception was thrown
// since its construction, queued work may never end; then, instead of waiting, it calls `give_up`
// (which must not throw) to end what waits for other ranks, since GPU memory can only be freed with
// empty queues.
class Drain {
 public:
  explicit Drain(const Stream& stream, std::function<void()> give_up = {})
      : stream_(stream), give_up_(std::move(give_up)), exceptions_(std::uncaught_exceptions()) {}
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

 private:
  Stream stream_;
  std::function<void()> give_up_;
  int exceptions_;  // in flight at construction
};

// A named range in a profiler's timeline (NVTX), for the lifetime of the object; does nothing
// without CUDA. `name` must be a literal.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

// Zeroed buffers with an owner, counters of their bytes, and arenas. An arena is one buffer for
// activations and scratch, which is handed out in order and given back in reverse.

struct Free {
  std::int64_t bytes = 0;  // to be subtracted from the counters below
  Kind kind = Kind::kCpu;
  void operator()(void* data) const;
};
using Buffer = std::unique_ptr<void, Free>;

// Zeroed memory, 128-byte aligned, freed by its owner; never null. RunError if there is too little.
//   kCuda     on the GPU that this thread has opened (device/gpu.hpp)
//   kPlanned  no memory: a unique address, which faults when it is touched
Buffer AllocateZeroed(std::int64_t bytes, Kind kind = Kind::kCpu);
// Bytes that a buffer takes, as the counters below count them; 0 if it is null.
inline std::int64_t BytesOf(const Buffer& buffer) {
  return buffer == nullptr ? 0 : buffer.get_deleter().bytes;
}

// Bytes of all live Buffers of this process, on the host and its GPU, each rounded up to 128, and
// their highest sum since ResetPeakAllocatedBytes. Planned buffers are not counted.
std::int64_t AllocatedBytes();
std::int64_t PeakAllocatedBytes();
void ResetPeakAllocatedBytes();
// Bytes of all live planned Buffers, each rounded up to 128.
std::int64_t PlannedBytes();

class Arena {
 public:
  // The only allocation is made here.
  explicit Arena(std::int64_t bytes, Kind kind = Kind::kCpu);
  // Uses another owner's memory, 128-byte aligned, which must outlive the arena.
  Arena(void* memory, std::int64_t bytes);
  // An arena that hands out no memory, and measures how much a real one would need.
  static Arena Measuring() { return Arena(); }

  bool IsMeasuring() const { return base_ == nullptr; }
  // Returns `bytes` rounded up to 128, uninitialised; nullptr from a measuring arena. RunError (a
  // bug) if the arena is full.
  void* Allocate(std::int64_t bytes);

  // Stack discipline: Release(mark) gives back everything allocated since that Mark().
  std::int64_t Mark() const { return used_; }
  void Release(std::int64_t mark) { used_ = mark; }
  std::int64_t Peak() const { return peak_; }  // most bytes in use since construction

 private:
  Arena() = default;
  Buffer memory_;  // null if the memory has another owner
  void* base_ = nullptr;
  std::int64_t capacity_ = 0;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace trireme::device
