// Batches on their way to a GPU: prepared ahead, used at once, others in between, of any sizes.
#include "staged_testing.hpp"

#include <gtest/gtest.h>

#include "gpu_testing.hpp"

namespace trireme::test {
namespace {

class StagedOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) staged_ = std::make_unique<model::StagedBatches>(Stream());
  }
  void TearDown() override {
    if (!IsSkipped()) Synchronise();
    staged_.reset();
  }
  bool Sees(const Batches& batches) const { return test::Sees(Stream(), *staged_, batches); }
  std::unique_ptr<model::StagedBatches> staged_;
};

TEST_F(StagedOnGpu, UsedAtOnce) {
  for (std::int32_t step = 1; step < 5; ++step) {
    const Batches batches = NumberedBatches(step, {4, 4, 1});
    staged_->Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
  }
}

// Training's way: the next batch is prepared while this one is computed on.
TEST_F(StagedOnGpu, PreparedAhead) {
  Batches now = NumberedBatches(1, {4, 4});
  for (std::int32_t step = 2; step < 12; ++step) {
    staged_->Use(now);
    Batches next = NumberedBatches(step, {4, 4});
    staged_->Prepare(next);
    EXPECT_TRUE(Sees(now)) << step;
    now = std::move(next);  // keeps its address
  }
  staged_->Use(now);
  EXPECT_TRUE(Sees(now));
}

// An evaluation between two steps: what was prepared for the second is prepared once more.
TEST_F(StagedOnGpu, OthersInBetween) {
  const Batches first = NumberedBatches(1, {4, 4}), second = NumberedBatches(2, {4, 4});
  staged_->Use(first);
  staged_->Prepare(second);
  for (std::int32_t round = 3; round < 6; ++round) {
    const Batches other = NumberedBatches(round, {2, 4, 3});
    staged_->Use(other);
    EXPECT_TRUE(Sees(other));
  }
  staged_->Use(second);
  EXPECT_TRUE(Sees(second));
}

// The same memory holds another batch from step to step, as the training step's does.
TEST_F(StagedOnGpu, TheSameVectorFilledAnew) {
  Batches batches = NumberedBatches(1, {4, 4});
  for (std::int32_t step = 2; step < 6; ++step) {
    staged_->Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
    Synchronise();
    const Batches next = NumberedBatches(step, {4, 4});
    std::copy(next.begin(), next.end(), batches.begin());
    if (step % 2 == 0) staged_->Prepare(batches);
  }
}

TEST_F(StagedOnGpu, PreparedAnewWithoutUse) {
  const Batches first = NumberedBatches(1, {4}), second = NumberedBatches(2, {4});
  staged_->Prepare(first);
  staged_->Prepare(second);
  staged_->Prepare(first);
  staged_->Use(first);
  EXPECT_TRUE(Sees(first));
  EXPECT_FALSE(test::Sees(Stream(), *staged_, first) && first[0].inputs == second[0].inputs);
}

// A short last batch, an empty share, entries without sequences; then whole ones again.
TEST_F(StagedOnGpu, OfAnySizes) {
  const std::vector<std::vector<std::int64_t>> shapes = {{4, 4}, {4, 3},       {1}, {0},
                                                         {4, 0}, {0, 2, 0, 1}, {},  {4, 4}};
  std::int32_t step = 1;
  for (const auto& shape : shapes) {
    const Batches batches = NumberedBatches(step++, shape);
    staged_->Prepare(batches);
    staged_->Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
  }
}

// Graphs read the memory of the first batch: it stays where it is until a larger one comes.
TEST_F(StagedOnGpu, MemoryStaysUntilItHasToGrow) {
  EXPECT_EQ(staged_->MemoryVersion(), 0);
  const Batches first = NumberedBatches(1, {4, 4});
  staged_->Use(first);
  const int version = staged_->MemoryVersion();
  EXPECT_GT(version, 0);
  const model::StagedBatches::Entry at = staged_->Of(first[1]);
  for (std::int32_t step = 2; step < 6; ++step) {
    const Batches next = NumberedBatches(
        step, step == 3 ? std::vector<std::int64_t>{2, 1} : std::vector<std::int64_t>{4, 4});
    staged_->Use(next);
    if (step == 3) continue;
    EXPECT_EQ(staged_->Of(next[1]).inputs, at.inputs);
    EXPECT_EQ(staged_->Of(next[1]).targets, at.targets);
    EXPECT_EQ(staged_->Of(next[1]).ordinals, at.ordinals);
  }
  EXPECT_EQ(staged_->MemoryVersion(), version);
  const Batches larger = NumberedBatches(9, {4, 4, 4, 4, 4});
  staged_->Prepare(larger);
  EXPECT_NE(staged_->MemoryVersion(), version);
  staged_->Use(larger);
  EXPECT_TRUE(Sees(larger));
  staged_->Use(first);
  EXPECT_TRUE(Sees(first));
}

// Growing while what was prepared is on its way, and what is used is being read.
TEST_F(StagedOnGpu, GrowsInTheMiddle) {
  std::vector<std::int64_t> shape = {1};
  Batches now = NumberedBatches(1, shape);
  for (std::int32_t step = 2; step < 7; ++step) {
    staged_->Use(now);
    shape.push_back(step);
    Batches next = NumberedBatches(step, shape);
    staged_->Prepare(next);
    now = std::move(next);
  }
  staged_->Use(now);
  EXPECT_TRUE(Sees(now));
}

TEST(StagedOnCpu, AreWhereTheyWere) {
  const device::Stream cpu;
  model::StagedBatches staged(cpu);
  const Batches batches = NumberedBatches(1, {4, 0, 2});
  staged.Prepare(batches);
  staged.Use(batches);
  EXPECT_EQ(staged.Of(batches[2]).inputs, batches[2].inputs.data());
  EXPECT_EQ(staged.Of(batches[0]).targets, batches[0].targets.data());
  EXPECT_EQ(staged.Of(batches[0]).ordinals, batches[0].ordinals.data());
  EXPECT_EQ(staged.MemoryVersion(), 0);
}

}  // namespace
}  // namespace trireme::test
