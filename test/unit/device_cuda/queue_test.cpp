// Queues of a card and events in them: the order of work, waiting by the host, and times.
#include <gmock/gmock.h>

#include <stdexcept>
#include <utility>

#include "device_testing.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace trireme::test
