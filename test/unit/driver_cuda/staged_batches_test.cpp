// Batches on their way to a GPU: staged ahead, used at once, others in between, of any sizes.
#include "staged_testing.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "gpu_testing.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

class StagedOnGpu : public GpuTest {
 protected:
  using Ticket = model::StagedBatches::Staged;
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::int64_t before = device::AllocatedBytes();
    staged_ = std::make_unique<model::StagedBatches>(Stream(), kStagedLimits);
    EXPECT_EQ(device::AllocatedBytes() - before, staged_->Bytes());
  }
  void TearDown() override {
    if (!IsSkipped()) Synchronise();
    staged_.reset();
  }
  void Use(const Batches& batches) { test::Use(*staged_, batches); }
  void Use(Ticket ticket) { staged_->Open(staged_->Take(std::move(ticket))); }
  bool Sees(const Batches& batches) const { return test::Sees(Stream(), *staged_, batches); }
  std::unique_ptr<model::StagedBatches> staged_;
};

TEST_F(StagedOnGpu, UsedAtOnce) {
  for (std::int32_t step = 1; step < 5; ++step) {
    const Batches batches = NumberedBatches(step, {4, 4, 1});
    Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
  }
}

// Training's way: the next batch is staged while this one is computed on.
TEST_F(StagedOnGpu, StagedAhead) {
  Batches now = NumberedBatches(1, {4, 4});
  std::optional<Ticket> ticket = staged_->Stage(now);
  for (std::int32_t step = 2; step < 12; ++step) {
    Use(std::move(*ticket));
    Batches next = NumberedBatches(step, {4, 4});
    ticket = staged_->Stage(next);
    EXPECT_TRUE(Sees(now)) << step;
    now = std::move(next);  // keeps its address
  }
  Use(std::move(*ticket));
  EXPECT_TRUE(Sees(now));
}

// An evaluation between two steps: the batches that were staged ahead are staged once more.
TEST_F(StagedOnGpu, OthersInBetween) {
  const Batches first = NumberedBatches(1, {4, 4}), second = NumberedBatches(2, {4, 4});
  Use(first);
  Ticket ticket = staged_->Stage(second);
  for (std::int32_t round = 3; round < 6; ++round) {
    const Batches other = NumberedBatches(round, {2, 4, 3});
    Use(other);
    EXPECT_TRUE(Sees(other));
  }
  Use(std::move(ticket));
  EXPECT_TRUE(Sees(second));
}

// The same vector holds another batch from step to step.
TEST_F(StagedOnGpu, TheSameVectorFilledAnew) {
  Batches batches = NumberedBatches(1, {4, 4});
  for (std::int32_t step = 2; step < 6; ++step) {
    Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
    Synchronise();
    const Batches next = NumberedBatches(step, {4, 4});
    std::copy(next.begin(), next.end(), batches.begin());
    if (step % 2 == 0) (void)staged_->Stage(batches);
  }
}

TEST_F(StagedOnGpu, StagedAnewWithoutUse) {
  const Batches first = NumberedBatches(1, {4}), second = NumberedBatches(2, {4});
  (void)staged_->Stage(first);
  (void)staged_->Stage(second);
  Use(first);
  EXPECT_TRUE(Sees(first));
  EXPECT_FALSE(Sees(second));
}

// A short last batch, an empty share, entries without sequences; then whole ones again.
TEST_F(StagedOnGpu, OfAnySizes) {
  const std::vector<std::vector<std::int64_t>> shapes = {{4, 4}, {4, 3},       {1}, {0},
                                                         {4, 0}, {0, 2, 0, 1}, {},  {4, 4}};
  std::int32_t step = 1;
  for (const auto& shape : shapes) {
    const Batches batches = NumberedBatches(step++, shape);
    Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
  }
}

// Graphs read the memory of the first batch.
TEST_F(StagedOnGpu, MemoryStaysWhereItIs) {
  const Batches first = NumberedBatches(1, {4, 4});
  Use(first);
  const model::StagedBatches::Entry at = staged_->At(1);
  const std::int64_t allocated = device::AllocatedBytes();
  for (std::int32_t step = 2; step < 6; ++step) {
    const Batches next = NumberedBatches(step, step == 3 ? std::vector<std::int64_t>{2, 1, 8, 8, 8}
                                                         : std::vector<std::int64_t>{4, 4});
    Use(next);
    EXPECT_TRUE(Sees(next));
    if (step == 3) continue;
    EXPECT_EQ(staged_->At(1).inputs, at.inputs);
    EXPECT_EQ(staged_->At(1).targets, at.targets);
    EXPECT_EQ(staged_->At(1).ordinals, at.ordinals);
  }
  EXPECT_EQ(device::AllocatedBytes(), allocated);
}

TEST_F(StagedOnGpu, NoMoreThanPlanned) {
  const Batches full = NumberedBatches(1, std::vector<std::int64_t>(8, 8));
  Use(full);
  EXPECT_TRUE(Sees(full));
  EXPECT_THROW((void)staged_->Stage(NumberedBatches(1, std::vector<std::int64_t>(9, 1))), Error);
  std::vector<std::int64_t> larger(8, 8);
  larger.back() = 16;
  EXPECT_THROW((void)staged_->Stage(NumberedBatches(1, larger)), Error);
}

}  // namespace
}  // namespace trireme::test
