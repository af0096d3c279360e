// A planned device: addresses instead of memory, counted, and calls that touch none of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::device {
namespace {

std::uintptr_t Address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

TEST(PlannedMemory, IsDistinctAlignedAndCountedApart) {
  const std::int64_t allocated = AllocatedBytes(), planned = PlannedBytes();
  std::vector<Buffer> buffers;
  std::uintptr_t end = 0;
  std::int64_t counted = 0;
  for (const std::int64_t bytes : {0L, 1L, 127L, 128L, 129L, 1L << 45}) {
    buffers.push_back(AllocateZeroed(bytes, Kind::kPlanned));
    ASSERT_NE(buffers.back(), nullptr) << bytes;
    const std::uintptr_t begin = Address(buffers.back().get());
    EXPECT_EQ(begin % 128, 0u) << bytes;
    EXPECT_GE(begin, end) << "overlaps the buffer before";
    end = begin + static_cast<std::uintptr_t>(bytes);
    counted += std::max<std::int64_t>(128, (bytes + 127) / 128 * 128);
    EXPECT_EQ(PlannedBytes() - planned, counted) << bytes;
  }
  EXPECT_EQ(AllocatedBytes(), allocated);
  buffers.clear();
  EXPECT_EQ(PlannedBytes(), planned);
}

TEST(PlannedMemory, PinnedMemoryIsInNoCounter) {
  const std::int64_t planned = PlannedBytes();
  const PinnedBuffer one = AllocatePinned(1000, Kind::kPlanned);
  const PinnedBuffer other = AllocatePinned(0, Kind::kPlanned);
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  EXPECT_NE(one.get(), other.get());
  EXPECT_EQ(Address(one.get()) % 128, 0u);
  EXPECT_EQ(PlannedBytes(), planned);
}

// An address that is none: SIGSEGV, or SIGBUS if the instruction counts from a register of the
// stack.
bool Faults(int status) {
  return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}

// The other tests of planned streams rest on this: an access does not go unnoticed.
TEST(PlannedMemoryDeathTest, FaultsWhenItIsTouched) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Buffer buffer = AllocateZeroed(1 << 20, Kind::kPlanned);
  auto* const bytes = static_cast<volatile unsigned char*>(buffer.get());
  EXPECT_EXIT(static_cast<void>(bytes[4096]), Faults, "");
  EXPECT_EXIT(bytes[0] = 1, Faults, "");
}

TEST(PlannedMemory, AnArenaHandsOutAddresses) {
  Arena arena(1000, Kind::kPlanned);
  EXPECT_FALSE(arena.IsMeasuring());
  const std::uintptr_t first = Address(arena.Allocate(1));
  const std::int64_t mark = arena.Mark();
  EXPECT_EQ(Address(arena.Allocate(800)), first + 128);
  arena.Release(mark);
  EXPECT_EQ(Address(arena.Allocate(8)), first + 128);
  EXPECT_EQ(arena.Peak(), 128 + 896);
}

TEST(PlannedStream, SaysWhere) {
  OperationCount count;
  const GpuContext gpu;
  EXPECT_EQ((Stream{}.Where()), Kind::kCpu);
  EXPECT_EQ((Stream{.gpu = &gpu}.Where()), Kind::kCuda);
  const Stream cpu{.planned = &count}, card{.gpu = &gpu, .planned = &count};
  EXPECT_EQ(cpu.Where(), Kind::kPlanned);
  EXPECT_EQ(card.Where(), Kind::kPlanned);
  EXPECT_FALSE(cpu.OnGpu());
  EXPECT_TRUE(card.OnGpu());
  EXPECT_TRUE(card.Serial().Planned());
}

TEST(PlannedGpu, HasScratchAndNoQueue) {
  const std::int64_t planned = PlannedBytes();
  {
    const Gpu gpu(GpuContext{.name = "a card", .major = 9, .multiprocessors = 132});
    EXPECT_EQ(gpu.Context().name, "a card");
    EXPECT_EQ(gpu.Context().multiprocessors, 132);
    EXPECT_EQ(gpu.Context().queue, nullptr);
    EXPECT_EQ(gpu.Context().scratch_bytes, kGpuScratchBytes);
    EXPECT_EQ(PlannedBytes() - planned, kGpuScratchBytes + kGpuWorkspaceBytes);
  }
  EXPECT_EQ(PlannedBytes(), planned);
}

// Every call of memory.hpp and gpu.hpp on a planned CPU and on a planned GPU. Planned addresses
// fault when they are touched.
TEST(PlannedStream, TouchesNoMemory) {
  OperationCount count;
  const Gpu gpu(GpuContext{.name = "a card"});
  for (const GpuContext* context : {static_cast<const GpuContext*>(nullptr), &gpu.Context()}) {
    const Stream stream{.gpu = context, .planned = &count};
    const Buffer a = AllocateZeroed(4096, Kind::kPlanned), b = AllocateZeroed(4096, Kind::kPlanned);
    std::array<std::byte, 64> host{};
    host.fill(std::byte{7});
    const auto before = host;
    CopyIn(stream, host.data(), a.get(), 64);
    CopyOut(stream, a.get(), host.data(), 64);
    StartCopyIn(stream, host.data(), a.get(), 64);
    StartCopyOut(stream, a.get(), host.data(), 64);
    StartInput(stream, host.data(), a.get(), 64);
    Repeat(stream, host, a.get(), 4096);
    CopyWithin(stream, a.get(), b.get(), 4096);
    SetZero(stream, a.get(), 4096);
    EXPECT_EQ(host, before);
    EXPECT_EQ(FreeBytes(stream), 0);

    Event first(stream, true), second(stream, true);
    first.Record(nullptr);
    second.Record(nullptr);
    second.MakeWait(nullptr);
    second.Await();
    EXPECT_TRUE(second.Happened());
    EXPECT_EQ(second.SecondsSince(first), 0);

    Graph graph;
    graph.Begin(stream);
    SetZero(stream, a.get(), 4096);
    graph.End(stream);
    EXPECT_FALSE(graph.Recorded());
    graph.Launch(stream);
    graph.Begin(stream);
    graph.Abandon(stream);

    Synchronise(stream);
    const Drain drain(stream);
  }
  EXPECT_EQ(count.flops, 0);
}

}  // namespace
}  // namespace trireme::device
