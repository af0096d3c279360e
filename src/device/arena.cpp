// Memory on the host, and addresses of planned memory: allocation, counters, arenas.
#include "trireme/device/memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "allocate.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::device {

namespace {
constexpr std::int64_t kMostBytes = std::int64_t{1} << 47;  // user space of x86-64
constexpr std::int64_t kAlignment = 128;  // two cache lines: the adjacent-line prefetcher's unit

constexpr std::int64_t kHugePage = std::int64_t{1} << 21;
constexpr std::int64_t kHugeFrom = 4 * kHugePage;  // so large that rounding up does not matter
// Addresses of planned memory: outside of user space on every 64-bit processor, so that an access
// faults (on aarch64 bit 55 selects the kernel's half; on x86-64 it is not canonical or, if user
// space has 56 bits, in its upper half, which stays unmapped).
constexpr std::uint64_t kPlannedBegin = std::uint64_t{1} << 55;
constexpr std::uint64_t kPlannedEnd = std::uint64_t{1} << 56;

// Clears memory with all threads, in huge pages: a page is placed near the thread that clears it.
void ZeroByAll(char* data, std::int64_t bytes) {
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < bytes; begin += kHugePage) {
    std::memset(data + begin, 0, static_cast<std::size_t>(std::min(kHugePage, bytes - begin)));
  }
}

// Counters of the process.
std::atomic<std::int64_t> allocated_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};
std::atomic<std::int64_t> planned_bytes{0};
std::atomic<std::uint64_t> next_planned{0};  // bytes after kPlannedBegin

void CountAllocation(std::int64_t bytes) {
  const std::int64_t now = allocated_bytes += bytes;
  std::int64_t peak = peak_bytes;
  while (peak < now && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
}
}  // namespace

void* PlannedAddress(std::int64_t bytes) {
  const std::int64_t size = std::max<std::int64_t>(RoundUp(bytes, kAlignment), kAlignment);
  const std::uint64_t at = next_planned.fetch_add(static_cast<std::uint64_t>(size));
  // After 2^55 bytes addresses repeat; their first owners are gone by then.
  return reinterpret_cast<void*>(kPlannedBegin + at % (kPlannedEnd - kPlannedBegin));
}

void Free::operator()(void* data) const {
  if (kind == Kind::kPlanned) {
    planned_bytes -= bytes;
    return;
  }
  if (kind == Kind::kCpu) {
    std::free(data);
  } else {
    FreeOn(kind, data, bytes);
  }
  allocated_bytes -= bytes;
}

std::int64_t AllocatedBytes() { return allocated_bytes; }
std::int64_t PeakAllocatedBytes() { return peak_bytes; }
void ResetPeakAllocatedBytes() { peak_bytes = allocated_bytes.load(); }
std::int64_t PlannedBytes() { return planned_bytes; }

Buffer AllocateZeroed(std::int64_t bytes, Kind kind) {
  if (bytes < 0 || bytes > kMostBytes) {
    throw RunError("out of memory: more bytes than can be addressed",
                   "Lower the model's size, data.sequence_length or data.micro_batch.");
  }
  const std::int64_t size = std::max<std::int64_t>(RoundUp(bytes, kAlignment), kAlignment);
  if (kind == Kind::kPlanned) {
    planned_bytes += size;
    return {PlannedAddress(size), Free{size, kind}};
  }
  if (kind != Kind::kCpu) {
    Buffer buffer(AllocateOn(kind, size), Free{size, kind});
    CountAllocation(size);
    return buffer;
  }
  const bool large = size >= kHugeFrom;
  const auto alignment = static_cast<std::size_t>(large ? kHugePage : kAlignment);
  // aligned_alloc requires a multiple of the alignment (C11), and some C libraries insist on that.
  void* memory = nullptr;
  const int error = ::posix_memalign(&memory, alignment, static_cast<std::size_t>(size));
  Buffer buffer(error == 0 ? memory : nullptr, Free{size, kind});
  if (!buffer) {
    throw RunError(
        fmt::format("out of memory: {} MiB could not be allocated", size >> 20),
        MemoryAdvice("Lower data.micro_batch or the model's size, or use fewer ranks on a node."));
  }
  CountAllocation(size);
  if (large) {
    // Advises the system: one page fault per 2 MiB instead of 512.
    madvise(buffer.get(), static_cast<std::size_t>(size), MADV_HUGEPAGE);
    ZeroByAll(static_cast<char*>(buffer.get()), size);
  } else {
    std::memset(buffer.get(), 0, static_cast<std::size_t>(size));
  }
  return buffer;
}

Arena::Arena(std::int64_t bytes, Kind kind)
    : memory_(AllocateZeroed(bytes, kind)),
      base_(memory_.get()),
      capacity_(RoundUp(bytes, kAlignment)) {}

Arena::Arena(void* memory, std::int64_t bytes) : base_(memory), capacity_(bytes) {
  if (memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % kAlignment == 0) return;
  throw RunError(fmt::format("activation arena: no memory on a {}-byte boundary", kAlignment),
                 "This is a bug in Trireme.");
}

void* Arena::Allocate(std::int64_t bytes) {
  const std::int64_t begin = used_;
  used_ += RoundUp(bytes, kAlignment);
  peak_ = std::max(peak_, used_);
  if (IsMeasuring()) return nullptr;
  if (used_ > capacity_) {
    throw RunError(fmt::format("activation arena: {} bytes wanted of {}", used_, capacity_),
                   "The memory plan missed an allocation: this is a bug in Trireme.");
  }
  return static_cast<char*>(base_) + begin;
}

}  // namespace trireme::device
