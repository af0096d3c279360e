// Ranks of a node add up what they plan, and refuse together what is too much.
#include "trireme/comm/node_memory.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <optional>
#include <string>

#include "layout_fixture.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::test {
namespace {

using comm::Sharding;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kGib = std::int64_t{1} << 30;

using NodeMemoryTest = LayoutTest;

// Ranks need different amounts: stages do.
TEST_F(NodeMemoryTest, TermsAreAddedUpOneByOne) {
  const std::int64_t rank = world_.Rank(), ranks = world_.Size();
  device::MemoryTerms mine{.parameters = 10, .moments = rank};
  if (rank == ranks - 1) mine.vocabulary_tile = 3;
  const comm::NodeDemand demand = comm::DemandOf(world_, mine);
  EXPECT_EQ(demand.ranks, ranks);
  EXPECT_EQ(demand.terms, (device::MemoryTerms{.parameters = 10 * ranks,
                                               .moments = ranks * (ranks - 1) / 2,
                                               .vocabulary_tile = 3}));
  EXPECT_EQ(demand.available.bytes, world_.Min(demand.available.bytes));
}

// The message of too large a demand on this grid.
std::string Refusal(const comm::Communicator& world, Sharding sharding, bool canonical) {
  const comm::ProcessGrid grid(world, {.data = world.Size()}, {.sharding = sharding});
  const comm::NodeDemand demand{
      world.Size(),
      {.parameters = kGib, .gradients = 2 * kGib, .moments = 4 * kGib, .activations = 8 * kGib},
      {kGib, "available on the node"}};
  try {
    comm::CheckNodeMemory(demand, grid, canonical);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// Sharding helps with what is not shared out yet.
TEST_F(NodeMemoryTest, TheHintSaysWhatShardingSharesOut) {
  EXPECT_THAT(Refusal(world_, Sharding::kNone, false),
              HasSubstr(fmt::format("the {} ranks of this node plan 15.0 GiB", world_.Size())));
  EXPECT_THAT(Refusal(world_, Sharding::kNone, false), HasSubstr("shares out 7.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kNone, true), HasSubstr("shares out 5.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kOptimizer, false), HasSubstr("shares out 3.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kGradients, false), HasSubstr("shares out 1.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kParameters, false), Not(HasSubstr("grid.sharding")));
}

std::string NodeMemoryDeckOf(std::int64_t dim, int layers, const std::string& grid) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nbatch=16\nmicro_batch=2\nsequence_length=7\n[model]\nlayers={}\n"
      "heads=8\nhead_dim=8\ndim={}\nffn={}\nmax_positions=7\n[schedule]\nsteps=20\n[grid]\n{}",
      layers, dim, 4 * dim, grid);
}

// A model that no machine holds is refused by all ranks together, before anything is allocated.
TEST_F(NodeMemoryTest, AModelThatNoNodeHoldsIsRefused) {
  constexpr std::int64_t kDim = 1 << 13;  // a block's shards still pass in one transfer
  constexpr int kLayers = 960;
  for (const char* layout :
       {"", "sharding=parameters\n", "tensor=4\npipeline=2\nsequence_parallel=yes\n",
        "context=2\nsharding=gradients\n"}) {
    const std::int64_t before = device::AllocatedBytes();
    device::ResetPeakAllocatedBytes();
    const train::Plan plan =
        PlanOf(NodeMemoryDeckOf(kDim, kLayers, layout), tokens_, world_.Size(), Dtype::kFloat32);
    const comm::ProcessGrid grid(world_, plan.grid, plan.sharing);
    const comm::NodeDemand demand = comm::DemandOf(world_, train::PlanMemory(plan, world_.Rank()));
    try {
      comm::CheckNodeMemory(demand, grid, false);
      ADD_FAILURE() << "nothing was thrown: " << layout;
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput) << layout;
      const std::string text = error.what();
      EXPECT_THAT(text, HasSubstr("memory: the 8 ranks of this node plan "));
      EXPECT_THAT(text, HasSubstr("; nothing was allocated"));
      EXPECT_THAT(text, HasSubstr("What helps: "));
    }
    EXPECT_EQ(device::PeakAllocatedBytes(), before) << layout;
  }
}

// The check's sum is then allocated.
TEST_F(NodeMemoryTest, ASmallModelPasses) {
  for (const char* layout :
       {"sharding=parameters\n", "pipeline=2\ntensor=2\n[run]\ncanonical=8x2\n"}) {
    const std::string deck = NodeMemoryDeckOf(32, 48, layout);
    const train::Plan plan = PlanOf(deck, tokens_, world_.Size(), Dtype::kFloat32);
    const comm::NodeDemand demand = comm::DemandOf(world_, train::PlanMemory(plan, world_.Rank()));
    const std::int64_t before = device::AllocatedBytes();
    const TrainingRun run(world_, tokens_,
                          SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32));
    const std::int64_t counted = device::AllocatedBytes() - before;
    EXPECT_EQ(demand.terms.Total() - demand.terms.mpi_buffers, world_.Sum(counted));
  }
}

}  // namespace
}  // namespace trireme::test
