// Activities of a card: by the emulator's stand-in of CUPTI, or on a card by CUPTI itself.
#include "trireme/device/activities.hpp"

#include <cupti.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "device_testing.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::test {
namespace {

using device::Activity;
using testing::HasSubstr;
using Kind = device::Activity::Kind;

// Places in records, the same whichever version wrote them: of the header in use.
template <typename Kernel>
constexpr bool kKernelLies = offsetof(Kernel, start) == 16 && offsetof(Kernel, end) == 24 &&
                             offsetof(Kernel, streamId) == 48 &&
                             offsetof(Kernel, correlationId) == 92 &&
                             offsetof(Kernel, name) == 104 && offsetof(Kernel, graphId) == 156;
template <typename Transfer>
constexpr bool kTransferLies = offsetof(Transfer, bytes) == 8 && offsetof(Transfer, start) == 16 &&
                               offsetof(Transfer, end) == 24 &&
                               offsetof(Transfer, streamId) == 40 &&
                               offsetof(Transfer, correlationId) == 44 &&
                               offsetof(Transfer, graphId) == 72;
static_assert(kKernelLies<CUpti_ActivityKernel9>);
static_assert(kTransferLies<CUpti_ActivityMemcpy5> && kTransferLies<CUpti_ActivityMemset4>);
#if !defined(STUB_CUPTI) && CUPTI_API_VERSION >= 130000
static_assert(kKernelLies<CUpti_ActivityKernel10> && kTransferLies<CUpti_ActivityMemcpy6>);
#endif
static_assert(sizeof(CUpti_ActivityKernel9) == 208 && sizeof(CUpti_ActivityMemcpy5) == 88 &&
              sizeof(CUpti_ActivityMemset4) == 88 &&
              sizeof(CUpti_ActivityExternalCorrelation) == 24 &&
              offsetof(CUpti_ActivityExternalCorrelation, externalId) == 8 &&
              offsetof(CUpti_ActivityExternalCorrelation, correlationId) == 16);

#ifdef STUB_CUPTI
constexpr const char* kStub = STUB_CUPTI;
#else
constexpr const char* kStub = "";
#endif
constexpr bool kEmulated = *kStub != '\0';
constexpr std::int64_t kSize = 1000, kBytes = kSize * 4, kPlenty = 1000;

class Activities : public GpuTest {
 protected:
  void SetUp() override {
    if (kEmulated) setenv("TRIREME_CUPTI", kStub, 1);
    unsetenv("TRIREME_STUB_CUPTI");
    GpuTest::SetUp();
    if (IsSkipped()) return;
    memory_ = device::AllocateZeroed(kBytes, device::Kind::kCuda);
    host_ = std::make_unique<PinnedInts>(kSize, 7);
  }
  void TearDown() override {
    if (!IsSkipped()) Synchronise();
    memory_.reset();
    host_.reset();
  }
  std::unique_ptr<device::Activities> Start(std::int64_t most = kPlenty) {
    auto [activities, why] = device::RecordActivities(Stream(), most);
    if (!kEmulated && !activities) skipped_ = why;
    EXPECT_TRUE(activities || !kEmulated) << why;
    return std::move(activities);
  }
  void Pass() const {
    device::SetZero(Stream(), memory_.get(), kBytes);
    device::StartCopyIn(Stream(), host_->Data(), memory_.get(), kBytes);
  }
  static std::string WhyNot(const device::Stream& stream) {
    const device::MaybeActivities maybe = device::RecordActivities(stream, kPlenty);
    return maybe.activities ? "" : maybe.why;
  }
  device::Buffer memory_;
  std::unique_ptr<PinnedInts> host_;
  std::string skipped_;
};

TEST_F(Activities, HaveTheirTimesTagsAndQueues) {
  const auto activities = Start();
  if (!activities) GTEST_SKIP() << "skipped: no CUDA device lets itself be profiled: " << skipped_;
  EXPECT_THAT(activities->Library(), HasSubstr("CUPTI 13"));
  activities->Push(5);
  Pass();
  activities->Push(6);
  device::StartInput(Stream(), host_->Data(), memory_.get(), kBytes / 2);
  activities->Pop();
  activities->Pop();
  Synchronise();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // clocks drift apart
  const double before = Seconds();
  Pass();
  Synchronise();
  const double after = Seconds();
  const device::ActivityRecord record = activities->Finish();
  ASSERT_EQ(record.all.size(), 5u);
  EXPECT_EQ(record.left_out, 0);
  EXPECT_LT(record.clock_error, 1e-3);
  const auto count = [&](std::uint64_t tag, Kind kind) {
    return std::ranges::count_if(record.all, [&](const Activity& one) {
      return one.tag == tag && one.kind == kind && one.graph == 0;
    });
  };
  EXPECT_EQ(count(5, Kind::kFill), 1);
  EXPECT_EQ(count(5, Kind::kCopy), 1);
  EXPECT_EQ(count(6, Kind::kCopy), 1);
  EXPECT_EQ(count(0, Kind::kFill) + count(0, Kind::kCopy), 2);
  const double slack = record.clock_error + 1e-5;
  for (const Activity& one : record.all) {
    EXPECT_EQ(one.bytes, one.tag == 6 ? kBytes / 2 : kBytes);
    EXPECT_EQ(one.queue, one.tag == 6 ? record.input_queue : record.queue);
    EXPECT_LE(one.begin, one.end);
    EXPECT_TRUE(one.tag == 6 || one.end <= after + slack);  // nobody waited for the input's queue
    EXPECT_TRUE(one.tag != 0 || one.begin >= before - slack);
  }
  EXPECT_NE(record.queue, record.input_queue);
}

TEST_F(Activities, OfAGraphAreThoseOfItsLaunch) {
  device::Graph graph;
  graph.Begin(Stream());
  Pass();
  graph.End(Stream());
  const auto activities = Start();
  if (!activities) GTEST_SKIP() << "skipped: no CUDA device lets itself be profiled: " << skipped_;
  graph = {};
  graph.Begin(Stream());
  Pass();
  graph.End(Stream());
  for (const std::uint64_t tag : {1, 2}) {
    activities->Push(tag);
    graph.Launch(Stream());
    activities->Pop();
  }
  const device::ActivityRecord record = activities->Finish();
  ASSERT_EQ(record.all.size(), 4u);
  for (const std::uint64_t tag : {1, 2}) {
    EXPECT_EQ(std::ranges::count(record.all, tag, &Activity::tag), 2) << tag;
  }
  for (const Activity& one : record.all) EXPECT_NE(one.graph, 0u);
}

TEST_F(Activities, BeyondTheBoundAreCounted) {
  const auto activities = Start(3);
  if (!activities) GTEST_SKIP() << "skipped: no CUDA device lets itself be profiled: " << skipped_;
  Pass();
  Synchronise();
  const double before = Seconds();
  Pass();
  const device::ActivityRecord record = activities->Finish();
  EXPECT_EQ(record.all.size(), 3u);
  EXPECT_EQ(record.left_out, 1);
  EXPECT_GE(record.full_at, before - record.clock_error - 1e-5);
}

TEST_F(Activities, AreRecordedAgain) {
  for (int i = 0; i < 2; ++i) {
    const auto activities = Start();
    if (!activities)
      GTEST_SKIP() << "skipped: no CUDA device lets itself be profiled: " << skipped_;
    Pass();
    EXPECT_EQ(activities->Finish().all.size(), 2u);
    Pass();
    Synchronise();
  }
}

TEST_F(Activities, SayWhyTheyAreNot) {
  if (!kEmulated) GTEST_SKIP() << "a card's refusals are its own";
  setenv("TRIREME_STUB_CUPTI", "subscribed", 1);
  EXPECT_THAT(WhyNot(Stream()), HasSubstr("MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED; another profiler"));
  setenv("TRIREME_STUB_CUPTI", "privileges", 1);
  EXPECT_THAT(WhyNot(Stream()), HasSubstr("INSUFFICIENT_PRIVILEGES; the driver leaves"));
  unsetenv("TRIREME_STUB_CUPTI");
  setenv("TRIREME_CUPTI", "/nowhere/libcupti.so", 1);
  EXPECT_THAT(WhyNot(Stream()), HasSubstr("/nowhere/libcupti.so"));
  unsetenv("TRIREME_CUPTI");
  EXPECT_THAT(WhyNot(Stream()), HasSubstr("libcupti.so."));
  setenv("TRIREME_CUPTI", kStub, 1);
  EXPECT_EQ(WhyNot(Stream()), "");  // a refusal leaves nothing behind
  EXPECT_THAT(WhyNot(device::Stream{}), HasSubstr("no GPU"));
}

// More records than one buffer holds; records that the library lost.
TEST_F(Activities, OutliveTheirBuffers) {
  if (!kEmulated) GTEST_SKIP() << "a card's buffers are its own";
  setenv("TRIREME_STUB_CUPTI", "small", 1);
  constexpr int kPasses = 1500;
  const auto activities = Start(2 * kPasses);
  for (int i = 0; i < kPasses; ++i) {
    activities->Push(static_cast<std::uint64_t>(1 + i % 3));
    Pass();
    activities->Pop();
    Synchronise();
  }
  const device::ActivityRecord record = activities->Finish();
  EXPECT_EQ(record.all.size(), 2u * kPasses);
  EXPECT_EQ(record.left_out, 0);
  EXPECT_EQ(std::ranges::count(record.all, 2u, &Activity::tag), 2 * kPasses / 3);
}

}  // namespace
}  // namespace trireme::test
