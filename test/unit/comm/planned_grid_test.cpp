// ProcessGrid::Planned in a program that never starts MPI: groups of ranks that do not exist, and a
// ledger of transfers that do not happen.
#include <gtest/gtest.h>
#include <mpi.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "every_transfer.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {
namespace {

constexpr int kRanks = 8;
const GridShape kShapes[] = {{1, 8, 1, 1}, {1, 1, 1, 8}, {8, 1, 1, 1}, {1, 1, 8, 1},
                             {2, 2, 1, 2}, {2, 1, 2, 2}, {1, 2, 2, 2}, {4, 2, 1, 1}};

// An address that must not be touched.
void* Nowhere() { return reinterpret_cast<void*>(std::uintptr_t{0x80}); }  // NOLINT

// Of one kind of group, over all ranks: every group has each of its ranks once.
void ExpectFullGroups(const std::vector<std::pair<int, int>>& places, int size) {
  std::map<int, int> ranks;
  for (const auto& [rank, of] : places) {
    EXPECT_EQ(of, size);
    ++ranks[rank];
  }
  ASSERT_EQ(static_cast<int>(ranks.size()), size);
  for (const auto& [rank, times] : ranks) EXPECT_EQ(times, kRanks / size) << rank;
}

TEST(PlannedGridTest, EveryGroupIsComplete) {
  for (const GridShape& shape : kShapes) {
    SCOPED_TRACE(Describe(shape));
    const GridOptions options{.sharding = Sharding::kParameters,
                              .shard_group = shape.data % 2 == 0 ? 2 : 0};
    std::map<Group, std::vector<std::pair<int, int>>> places;
    for (int rank = 0; rank < kRanks; ++rank) {
      const ProcessGrid grid = ProcessGrid::Planned(shape, options, rank);
      EXPECT_EQ(grid.Coordinates(), Locate(rank, shape));
      for (const Group group : {Group::kWorld, Group::kData, Group::kShard, Group::kContext,
                                Group::kTensor, Group::kPipeline, Group::kReplica}) {
        const Collectives over = grid.Over(group);
        places[group].emplace_back(over.Rank(), over.Size());
      }
      const Communicator heads = grid.KeyValueGroup(2);
      EXPECT_EQ(heads.Size(), std::max(1, shape.tensor / 2));
      const bool ends = shape.pipeline > 1 && (grid.FirstStage() || grid.LastStage());
      EXPECT_EQ(grid.Embedding().Size(), ends ? 2 : 1);
      EXPECT_EQ(grid.Embedding().Rank(), ends && grid.LastStage() ? 1 : 0);
    }
    const int whole = shape.data * shape.context;
    const int sharers = options.shard_group == 0 ? whole : options.shard_group;
    ExpectFullGroups(places[Group::kWorld], kRanks);
    ExpectFullGroups(places[Group::kShard], sharers);
    ExpectFullGroups(places[Group::kData], whole / sharers);
    ExpectFullGroups(places[Group::kContext], shape.context);
    ExpectFullGroups(places[Group::kTensor], shape.tensor);
    ExpectFullGroups(places[Group::kPipeline], shape.pipeline);
    ExpectFullGroups(places[Group::kReplica], shape.pipeline * shape.tensor);
  }
}

TEST(PlannedGridTest, TransfersAreRecordedAndTouchNothing) {
  const ProcessGrid grid = ProcessGrid::Planned({2, 2, 1, 2}, {}, 5);
  test::EveryTransfer(grid.Over(Group::kTensor), Nowhere(), Nowhere());
  test::EveryTransfer(grid.Over(Group::kPipeline).OnHost(), Nowhere(), Nowhere());
  test::EveryTransfer(grid.Over(Group::kContext), Nowhere(), Nowhere());  // a group of one
  const Ledger& ledger = grid.Traffic();
  for (const Group group : {Group::kTensor, Group::kPipeline}) {
    EXPECT_EQ(ledger.At(group, Transfer::kAllReduce).calls, 3);
    EXPECT_EQ(ledger.At(group, Transfer::kAllReduce).payload, (101 + 102 + 103) * 4);
    EXPECT_EQ(ledger.At(group, Transfer::kReduceScatter).payload, 3 * 103 * 4);
    EXPECT_EQ(ledger.At(group, Transfer::kAllGather).payload, 4 * 103 * 4);
    EXPECT_EQ(ledger.At(group, Transfer::kAllToAll).payload, 103 * 4);
    EXPECT_EQ(ledger.At(group, Transfer::kBroadcast).payload, 104 * 4);
    EXPECT_EQ(ledger.At(group, Transfer::kSend).payload, (105 + 106) * 4);
    EXPECT_EQ(ledger.At(group, Transfer::kReceive).payload, (105 + 106) * 4);
    EXPECT_EQ(ledger.At(group, Transfer::kReceive).calls, 2);
  }
  EXPECT_EQ(ledger.At(Group::kContext, Transfer::kAllReduce).calls, 0);
}

TEST(PlannedGridTest, MpiIsNeitherStartedNorReached) {
  const ProcessGrid grid = ProcessGrid::Planned({8, 512, 1, 8}, {}, 32767);
  int started = 1;
  MPI_Initialized(&started);
  EXPECT_EQ(started, 0);
  EXPECT_EQ(grid.World().Size(), 32768);
  EXPECT_FALSE(grid.World().IsRoot());
  int runs = 0;
  grid.World().Together([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_THROW(grid.World().Max(1.0), Error);
  EXPECT_THROW(grid.World().Split(0, 0), Error);
  EXPECT_THROW(static_cast<void>(grid.World().Handle()), Error);
  EXPECT_EQ(grid.ChannelOver(grid.Tensor(), Group::kKeyValue), nullptr);
  EXPECT_EQ(grid.TakeExposed(), 0);
  EXPECT_TRUE(grid.Recordable());
  EXPECT_NO_THROW(grid.CheckHealth());
  EXPECT_THROW(ProcessGrid::Planned({1, 4, 1, 1}, {.shard_group = 3}, 0), Error);
}

}  // namespace
}  // namespace trireme::comm
