// A plan against the run that it plans: on each rank, to the byte, what is allocated and what a
// step transfers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "layout_fixture.hpp"
#include "same_ledgers.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

constexpr std::array kPlanLayouts = {
    // Data parallel, micro-batches that do not divide.
    "",
    "[data]\nmicro_batch=3\n",
    "[grid]\nbucket_mib=0.01\n",
    // Tensor and sequence parallel.
    "[grid]\ntensor=2\n[data]\nmicro_batch=2\n",
    "[grid]\ntensor=4\nsequence_parallel=yes\n[data]\nmicro_batch=3\n",
    "[grid]\ntensor=8\nsequence_parallel=yes\n[model]\nrecompute=full\n",
    "[grid]\ntensor=8\n[model]\nkv_heads=2\nactivation=swiglu\nposition=rope\nnorm=rmsnorm\n",
    // Pipelines.
    "[grid]\npipeline=4\n[pipeline]\nschedule=gpipe\n[data]\nmicro_batch=1\n",
    "[grid]\npipeline=4\n[data]\nmicro_batch=2\n",
    "[grid]\npipeline=2\ntensor=2\nsequence_parallel=yes\n[pipeline]\nschedule=zero_bubble\n"
    "[data]\nmicro_batch=2\n",
    "[grid]\npipeline=2\ntensor=2\n[pipeline]\nschedule=interleaved\nchunks=2\n"
    "[data]\nmicro_batch=2\n",
    "[grid]\npipeline=8\n[pipeline]\nschedule=zero_bubble\n[data]\nmicro_batch=1\n",
    "[grid]\npipeline=2\n[model]\ntie_embeddings=no\nnorm_position=post\nrecompute=selective\n",
    // Sharding.
    "[grid]\nsharding=optimizer\n[data]\nmicro_batch=2\n",
    "[grid]\nsharding=gradients\n[data]\nmicro_batch=1\n",
    "[grid]\nsharding=parameters\nprefetch=2\n[data]\nmicro_batch=1\n",
    "[grid]\ntensor=2\nsequence_parallel=yes\nsharding=parameters\nshard_group=2\n"
    "[data]\nmicro_batch=2\n",
    "[grid]\npipeline=2\nsharding=gradients\n[pipeline]\nschedule=zero_bubble\n"
    "[data]\nmicro_batch=1\n",
    "[grid]\npipeline=2\nsharding=optimizer\nshard_group=2\n[model]\nposition=sinusoidal\n",
    // Context.
    "[grid]\ncontext=2\n",
    "[grid]\ncontext=4\ntensor=2\nsharding=parameters\n",
    "[grid]\ncontext=2\npipeline=2\nsequence_parallel=yes\ntensor=2\n[model]\nrecompute=full\n",
    // Canonical arithmetic.
    "[run]\ncanonical=8x2\n",
    "[run]\ncanonical=4x4\ncanonical_leaf=2\n[grid]\ntensor=2\npipeline=2\nsharding=gradients\n"
    "[data]\nmicro_batch=4\n",
};
static_assert(kPlanLayouts.size() == 24);

std::string TextOf(const std::string& layout) {
  return "[run]\nseed=11\n[data]\nbatch=13\nsequence_length=9\n[model]\ndim=36\nheads=8\n"
         "head_dim=4\nffn=44\nlayers=7\nmax_positions=9\n[schedule]\nsteps=20\n" +
         layout;
}

struct Precision {
  const char* name;
  Dtype dtype;
  bool bf16_products = false;
};
constexpr std::array kPrecisions = {Precision{"fp32", Dtype::kFloat32},
                                    Precision{"fp64", Dtype::kFloat64},
                                    Precision{"bf16", Dtype::kFloat32, true}};

class PlanTest : public LayoutTest {
 protected:
  train::Plan PlanOf(const std::string& layout, const Precision& precision) const {
    return test::PlanOf(TextOf(layout), tokens_, world_.Size(), precision.dtype, {},
                        precision.bf16_products);
  }
};

TEST_F(PlanTest, MemoryAndTransfersAreTheRuns) {
  for (const Precision& precision : kPrecisions) {
    // Memory needs no bf16 instructions.
    const bool runs = !precision.bf16_products || !device::Bf16Instructions().empty();
    for (const char* layout : kPlanLayouts) {
      const std::string what =
          fmt::format("rank {}, {}, {}", world_.Rank(), precision.name, layout);
      const train::Plan plan = PlanOf(layout, precision);
      const std::int64_t planned_before = device::PlannedBytes();
      const train::RankPlan mine = train::PlanRank(plan, world_.Rank());
      EXPECT_EQ(device::PlannedBytes(), planned_before) << what;

      const comm::ProcessGrid grid(world_, plan.grid, plan.sharing);
      const std::int64_t before = device::AllocatedBytes();
      train::TrainingState state(grid, plan.training, plan.machine.stream);
      train::TrainingStep step(state, tokens_);
      EXPECT_EQ(device::AllocatedBytes() - before, mine.memory.Total() - mine.memory.mpi_buffers)
          << what;
      EXPECT_EQ(state.Memory(), mine.memory) << what;
      EXPECT_EQ(train::PlanMemory(plan, world_.Rank()), mine.memory) << what;

      if (!runs || (precision.bf16_products && plan.training.model.canonical.On())) continue;
      grid.Traffic().Clear();
      step.Run(0);
      ExpectSame(grid.Traffic(), mine.traffic, what);
      EXPECT_EQ(device::AllocatedBytes() - before, mine.memory.Total() - mine.memory.mpi_buffers)
          << what;
    }
  }
}

// Counting the targets takes a transfer.
class MaskedPlanTest : public LayoutTest {
 protected:
  static data::TokenData Masked() {
    data::TokenData data = ManyTokens();
    for (std::size_t split = 0; split < data.tokens.size(); ++split) {
      const std::size_t count = data.tokens[split].size();
      data.documents[split] = {0, static_cast<std::int64_t>(count) / 2};
      for (std::size_t i = 0; i < count; ++i) data.counted[split].push_back(i % 3 == 0 ? 1 : 0);
    }
    return data;
  }
  MaskedPlanTest() : LayoutTest(Masked()) {}
};

TEST_F(MaskedPlanTest, MemoryAndTransfersAreTheRuns) {
  for (const char* layout : {"", "[data]\ndocument_mask=yes\n",
                             "[grid]\npipeline=2\ncontext=2\nsharding=gradients\n"
                             "[data]\ndocument_mask=yes\n"}) {
    const train::Plan plan = test::PlanOf(TextOf(layout), tokens_, world_.Size(), Dtype::kFloat32);
    EXPECT_THAT(train::Describe(plan), testing::HasSubstr("; loss mask\n"));
    const train::RankPlan mine = train::PlanRank(plan, world_.Rank());
    const comm::ProcessGrid grid(world_, plan.grid, plan.sharing);
    train::TrainingState state(grid, plan.training, plan.machine.stream);
    train::TrainingStep step(state, tokens_);
    EXPECT_EQ(state.Memory(), mine.memory) << layout;
    grid.Traffic().Clear();
    step.Run(0);
    ExpectSame(grid.Traffic(), mine.traffic, fmt::format("rank {}, {}", world_.Rank(), layout));
  }
}

// The same answer for every rank that asks: a plan needs no rank of its own.
TEST_F(PlanTest, EveryRankPlansForEveryOther) {
  const train::Plan plan = PlanOf("[grid]\npipeline=2\nsharding=parameters\n", kPrecisions[0]);
  for (int rank = 0; rank < world_.Size(); ++rank) {
    const std::int64_t bytes = train::PlanRank(plan, rank).memory.Total();
    EXPECT_EQ(world_.Max(bytes), bytes);
    EXPECT_EQ(world_.Min(bytes), bytes);
  }
}

}  // namespace
}  // namespace trireme::test
