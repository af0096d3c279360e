// The plan of a rank's part of a model, a pure function: all ranks' parts make up the model once.
#include "trireme/model/plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

constexpr std::int64_t kLayers = 7, kPlanLength = 13, kPlanSequences = 3;

model::ModelPlan StagesPlan(int stages, int chunks = 1) {
  model::ModelPlan plan;
  plan.options.vocabulary = 101;
  plan.options.layers = kLayers;
  plan.length = kPlanLength;
  plan.micro_batch = kPlanSequences;
  plan.pipeline.stages = stages;
  plan.pipeline.chunks = chunks;
  plan.pipeline.micro_batches = 5;
  if (chunks > 1) plan.pipeline.kind = parallel::ScheduleKind::kInterleaved;
  return plan;
}

constexpr comm::GridShape kGrid{.pipeline = 3, .data = 2, .context = 2, .tensor = 2};

TEST(StagePlan, OfOneRankIsTheWholeModel) {
  const model::StagePlan whole = model::PlanStage(StagesPlan(1), {}, {}, 0);
  EXPECT_TRUE(whole.First());
  EXPECT_TRUE(whole.Last());
  ASSERT_EQ(whole.chunks.size(), 1u);
  EXPECT_EQ(whole.chunks[0].begin, 0);
  EXPECT_EQ(whole.chunks[0].end, kLayers);
  ASSERT_EQ(whole.slots.size(), 1u);
  EXPECT_EQ(whole.slots[0].input, 1);
  EXPECT_EQ(whole.slots[0].weight, 1);
  EXPECT_EQ(whole.slots[0].backward, 0);
  EXPECT_EQ(whole.Length(), kPlanLength);
  EXPECT_EQ(whole.tokens, kPlanSequences * kPlanLength);
  EXPECT_EQ(whole.residual_rows, whole.tokens);
  EXPECT_EQ(whole.groups, 1);
  EXPECT_EQ(whole.shard.ranks, 1);
}

TEST(StagePlan, EveryBlockIsOnOneStage) {
  for (const int chunks : {1, 2}) {
    std::vector<int> times(kLayers);
    for (int stage = 0; stage < kGrid.pipeline; ++stage) {
      const int rank = comm::RankAt({stage, 1, 0, 1}, kGrid);
      const model::StagePlan part =
          model::PlanStage(StagesPlan(kGrid.pipeline, chunks), kGrid, {}, rank);
      EXPECT_EQ(part.stage, stage);
      EXPECT_EQ(part.First(), stage == 0);
      EXPECT_EQ(part.Last(), stage == kGrid.pipeline - 1);
      EXPECT_EQ(std::ssize(part.chunks), chunks);
      EXPECT_EQ(part.slots.size(), part.chunks.size());
      for (const Part& chunk : part.chunks) {
        for (std::int64_t i = chunk.begin; i < chunk.end; ++i) ++times[static_cast<std::size_t>(i)];
      }
    }
    EXPECT_EQ(times, std::vector<int>(kLayers, 1)) << chunks;
  }
}

// Interleaved schedules run multiples of the stages.
TEST(StagePlan, MicroBatchesAreThoseThatRun) {
  EXPECT_EQ(model::PlanStage(StagesPlan(3), kGrid, {}, 0).pipeline.micro_batches, 5);
  EXPECT_EQ(model::PlanStage(StagesPlan(3, 2), kGrid, {}, 0).pipeline.micro_batches, 6);
}

TEST(StagePlan, PositionsAndRowsAreCut) {
  const model::ModelPlan plan = StagesPlan(kGrid.pipeline);
  std::set<std::int64_t> seen;
  for (int context = 0; context < kGrid.context; ++context) {
    const int rank = comm::RankAt({0, 0, context, 0}, kGrid);
    const model::StagePlan whole = model::PlanStage(plan, kGrid, {}, rank);
    const model::StagePlan cut = model::PlanStage(plan, kGrid, {.sequence_parallel = true}, rank);
    for (std::int64_t p = 0; p < whole.Length(); ++p) seen.insert(whole.positions.At(p));
    EXPECT_EQ(whole.tokens, kPlanSequences * whole.Length());
    EXPECT_EQ(whole.residual_rows, whole.tokens);
    EXPECT_EQ(cut.tokens, whole.tokens);
    EXPECT_EQ(cut.residual_rows, CeilDivide(whole.tokens, std::int64_t{kGrid.tensor}));
  }
  EXPECT_EQ(std::ssize(seen), kPlanLength);
}

// As ProcessGrid splits its communicators: consecutive ranks of data x context share one copy.
TEST(StagePlan, ShardsAreConsecutiveDataRanks) {
  const comm::GridOptions halves{.sharding = comm::Sharding::kParameters, .shard_group = 2};
  const comm::GridOptions all{.sharding = comm::Sharding::kParameters};
  for (int rank = 0; rank < kGrid.Ranks(); ++rank) {
    const comm::GridShape at = comm::Locate(rank, kGrid);
    const int copy = at.data * kGrid.context + at.context;
    const model::ModelPlan plan = StagesPlan(kGrid.pipeline);
    const model::StagePlan half = model::PlanStage(plan, kGrid, halves, rank);
    EXPECT_EQ(half.shard.ranks, 2);
    EXPECT_EQ(half.shard.rank, copy % 2);
    const model::StagePlan whole = model::PlanStage(plan, kGrid, all, rank);
    EXPECT_EQ(whole.shard.ranks, 4);
    EXPECT_EQ(whole.shard.rank, copy);
    EXPECT_EQ(model::PlanStage(plan, kGrid, {}, rank).shard.ranks, 1);
  }
}

// Evaluation keeps no gradients and no moments: only sharded parameters remain sharded.
TEST(StagePlan, EvaluationShardsParametersAlone) {
  model::ModelPlan plan = StagesPlan(kGrid.pipeline);
  plan.training = false;
  for (const comm::Sharding sharding : {comm::Sharding::kOptimizer, comm::Sharding::kGradients}) {
    EXPECT_EQ(model::PlanStage(plan, kGrid, {.sharding = sharding}, 0).shard.sharding,
              comm::Sharding::kNone);
  }
  EXPECT_EQ(
      model::PlanStage(plan, kGrid, {.sharding = comm::Sharding::kParameters}, 0).shard.sharding,
      comm::Sharding::kParameters);
}

TEST(StagePlan, CanonicalGroupsAreSharedOutOverDataRanks) {
  model::ModelPlan plan = StagesPlan(kGrid.pipeline);
  plan.canonical = {8, 2, 3};
  const model::StagePlan part = model::PlanStage(plan, kGrid, {}, 0);
  EXPECT_EQ(part.groups, 4);
  EXPECT_TRUE(part.shard.canonical);
  EXPECT_EQ(part.shard.gradient_levels, 3);
  plan.canonical.data_groups = 1;
  EXPECT_THROW(model::PlanStage(plan, kGrid, {}, 0), Error);
}

TEST(StagePlan, StagesAreTheGrids) {
  EXPECT_THROW(model::PlanStage(StagesPlan(2), kGrid, {}, 0), Error);
}

}  // namespace
}  // namespace trireme::test
