// Moving bytes between the host and where a stream computes. On the CPU that is one memory: copies
// are complete when they return.
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

// Host memory that a GPU can copy from and to while the host goes on (page-locked); ordinary
// memory where there is none. Zeroed.
struct FreePinned {
  Kind kind = Kind::kCpu;
  void operator()(void* data) const;
};
using PinnedBuffer = std::unique_ptr<void, FreePinned>;
PinnedBuffer AllocatePinned(std::int64_t bytes, Kind kind);

// Any host memory. Behind what was queued; complete when they return.
void CopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes);
void CopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes);

// `host` is pinned and stays untouched until the stream has come to it.
void StartCopyIn(const Stream& stream, const void* host, void* device, std::int64_t bytes);
void StartCopyOut(const Stream& stream, const void* device, void* host, std::int64_t bytes);
// The same on the queue of input, whatever the computation does.
void StartInput(const Stream& stream, const void* host, void* device, std::int64_t bytes);

// Fills device memory with what the host has, over and over. Most of it is queued.
void Repeat(const Stream& stream, std::span<const std::byte> pattern, void* device,
            std::int64_t bytes);

// Within the stream's memory, queued.
void CopyWithin(const Stream& stream, const void* from, void* to, std::int64_t bytes);
void SetZero(const Stream& stream, void* data, std::int64_t bytes);

// Returns when all that was queued is done. RunError where a kernel or a copy failed.
void Synchronise(const Stream& stream);

// Memory that is about to go: what was queued is awaited when this goes. Not so where an exception
// came up since this was made, behind which it may never end by itself: then give_up, which must
// not throw, ends what waits for other ranks, since a GPU's memory goes only when its queues are
// empty. The first member to be destroyed, so the last declared.
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
  int exceptions_;  // under way when this was made
};

// A range with a name in the picture that a profiler draws (NVTX), for as long as this lives.
// Nothing without CUDA. `name` must be a literal.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_MEMORY_HPP_
