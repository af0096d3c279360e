// Memory: the arena, and what a planned run takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::device {
namespace {

// Memory: allocated, freed and counted; arenas.

// The message of what `body` throws.
template <typename Body>
std::string MessageOf(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    return error.what();
  }
  return "nothing was thrown";
}

bool Aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 128 == 0; }

TEST(Buffer, IsZeroedAndAlignedAndNeverEmpty) {
  for (const std::int64_t bytes : {0, 1, 127, 128, 129, 100000}) {
    const Buffer buffer = AllocateZeroed(bytes);
    ASSERT_NE(buffer, nullptr) << bytes;
    EXPECT_TRUE(Aligned(buffer.get())) << bytes;
    const auto* data = static_cast<const unsigned char*>(buffer.get());
    for (std::int64_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], 0) << i << " of " << bytes;
  }
}

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Of this process, in huge pages: KiB.
std::int64_t HugeKib() {
  const std::string text = FileText("/proc/self/smaps_rollup");
  const auto at = text.find("AnonHugePages:");
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + 14);
}

// Large buffers too, of a size that is no multiple of a page; by as many threads as there are.
TEST(Buffer, LargeOnesAreZeroedInHugePages) {
  constexpr std::int64_t kMib = 1 << 20, kBytes = 64 * kMib + 200;
  {
    const Buffer used = AllocateZeroed(kBytes);  // memory that the next one may get again
    std::memset(used.get(), 1, kBytes);
  }
  const std::int64_t before = HugeKib();
  const Buffer buffer = AllocateZeroed(kBytes);
  const auto* data = static_cast<const unsigned char*>(buffer.get());
  EXPECT_TRUE(std::all_of(data, data + kBytes, [](unsigned char byte) { return byte == 0; }));
  const std::string enabled = FileText("/sys/kernel/mm/transparent_hugepage/enabled");
  const bool used = enabled.find("[always]") != std::string::npos ||
                    enabled.find("[madvise]") != std::string::npos;
  if (!used || before < 0) GTEST_SKIP() << "the system gives no huge pages";
  // The kernel may be short of some.
  EXPECT_GE(HugeKib() - before, 32 << 10);
}

TEST(Buffer, MoreThanThereIsSaysWhatToLower) {
  const std::int64_t before = AllocatedBytes();
  const std::int64_t most = std::int64_t{1} << 47;
  for (const std::int64_t bytes : {std::int64_t{-1}, most + 1}) {
    EXPECT_THAT(MessageOf([&] { AllocateZeroed(bytes); }), testing::HasSubstr("data.micro_batch"));
  }
  EXPECT_EQ(AllocatedBytes(), before);
}

TEST(Counters, FollowEachBufferToItsEnd) {
  const std::int64_t before = AllocatedBytes();
  {
    Buffer one = AllocateZeroed(1);
    EXPECT_EQ(AllocatedBytes(), before + 128);
    Buffer two = AllocateZeroed(1000);
    EXPECT_EQ(AllocatedBytes(), before + 128 + 1024);
    one = std::move(two);  // frees the first
    EXPECT_EQ(AllocatedBytes(), before + 1024);
    const Buffer three = std::move(one);
    EXPECT_EQ(AllocatedBytes(), before + 1024);
    const Buffer none;
    const Arena arena(256);
    EXPECT_EQ(AllocatedBytes(), before + 1024 + 256);
  }
  EXPECT_EQ(AllocatedBytes(), before);
}

TEST(Counters, ThePeakIsTheHighestSumSinceItsReset) {
  const Buffer kept = AllocateZeroed(512);
  ResetPeakAllocatedBytes();
  const std::int64_t before = AllocatedBytes();
  EXPECT_EQ(PeakAllocatedBytes(), before);
  AllocateZeroed(4096);
  AllocateZeroed(8192);  // after the one before was freed
  EXPECT_EQ(PeakAllocatedBytes(), before + 8192);
  EXPECT_EQ(AllocatedBytes(), before);
  ResetPeakAllocatedBytes();
  EXPECT_EQ(PeakAllocatedBytes(), before);
}

TEST(Counters, CountAllThreads) {
  const std::int64_t before = AllocatedBytes();
  ResetPeakAllocatedBytes();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 2000; ++k) AllocateZeroed(128);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(AllocatedBytes(), before);
  EXPECT_GE(PeakAllocatedBytes(), before + 128);
  EXPECT_LE(PeakAllocatedBytes(), before + 4 * 128);
}

TEST(Arena, HandsOutInOrderAndTakesBack) {
  Arena arena(1024);
  EXPECT_FALSE(arena.IsMeasuring());
  char* const first = static_cast<char*>(arena.Allocate(1));
  EXPECT_TRUE(Aligned(first));
  const std::int64_t mark = arena.Mark();
  EXPECT_EQ(arena.Allocate(200), first + 128);
  EXPECT_EQ(arena.Peak(), 128 + 256);
  arena.Release(mark);
  EXPECT_EQ(arena.Allocate(128), first + 128);
  EXPECT_EQ(arena.Peak(), 128 + 256);
}

TEST(Arena, AFullOneIsAMistakeOfThePlan) {
  Arena arena(256);
  arena.Allocate(129);
  EXPECT_THAT(MessageOf([&] { arena.Allocate(1); }),
              testing::AllOf(testing::HasSubstr("384 bytes wanted of 256"),
                             testing::HasSubstr("memory plan")));
}

TEST(Arena, AMeasuringOneFindsWhatARealOneNeeds) {
  Arena measuring = Arena::Measuring();
  EXPECT_TRUE(measuring.IsMeasuring());
  for (const std::int64_t bytes : {1, 300, 128}) EXPECT_EQ(measuring.Allocate(bytes), nullptr);
  EXPECT_EQ(measuring.Peak(), 128 + 384 + 128);
  Arena real(measuring.Peak());
  for (const std::int64_t bytes : {1, 300, 128}) EXPECT_NE(real.Allocate(bytes), nullptr);
}

TEST(Arena, OfNoBytesIsARealOne) {
  Arena arena(0);
  EXPECT_FALSE(arena.IsMeasuring());
  EXPECT_NE(arena.Allocate(0), nullptr);
  EXPECT_EQ(arena.Peak(), 0);
  EXPECT_THAT(MessageOf([&] { arena.Allocate(1); }), testing::HasSubstr("128 bytes wanted of 0"));
}

TEST(Arena, InSomebodyElsesMemory) {
  const Buffer memory = AllocateZeroed(512);
  const std::int64_t before = AllocatedBytes();
  char* const base = static_cast<char*>(memory.get());
  {
    Arena arena(base + 128, 256);
    EXPECT_FALSE(arena.IsMeasuring());
    EXPECT_EQ(arena.Allocate(100), base + 128);
    EXPECT_EQ(arena.Allocate(128), base + 256);
    EXPECT_THAT(MessageOf([&] { arena.Allocate(1); }),
                testing::HasSubstr("384 bytes wanted of 256"));
    Arena moved = std::move(arena);
    moved.Release(0);
    EXPECT_EQ(moved.Allocate(1), base + 128);
  }
  EXPECT_EQ(AllocatedBytes(), before) << "the memory is neither counted twice nor freed";
}

TEST(Arena, RefusesMemoryThatKernelsCannotUse) {
  const Buffer memory = AllocateZeroed(512);
  void* const between = static_cast<char*>(memory.get()) + 64;
  for (void* const bad : {static_cast<void*>(nullptr), between}) {
    EXPECT_THAT(MessageOf([&] { Arena(bad, 128); }), testing::HasSubstr("128-byte boundary"));
  }
}

// A planned device: addresses instead of memory, counted, and calls that touch none of it.

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
