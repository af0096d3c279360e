// Graphs of a card's queues: recorded once, launched on the current contents of memory; dropped
// after an exception.
#include <gmock/gmock.h>

#include <stdexcept>
#include <utility>

#include "device_testing.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;

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
