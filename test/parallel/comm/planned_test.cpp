// A planned grid against the real one of the same layout: the same groups, and the same records of
// the same transfers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "every_transfer.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {
namespace {

constexpr Group kGroupsOfGrid[] = {Group::kWorld,   Group::kData,     Group::kShard,
                                   Group::kContext, Group::kTensor,   Group::kPipeline,
                                   Group::kReplica, Group::kEmbedding};

void ExpectSame(const Communicator& planned, const Communicator& real) {
  EXPECT_EQ(planned.Rank(), real.Rank());
  EXPECT_EQ(planned.Size(), real.Size());
}

void ExpectSameRecords(const Ledger& planned, const Ledger& real) {
  for (int group = 0; group < kGroups; ++group) {
    for (int kind = 0; kind < kTransfers; ++kind) {
      const auto name = static_cast<Group>(group);
      const auto transfer = static_cast<Transfer>(kind);
      SCOPED_TRACE(fmt::format("{} {}", NameOf(name), NameOf(transfer)));
      EXPECT_EQ(planned.At(name, transfer).calls, real.At(name, transfer).calls);
      EXPECT_EQ(planned.At(name, transfer).payload, real.At(name, transfer).payload);
      EXPECT_EQ(planned.At(name, transfer).moved, real.At(name, transfer).moved);
    }
  }
}

class PlannedTest : public testing::Test {
 protected:
  void Compare(const GridShape& shape, const GridOptions& options) {
    SCOPED_TRACE(fmt::format("{}, {} in groups of {}", Describe(shape), NameOf(options.sharding),
                             options.shard_group));
    const ProcessGrid real(world_, shape, options);
    const ProcessGrid planned = ProcessGrid::Planned(shape, options, world_.Rank());
    EXPECT_EQ(planned.Coordinates(), real.Coordinates());
    ExpectSame(planned.World(), real.World());
    ExpectSame(planned.Data(), real.Data());
    for (const Group group : kGroupsOfGrid) {
      EXPECT_EQ(planned.Over(group).Rank(), real.Over(group).Rank()) << NameOf(group);
      EXPECT_EQ(planned.Over(group).Size(), real.Over(group).Size()) << NameOf(group);
      test::EveryTransfer(planned.Over(group), nullptr, nullptr);
      test::EveryTransfer(real.Over(group), from_.data(), to_.data());
    }
    for (const int heads : {1, 2, 3, 4, 16}) {
      const Communicator ours = planned.KeyValueGroup(heads), theirs = real.KeyValueGroup(heads);
      ExpectSame(ours, theirs);
      test::EveryTransfer({ours, Group::kKeyValue, planned.Traffic()}, nullptr, nullptr);
      test::EveryTransfer({theirs, Group::kKeyValue, real.Traffic()}, from_.data(), to_.data());
    }
    ExpectSameRecords(planned.Traffic(), real.Traffic());
  }

  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
  std::vector<float> from_ = std::vector<float>(test::kEveryTransferElements);
  std::vector<float> to_ = std::vector<float>(test::kEveryTransferElements);
};

TEST_F(PlannedTest, IsTheRealGrid) {
  const int ranks = world_.Size();
  for (int pipeline = 1; pipeline <= ranks; pipeline *= 2) {
    for (int context = 1; pipeline * context <= ranks; context *= 2) {
      for (int tensor = 1; pipeline * context * tensor <= ranks; tensor *= 2) {
        const GridShape shape{pipeline, ranks / (pipeline * context * tensor), context, tensor};
        Compare(shape, {});
        const int whole = shape.data * shape.context;
        for (const int sharers : {0, 1, 2}) {
          if (sharers > 0 && whole % sharers != 0) continue;
          Compare(shape, {.sharding = Sharding::kGradients, .shard_group = sharers});
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::comm
