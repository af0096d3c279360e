// A card's memory, queues and graphs.
#include <gmock/gmock.h>

#include <cstddef>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include "device_testing.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;

// Memory of the card and page-locked memory, copies of every kind, and arenas there.

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

class GpuMemory : public GpuTest {
 protected:
  device::Buffer Allocate(std::int64_t bytes) const {
    return device::AllocateZeroed(bytes, device::Kind::kCuda);
  }
  std::vector<unsigned char> Out(const void* data, std::int64_t bytes) const {
    std::vector<unsigned char> host(static_cast<std::size_t>(bytes), 0xa5);
    device::CopyOut(Stream(), data, host.data(), bytes);
    return host;
  }
};

std::vector<unsigned char> Pattern(std::int64_t bytes) {
  std::vector<unsigned char> pattern(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = static_cast<unsigned char>(i * 31 + i / 253);
  }
  return pattern;
}

TEST_F(GpuMemory, TheContextDescribesTheCard) {
  const device::GpuContext& gpu = *Stream().gpu;
  EXPECT_TRUE(Stream().OnGpu());
  EXPECT_EQ(Stream().Where(), device::Kind::kCuda);
  EXPECT_EQ(gpu.device, 0);
  EXPECT_FALSE(gpu.name.empty());
  EXPECT_GE(gpu.major, 8);
  EXPECT_GT(gpu.multiprocessors, 0);
  EXPECT_GT(gpu.shared_bytes, 48 << 10);
  EXPECT_GT(gpu.memory_bytes, std::int64_t{1} << 30);
  EXPECT_EQ(gpu.scratch_bytes, device::kGpuScratchBytes);
  EXPECT_EQ(gpu.workspace_bytes, device::kGpuWorkspaceBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(gpu.scratch) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(gpu.workspace) % 256, 0u);
  EXPECT_NE(gpu.queue, gpu.input_queue);
  const std::int64_t free = device::FreeBytes(Stream());
  EXPECT_GT(free, 0);
  EXPECT_LT(free, gpu.memory_bytes);
  EXPECT_TRUE(device::GpuBuilt());
  EXPECT_THAT(device::GpuLibraries(), testing::StartsWith("CUDA 1"));
}

TEST_F(GpuMemory, RepeatsAPattern) {
  const std::vector<unsigned char> pattern = Pattern(7);
  for (const std::int64_t bytes : {0, 3, 7, 8, 100}) {
    const device::Buffer memory = Allocate(101);
    device::Repeat(Stream(), std::as_bytes(std::span(pattern)), memory.get(), bytes);
    std::vector<unsigned char> wanted(101);
    for (std::size_t i = 0; i < static_cast<std::size_t>(bytes); ++i) wanted[i] = pattern[i % 7];
    EXPECT_EQ(Out(memory.get(), 101), wanted) << bytes;
  }
}

TEST_F(GpuMemory, StartsAsZerosAndIsCounted) {
  const std::int64_t before = device::AllocatedBytes();
  device::ResetPeakAllocatedBytes();
  for (const std::int64_t bytes : {0, 1, 127, 128, 1000, 5'000'000}) {
    const device::Buffer buffer = Allocate(bytes);
    const std::int64_t counted = std::max<std::int64_t>(128, (bytes + 127) / 128 * 128);
    EXPECT_EQ(device::AllocatedBytes(), before + counted) << bytes;
    EXPECT_GE(device::PeakAllocatedBytes(), before + counted) << bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.get()) % 128, 0u) << bytes;
    EXPECT_THAT(Out(buffer.get(), bytes), testing::Each(0)) << bytes;
  }
  EXPECT_EQ(device::AllocatedBytes(), before);
  EXPECT_EQ(device::PeakAllocatedBytes(), before + 5'000'064);
}

TEST_F(GpuMemory, WhatDoesNotFitIsRefusedWithAdviceAndNotCounted) {
  const std::int64_t before = device::AllocatedBytes();
  const std::int64_t free = device::FreeBytes(Stream());
  const std::string message = MessageOf([&] { Allocate(free + kMebibyte); });
  EXPECT_THAT(message, HasSubstr("memory of the GPU: CUDA says out of memory (2)\n"));
  EXPECT_THAT(message, HasSubstr("Lower data.micro_batch, set model.recompute or grid.sharding"));
  EXPECT_EQ(device::AllocatedBytes(), before);
  EXPECT_THAT(MessageOf([&] { Allocate(-1); }), HasSubstr("more bytes than can be addressed"));
  // The error is forgotten: the card goes on.
  const device::Buffer buffer = Allocate(kMebibyte);
  EXPECT_THAT(Out(buffer.get(), 100), testing::Each(0));
}

TEST_F(GpuMemory, CopiesOfAnyLengthPassThroughTheBounceBuffer) {
  const std::int64_t bounce = Stream().gpu->bounce_bytes;
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{131}, bounce - 1,
                                   bounce, bounce + 1, 2 * bounce + 12'345}) {
    const std::vector<unsigned char> pattern = Pattern(bytes);
    const device::Buffer buffer = Allocate(bytes + 2);
    auto* const data = static_cast<std::byte*>(buffer.get());
    device::CopyIn(Stream(), pattern.data(), data + 1, bytes);
    // ASSERT_TRUE: nobody wants to read 32 MiB of differences.
    ASSERT_TRUE(Out(data + 1, bytes) == pattern) << bytes;
    EXPECT_EQ(Out(data, 1)[0], 0) << bytes;
    EXPECT_EQ(Out(data + 1 + bytes, 1)[0], 0) << bytes;
  }
}

TEST_F(GpuMemory, CopiesComeBehindWhatWasQueued) {
  constexpr std::int64_t kSize = 1000;
  const PinnedInts ones(kSize, 1);
  const device::Buffer x = Allocate(ones.Bytes()), y = Allocate(ones.Bytes());
  for (int round = 0; round < 5; ++round) {
    device::SetZero(Stream(), x.get(), ones.Bytes());
    device::StartCopyIn(Stream(), ones.Data(), x.get(), ones.Bytes());
    const std::vector<std::int32_t> seven(kSize, 7);
    device::CopyIn(Stream(), seven.data(), x.get(), ones.Bytes() / 2);
    device::CopyWithin(Stream(), x.get(), y.get(), ones.Bytes());
    device::SetZero(Stream(), static_cast<std::int32_t*>(y.get()) + 999, 4);
    std::vector<std::int32_t> got(kSize, -1), wanted(kSize, 1);
    std::fill_n(wanted.begin(), kSize / 2, 7);
    wanted.back() = 0;
    device::CopyOut(Stream(), y.get(), got.data(), ones.Bytes());
    EXPECT_EQ(got, wanted);
  }
}

TEST_F(GpuMemory, CopiesOfPageLockedMemoryAreDoneWhenTheStreamIs) {
  constexpr std::int64_t kSize = 100'000;
  PinnedInts in(kSize), out(kSize);
  EXPECT_TRUE(in.All(0));
  std::iota(in.Data(), in.Data() + kSize, 5);
  const device::Buffer x = Allocate(in.Bytes());
  device::StartCopyIn(Stream(), in.Data(), x.get(), in.Bytes());
  device::StartCopyOut(Stream(), x.get(), out.Data(), in.Bytes());
  Synchronise();
  EXPECT_TRUE(std::equal(in.Data(), in.Data() + kSize, out.Data()));
}

TEST_F(GpuMemory, OnlyWhatIsAskedForIsCleared) {
  const std::vector<unsigned char> pattern = Pattern(300);
  for (const int begin : {0, 1, 16, 77}) {
    for (const int bytes : {0, 1, 100, 223}) {
      const OnGpu data(Stream(), pattern);
      device::SetZero(Stream(), data.As<std::byte>() + begin, bytes);
      std::vector<unsigned char> wanted = pattern;
      std::fill_n(wanted.begin() + begin, bytes, 0);
      EXPECT_EQ(data.Out<unsigned char>(), wanted) << bytes << " from " << begin;
    }
  }
}

TEST_F(GpuMemory, NothingIsCopiedOfNothing) {
  device::CopyIn(Stream(), nullptr, nullptr, 0);
  device::CopyOut(Stream(), nullptr, nullptr, 0);
  device::StartCopyIn(Stream(), nullptr, nullptr, 0);
  device::StartCopyOut(Stream(), nullptr, nullptr, 0);
  device::StartInput(Stream(), nullptr, nullptr, 0);
  device::CopyWithin(Stream(), nullptr, nullptr, 0);
  device::SetZero(Stream(), nullptr, 0);
  Synchronise();
  EXPECT_NE(device::AllocatePinned(0, device::Kind::kCuda), nullptr);
}

// The same program computes on the CPU where its stream is the CPU's.
TEST(HostMemory, OfAProgramWithCuda) {
  const device::Stream cpu;
  const device::Buffer x = device::AllocateZeroed(400), y = device::AllocateZeroed(400);
  const device::PinnedBuffer host = device::AllocatePinned(400, device::Kind::kCpu);
  auto* const numbers = static_cast<std::int32_t*>(host.get());
  EXPECT_EQ(std::accumulate(numbers, numbers + 100, 0), 0);
  std::iota(numbers, numbers + 100, 1);
  device::CopyIn(cpu, numbers, x.get(), 400);
  device::CopyWithin(cpu, x.get(), y.get(), 400);
  device::SetZero(cpu, numbers, 400);
  device::StartCopyOut(cpu, y.get(), numbers, 396);
  device::Synchronise(cpu);
  EXPECT_EQ(std::accumulate(numbers, numbers + 100, 0), 4950);
  EXPECT_EQ(device::FreeBytes(cpu), 0);
}

using GpuArena = GpuMemory;

TEST_F(GpuArena, HandsOutThePlannedMemory) {
  // The same calls measured and in earnest.
  const auto take = [](device::Arena& arena) {
    std::vector<void*> pieces;
    pieces.push_back(arena.Allocate(1000));
    const std::int64_t mark = arena.Mark();
    pieces.push_back(arena.Allocate(5000));
    arena.Release(mark);
    pieces.push_back(arena.Allocate(1));
    pieces.push_back(arena.Allocate(256));
    return pieces;
  };
  device::Arena measuring = device::Arena::Measuring();
  EXPECT_THAT(take(measuring), testing::Each(nullptr));
  EXPECT_EQ(measuring.Peak(), 1024 + 5120);
  const std::int64_t before = device::AllocatedBytes();
  device::Arena arena(measuring.Peak(), device::Kind::kCuda);
  EXPECT_EQ(device::AllocatedBytes(), before + measuring.Peak());
  const std::vector<void*> pieces = take(arena);
  EXPECT_EQ(arena.Peak(), measuring.Peak());
  EXPECT_EQ(pieces[1], pieces[2]);
  for (void* piece : pieces) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece) % 128, 0u);
  // All of it is the card's.
  const std::vector<unsigned char> pattern = Pattern(measuring.Peak());
  device::CopyIn(Stream(), pattern.data(), pieces[0], measuring.Peak());
  EXPECT_EQ(Out(pieces[0], measuring.Peak()), pattern);
  EXPECT_THAT(MessageOf([&] { arena.Allocate(measuring.Peak()); }),
              HasSubstr("activation arena: 7552 bytes wanted of 6144"));
}

TEST_F(GpuArena, LiesInSomebodyElsesMemory) {
  const device::Buffer buffer = Allocate(1024);
  auto* const data = static_cast<std::byte*>(buffer.get());
  device::Arena arena(data + 128, 512);
  EXPECT_EQ(arena.Allocate(10), data + 128);
  EXPECT_EQ(arena.Allocate(10), data + 256);
  EXPECT_THROW(arena.Allocate(300), Error);
  EXPECT_THAT(MessageOf([&] { device::Arena(data + 8, 512); }),
              HasSubstr("no memory on a 128-byte boundary"));
}

// Queues of a card and events in them: the order of work, waiting by the host, and times.

constexpr std::int64_t kQueueSize = 50'000;
constexpr int kRounds = 20;  // orders differ from one to the next

class GpuQueues : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    x_ = device::AllocateZeroed(kBytes, device::Kind::kCuda);
    y_ = device::AllocateZeroed(kBytes, device::Kind::kCuda);
  }
  // Before the card is closed.
  void TearDown() override {
    x_.reset();
    y_.reset();
  }
  void* Queue() const { return Stream().gpu->queue; }
  void* InputQueue() const { return Stream().gpu->input_queue; }
  static constexpr std::int64_t kBytes = kQueueSize * 4;
  device::Buffer x_, y_;
};

// Input arrives in x; the computation copies it to y; the next input must not overtake that.
TEST_F(GpuQueues, EventsOrderThem) {
  device::Event arrived(Stream()), taken(Stream());
  std::vector<PinnedInts> in, out;
  for (int round = 0; round < kRounds; ++round) {
    in.emplace_back(kQueueSize, round + 1);
    out.emplace_back(kQueueSize);
  }
  for (std::size_t round = 0; round < kRounds; ++round) {
    taken.MakeWait(InputQueue());
    device::StartInput(Stream(), in[round].Data(), x_.get(), kBytes);
    arrived.Record(InputQueue());
    arrived.MakeWait(Queue());
    device::CopyWithin(Stream(), x_.get(), y_.get(), kBytes);
    taken.Record(Queue());
    device::StartCopyOut(Stream(), y_.get(), out[round].Data(), kBytes);
  }
  Synchronise();
  for (std::size_t round = 0; round < kRounds; ++round) {
    EXPECT_TRUE(out[round].All(static_cast<std::int32_t>(round) + 1)) << round;
  }
}

TEST_F(GpuQueues, TheHostAwaitsOrAsks) {
  device::Event copied(Stream());
  EXPECT_TRUE(copied.Happened());  // never recorded
  copied.Await();
  PinnedInts in(kQueueSize), out(kQueueSize);
  for (int round = 1; round <= 4; ++round) {
    in.Fill(round);
    device::StartCopyIn(Stream(), in.Data(), x_.get(), kBytes);
    device::StartCopyOut(Stream(), x_.get(), out.Data(), kBytes);
    copied.Record(Queue());
    if (round % 2 == 0) {
      copied.Await();
    } else {
      while (!copied.Happened()) {
      }
    }
    EXPECT_TRUE(copied.Happened());
    EXPECT_TRUE(out.All(round));
  }
}

TEST_F(GpuQueues, TimesAreThoseBetweenEvents) {
  device::Event start(Stream(), true), end(Stream(), true), plain(Stream());
  start.Record(Queue());
  for (int round = 0; round < kRounds; ++round) {
    device::CopyWithin(Stream(), x_.get(), y_.get(), kBytes);
  }
  end.Record(Queue());
  plain.Record(Queue());
  end.Await();
  EXPECT_GT(end.SecondsSince(start), 0);
  EXPECT_LT(end.SecondsSince(start), 10);
  EXPECT_LE(start.SecondsSince(end), 0);
  Synchronise();
  EXPECT_THAT(MessageOf([&] { plain.SecondsSince(start); }),
              HasSubstr("time of an event: CUDA says "));
}

TEST_F(GpuQueues, EventsMove) {
  device::Event first(Stream());
  PinnedInts in(kQueueSize, 3), out(kQueueSize);
  device::StartCopyIn(Stream(), in.Data(), x_.get(), kBytes);
  device::StartCopyOut(Stream(), x_.get(), out.Data(), kBytes);
  first.Record(Queue());
  device::Event second(std::move(first));
  device::Event third;
  third = std::move(second);
  third.Await();
  EXPECT_TRUE(out.All(3));
}

// On the CPU everything has happened.
TEST(HostEvents, AreThereAtOnce) {
  device::Event none, cpu(device::Stream{}, true);
  none.Record(nullptr);
  none.MakeWait(nullptr);
  none.Await();
  cpu.Await();
  EXPECT_TRUE(none.Happened() && cpu.Happened());
  EXPECT_EQ(cpu.SecondsSince(none), 0);
  const device::Drain drain{device::Stream{}};
  device::Synchronise({});
}

// Both queues are done when it goes: memory may follow.
TEST_F(GpuQueues, ADrainAwaitsBoth) {
  for (int round = 1; round <= kRounds; ++round) {
    PinnedInts in(kQueueSize, round), out(kQueueSize);
    {
      const device::Buffer input = device::AllocateZeroed(kBytes, device::Kind::kCuda);
      const device::Drain drain(Stream());
      device::StartInput(Stream(), in.Data(), input.get(), kBytes);
      device::StartCopyIn(Stream(), in.Data(), x_.get(), kBytes);
      device::StartCopyOut(Stream(), x_.get(), out.Data(), kBytes);
    }
    EXPECT_TRUE(out.All(round));
  }
}

TEST_F(GpuQueues, ClosingACardAwaitsItsWork) {
  PinnedInts in(kQueueSize, 9), out(kQueueSize);
  {
    const device::Gpu again(0);  // another pair of queues
    const device::Stream stream{.gpu = &again.Context()};
    EXPECT_NE(again.Context().queue, Queue());
    device::StartCopyIn(stream, in.Data(), x_.get(), kBytes);
    device::StartCopyOut(stream, x_.get(), out.Data(), kBytes);
  }
  EXPECT_TRUE(out.All(9));
}

TEST_F(GpuQueues, RangesForProfilersNest) {
  const device::ProfileRange outer("outer");
  const device::ProfileRange inner("inner");
  Synchronise();
}

// Graphs of a card's queues: recorded once, launched on the current contents of memory; dropped
// after an exception.

constexpr std::int64_t kGraphSize = 1000, kGraphBytes = kGraphSize * 4;

class GpuGraphs : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    x_ = device::AllocateZeroed(kGraphBytes, device::Kind::kCuda);
    y_ = device::AllocateZeroed(kGraphBytes, device::Kind::kCuda);
    in_ = std::make_unique<PinnedInts>(kGraphSize);
    out_ = std::make_unique<PinnedInts>(kGraphSize);
    fork_ = device::Event(Stream());
    join_ = device::Event(Stream());
  }
  void TearDown() override {
    if (!IsSkipped()) Synchronise();
    x_.reset();
    y_.reset();
    in_.reset();
    out_.reset();
    fork_ = device::Event();
    join_ = device::Event();
  }
  void* Queue() const { return Stream().gpu->queue; }
  void* InputQueue() const { return Stream().gpu->input_queue; }
  // in -> x -> y -> out: three operations.
  void Pass() const {
    device::StartCopyIn(Stream(), in_->Data(), x_.get(), kGraphBytes);
    device::CopyWithin(Stream(), x_.get(), y_.get(), kGraphBytes);
    device::StartCopyOut(Stream(), y_.get(), out_->Data(), kGraphBytes);
  }
  // The stream computes, and records, as if nothing had been.
  void ExpectUsable() {
    in_->Fill(41);
    Pass();
    Synchronise();
    EXPECT_TRUE(out_->All(41));
    device::Graph graph;
    graph.Begin(Stream());
    Pass();
    graph.End(Stream());
    in_->Fill(42);
    graph.Launch(Stream());
    Synchronise();
    EXPECT_TRUE(out_->All(42));
  }
  device::Buffer x_, y_;
  std::unique_ptr<PinnedInts> in_, out_;
  device::Event fork_, join_;
};

TEST_F(GpuGraphs, ReplayTakesWhatIsThere) {
  device::Graph graph;
  EXPECT_FALSE(graph.Recorded());
  in_->Fill(1);
  graph.Begin(Stream());
  Pass();
  graph.End(Stream());
  EXPECT_TRUE(graph.Recorded());
  EXPECT_EQ(graph.Nodes(), 3);
  Synchronise();
  EXPECT_TRUE(out_->All(0));  // not run yet
  for (int round = 2; round < 6; ++round) {
    in_->Fill(round);
    graph.Launch(Stream());
    Synchronise();
    EXPECT_TRUE(out_->All(round));
  }
}

TEST_F(GpuGraphs, LaunchesComeInTurnWithOtherWork) {
  device::Graph graph;
  graph.Begin(Stream());
  device::CopyWithin(Stream(), x_.get(), y_.get(), kGraphBytes);
  device::SetZero(Stream(), x_.get(), kGraphBytes);
  graph.End(Stream());
  EXPECT_EQ(graph.Nodes(), 2);
  in_->Fill(6);
  device::StartCopyIn(Stream(), in_->Data(), x_.get(), kGraphBytes);
  graph.Launch(Stream());
  device::StartCopyOut(Stream(), y_.get(), out_->Data(), kGraphBytes);
  Synchronise();
  EXPECT_TRUE(out_->All(6));
  graph.Launch(Stream());
  graph.Launch(Stream());
  device::StartCopyOut(Stream(), y_.get(), out_->Data(), kGraphBytes);
  Synchronise();
  EXPECT_TRUE(out_->All(0));
}

// Another queue takes part as far as events lead there and back.
TEST_F(GpuGraphs, OtherQueuesTakePart) {
  device::Graph graph;
  graph.Begin(Stream());
  fork_.Record(Queue());
  fork_.MakeWait(InputQueue());
  device::StartInput(Stream(), in_->Data(), x_.get(), kGraphBytes);
  join_.Record(InputQueue());
  join_.MakeWait(Queue());
  device::CopyWithin(Stream(), x_.get(), y_.get(), kGraphBytes);
  device::StartCopyOut(Stream(), y_.get(), out_->Data(), kGraphBytes);
  graph.End(Stream());
  EXPECT_EQ(graph.Nodes(), 3);
  for (int round = 1; round < 10; ++round) {
    in_->Fill(round);
    graph.Launch(Stream());
    Synchronise();
    EXPECT_TRUE(out_->All(round));
  }
}

TEST_F(GpuGraphs, MoveAndAreRecordedAnew) {
  device::Graph graph;
  graph.Begin(Stream());
  Pass();
  graph.End(Stream());
  device::Graph other(std::move(graph));
  EXPECT_TRUE(other.Recorded());
  EXPECT_EQ(other.Nodes(), 3);
  graph = std::move(other);
  in_->Fill(8);
  graph.Launch(Stream());
  Synchronise();
  EXPECT_TRUE(out_->All(8));
  graph = {};
  EXPECT_FALSE(graph.Recorded());
  graph.Begin(Stream());
  device::SetZero(Stream(), y_.get(), kGraphBytes);
  device::StartCopyOut(Stream(), y_.get(), out_->Data(), kGraphBytes);
  graph.End(Stream());
  EXPECT_EQ(graph.Nodes(), 2);
  graph.Launch(Stream());
  Synchronise();
  EXPECT_TRUE(out_->All(0));
}

TEST_F(GpuGraphs, AbandonedBehindAnException) {
  device::Graph graph;
  in_->Fill(5);
  try {
    graph.Begin(Stream());
    Pass();
    throw std::runtime_error("in the middle");
  } catch (const std::runtime_error&) {
    graph.Abandon(Stream());
  }
  EXPECT_FALSE(graph.Recorded());
  Synchronise();
  EXPECT_TRUE(out_->All(0));  // the recorded work never ran
  ExpectUsable();
}

// The input queue was drawn in and not led back.
TEST_F(GpuGraphs, AbandonedWithAnotherQueueInside) {
  device::Graph graph;
  graph.Begin(Stream());
  fork_.Record(Queue());
  fork_.MakeWait(InputQueue());
  device::StartInput(Stream(), in_->Data(), x_.get(), kGraphBytes);
  graph.Abandon(Stream());
  EXPECT_FALSE(graph.Recorded());
  in_->Fill(13);
  device::StartInput(Stream(), in_->Data(), x_.get(), kGraphBytes);
  join_.Record(InputQueue());
  join_.MakeWait(Queue());
  device::StartCopyOut(Stream(), x_.get(), out_->Data(), kGraphBytes);
  Synchronise();
  EXPECT_TRUE(out_->All(13));
  ExpectUsable();
}

// Work that cannot be recorded is an error, and spoils nothing but the graph.
TEST_F(GpuGraphs, WhatCannotBeRecordedIsRefused) {
  for (const bool allocates : {true, false}) {
    device::Graph graph;
    graph.Begin(Stream());
    Pass();
    const std::string message = MessageOf([&] {
      if (allocates) {
        device::AllocateZeroed(100, device::Kind::kCuda);
      } else {
        device::Synchronise(Stream());
      }
    });
    EXPECT_THAT(message, testing::StartsWith(allocates ? "memory of the GPU: CUDA says "
                                                       : "work of the GPU: CUDA says "));
    EXPECT_THAT(message, HasSubstr("(900)"));
    graph.Abandon(Stream());
    EXPECT_FALSE(graph.Recorded());
    ExpectUsable();
  }
}

// The same where it is found at the end.
TEST_F(GpuGraphs, ASpoiltRecordingIsRefusedAtItsEnd) {
  device::Graph graph;
  graph.Begin(Stream());
  EXPECT_THROW(device::Synchronise(Stream()), Error);
  EXPECT_THAT(MessageOf([&] { graph.End(Stream()); }), HasSubstr("recording a graph: CUDA says "));
  graph.Abandon(Stream());
  EXPECT_FALSE(graph.Recorded());
  ExpectUsable();
}

}  // namespace
}  // namespace trireme::test
