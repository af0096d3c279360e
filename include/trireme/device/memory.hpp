// Copies between the host and the memory of a stream. On the CPU that is one memory, and copies are
// complete when they return. On a planned stream every call returns at once and touches nothing.
#ifndef TRIREME_DEVICE_MEMORY_HPP_
#define TRIREME_DEVICE_MEMORY_HPP_

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

// Zeroed host memory, never null, in no counter. RunError if there is too little.
//   kCpu      ordinary memory
//   kCuda     page-locked: a GPU copies from and to it while the host goes on
//   kPlanned  no memory: an address of its own, which faults when it is touched
PinnedBuffer AllocatePinned(std::int64_t bytes, Kind kind);

// `host`: any memory of the host. Run after the work queued before, complete when they return. On a
// planned stream CopyOut leaves `host` as it is.
void CopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes);
void CopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes);

// Queued. `host` is pinned and stays untouched until the stream has passed the copy.
void StartCopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes);
void StartCopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes);
// StartCopyIn on the queue of input, ahead of the computation.
void StartInput(const Stream& stream, const void* host, void* device, std::int64_t bytes);

// Fills device memory with repetitions of a pattern in host memory; mostly queued.
void Repeat(const Stream& stream, std::span<const std::byte> pattern, void* device,
            std::int64_t bytes);

// Within the stream's memory, queued.
void CopyWithin(const Stream& stream, const void* from, void* to, std::int64_t bytes);
void SetZero(const Stream& stream, void* data, std::int64_t bytes);

// Waits for everything queued. RunError if a kernel or a copy failed.
void Synchronise(const Stream& stream);

// Waits, when destroyed, for everything queued on a stream, so that memory may be freed after it:
// the last declared member, hence the first destroyed. If an exception was thrown since it was
// made, queued work may never end by itself: instead of waiting it calls `give_up` (which must not
// throw), to end what waits for other ranks, since GPU memory is freed only with empty queues.
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

// A named range in a profiler's picture (NVTX) for the lifetime of the object; nothing without
// CUDA. `name` must be a literal.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_MEMORY_HPP_
