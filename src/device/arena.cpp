#include "trireme/device/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.hpp"

namespace trireme::device {

namespace {
constexpr std::int64_t kMostBytes = std::int64_t{1} << 47;  // user space of x86-64
constexpr std::int64_t kAlignment = 128;  // two cache lines: the adjacent-line prefetcher's unit

std::int64_t RoundUp(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

Buffer AllocateZeroed(std::int64_t bytes) {
  if (bytes < 0 || bytes > kMostBytes) {
    throw RunError("out of memory: more bytes than can be addressed",
                   "Lower the model's size, data.sequence_length or data.micro_batch.");
  }
  const std::int64_t size = std::max<std::int64_t>(RoundUp(bytes), kAlignment);
  Buffer buffer(std::aligned_alloc(kAlignment, static_cast<std::size_t>(size)));
  if (!buffer) {
    throw RunError(fmt::format("out of memory: {} MiB could not be allocated", size >> 20),
                   "Lower data.micro_batch or the model's size, or use fewer ranks on a node.");
  }
  std::memset(buffer.get(), 0, static_cast<std::size_t>(size));
  return buffer;
}

Arena::Arena(std::int64_t bytes) : memory_(AllocateZeroed(bytes)), capacity_(RoundUp(bytes)) {}

void* Arena::Allocate(std::int64_t bytes) {
  const std::int64_t begin = used_;
  used_ += RoundUp(bytes);
  peak_ = std::max(peak_, used_);
  if (IsMeasuring()) return nullptr;
  if (used_ > capacity_) {
    throw RunError(fmt::format("activation arena: {} bytes wanted of {}", used_, capacity_),
                   "The memory plan missed an allocation: this is a bug in Trireme.");
  }
  return static_cast<char*>(memory_.get()) + begin;
}

}  // namespace trireme::device
