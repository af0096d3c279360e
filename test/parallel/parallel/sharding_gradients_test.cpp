// Gradients of sharded toy models: scattered to their owners and summed over groups of 1, 2, 3, 4
// and 8 ranks and across them, in order, with bytes exactly as predicted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "sharded_toy.hpp"
#include "trireme/parallel/gradient_buckets.hpp"

namespace trireme::parallel {
namespace {

using testing::HasSubstr;

class ShardingGradientsTest : public ShardingTest {};

INSTANTIATE_TEST_SUITE_P(GroupsOf, ShardingGradientsTest, testing::Values(1, 2, 3, 4, 8));

// Micro-batches of a step. apart: weight gradients are tasks of their own, two blocks at a time,
// with early gradients of all blocks before.
void RunBackward(Toy& toy, int rank, int micro_batches, bool apart) {
  std::vector<int> order = HeldUnits(toy.registry);
  std::reverse(order.begin(), order.end());
  toy.units.BeginStep();
  for (int i = 0; i < micro_batches; ++i) {
    for (const int unit : order) {
      if (apart) {
        toy.registry.BindEarly(unit, true);
        AddGradients(toy.registry, unit, rank, i, true);
        toy.registry.BindEarly(unit, false);
      }
    }
    for (std::size_t j = 0; j < order.size(); ++j) {
      toy.units.BeginGradient(order[j]);
      if (apart && j + 1 < order.size()) toy.units.BeginGradient(order[j + 1]);
      toy.units.BeginGradient(order[j]);  // goes on
      AddGradients(toy.registry, order[j], rank, i, false);
      if (!apart) AddGradients(toy.registry, order[j], rank, i, true);
      toy.units.Progress();
      toy.units.EndGradient(order[j]);
    }
  }
  toy.units.FinishGradients();
}

TEST_P(ShardingGradientsTest, GradientsReachTheirOwnersSummed) {
  constexpr int kMicroBatches = 3;
  for (const Sharding sharding : {Sharding::kGradients, Sharding::kParameters}) {
    for (const bool apart : {false, true}) {
      for (const bool overlap : {true, false}) {
        Toy toy(layout_, SetupOf(sharding, 1, overlap, apart == overlap));
        for (int step = 0; step < 2; ++step) {
          layout_.ledger.Clear();
          RunBackward(toy, layout_.shard.Rank(), kMicroBatches, apart);
          EXPECT_EQ(WrongGradients(toy.registry, Ranks(), kMicroBatches), 0);
          const std::vector<int> units = HeldUnits(toy.registry);
          ExpectTraffic(layout_.Traffic(Group::kShard, Transfer::kReduceScatter), Ranks(),
                        kMicroBatches * static_cast<std::int64_t>(units.size()),
                        kMicroBatches * toy.Elements(units), 1);
          EXPECT_EQ(toy.units.NotFinite(), "");
        }
        EXPECT_THROW(toy.registry.Gradient(0), Error);
      }
    }
  }
}

// Whenever they arrive, sums of micro-batches are added in their order: the same bits.
TEST_P(ShardingGradientsTest, MicroBatchesAreAddedInTheirOrder) {
  constexpr int kMicroBatches = 5;
  const auto found = [](int rank, int micro_batch, std::int64_t flat) {
    return std::sin(static_cast<double>(flat * 31 + rank * 7 + micro_batch)) *
           (1 << 2 * micro_batch);
  };
  if (Ranks() > 2) return;  // more have their sum in MPI's order
  Toy toy(layout_, SetupOf(Sharding::kGradients));
  toy.units.BeginStep();
  const kernels::ParameterId id = 2;  // blocks.0.weight
  const std::int64_t offset = toy.registry.Parameters()[id].offset;
  for (int i = 0; i < kMicroBatches; ++i) {
    for (const int unit : {2, 1}) {
      toy.units.BeginGradient(unit);
      const kernels::Matrix gradient = toy.registry.Gradient(unit == 1 ? id : 5);
      for (std::int64_t j = 0; j < gradient.Size(); ++j) {
        gradient.As<double>()[j] += found(layout_.shard.Rank(), i, offset + j);
      }
      toy.units.EndGradient(unit);
      // Ranks look at different times.
      if (layout_.shard.Rank() == i % 2) toy.units.Progress();
    }
  }
  toy.units.FinishGradients();
  const kernels::Owned owned = toy.registry.OwnedOf(id);
  const auto* gradients = static_cast<const double*>(toy.registry.Gradients()) + owned.gradient;
  for (std::int64_t j = 0; j < owned.flat.Size(); ++j) {
    double wanted = 0;
    for (int i = 0; i < kMicroBatches; ++i) {
      double sum = found(0, i, owned.flat.begin + j);
      if (Ranks() == 2) sum += found(1, i, owned.flat.begin + j);
      wanted += sum;
    }
    ASSERT_EQ(gradients[j], wanted) << j;
  }
}

TEST_P(ShardingGradientsTest, WithoutOverlapATransferEndsWhereItStarts) {
  if (Ranks() == 1) return;  // no transfers
  const comm::Traffic& scatters = layout_.Traffic(Group::kShard, Transfer::kReduceScatter);
  const comm::Traffic& gathers = layout_.Traffic(Group::kShard, Transfer::kAllGather);
  Toy toy(layout_, SetupOf(Sharding::kParameters, 2, false));
  toy.units.BeginTasks({1, 2});
  for (int i = 0; i < 2; ++i) {
    toy.units.Use(i + 1);
    EXPECT_EQ(gathers.calls, i + 1);
    toy.units.BeginGradient(i + 1);
    toy.units.EndGradient(i + 1);
    EXPECT_EQ(scatters.calls, i + 1);
    toy.units.Done(i + 1);
  }
  EXPECT_EQ(toy.units.GathersReady(), 0);
}

TEST_P(ShardingGradientsTest, NotFiniteGradientsAreNamedWhereTheyWereFound) {
  Toy toy(layout_, SetupOf(Sharding::kGradients));
  const bool mine = layout_.shard.Rank() == Ranks() - 1;
  toy.units.BeginStep();
  toy.units.BeginGradient(2);
  if (mine) toy.registry.Gradient(5).As<double>()[3] = std::numeric_limits<double>::infinity();
  toy.units.EndGradient(2);
  toy.units.FinishGradients();
  EXPECT_EQ(toy.units.NotFinite(), mine ? "blocks.1.weight" : "");
  RunBackward(toy, 0, 1, false);
  EXPECT_EQ(toy.units.NotFinite(), "");
}

TEST_P(ShardingGradientsTest, GradientsBegunAndNotEndedAreErrors) {
  Toy toy(layout_, SetupOf(Sharding::kGradients));
  toy.units.BeginStep();
  EXPECT_THAT(MessageOf([&] { toy.units.EndGradient(1); }),
              HasSubstr("gradients of blocks.0 are ended and were not begun"));
  toy.units.BeginGradient(1);
  toy.units.BeginGradient(2);
  EXPECT_THAT(MessageOf([&] { toy.units.BeginGradient(3); }),
              HasSubstr("no memory for the gradients of blocks.2"));
  EXPECT_THAT(MessageOf([&] { toy.units.FinishGradients(); }),
              HasSubstr("gradients of blocks.0 were begun and not ended"));
  toy.units.EndGradient(1);
  toy.units.EndGradient(2);
  toy.units.FinishGradients();
}

// Sums over all ranks, where a copy is shared out among fewer.
TEST_P(ShardingGradientsTest, BucketsSumAcrossShardGroups) {
  if (layout_.world_size % GetParam() != 0) return;  // groups of different sizes share out nothing
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const bool overlap : {true, false}) {
      layout_.ledger.Clear();
      Toy toy(layout_, SetupOf(sharding, 1, overlap, !overlap));
      GradientBuckets buckets(layout_.Data(), layout_.Shard(), toy.registry, {}, toy.setup,
                              nullptr);
      EXPECT_EQ(buckets.Bytes(), 0);
      EXPECT_EQ(buckets.Count(), toy.registry.Owns().pieces.size());
      toy.registry.ZeroGradients();
      buckets.Begin();
      RunBackward(toy, layout_.world_rank, 1, false);
      const auto& units = toy.registry.Units();
      for (std::size_t i = units.size(); i-- > 0;) buckets.Ready(units[i].range.begin);
      buckets.Wait();
      EXPECT_EQ(WrongGradients(toy.registry, layout_.world_size, 1), 0);
      EXPECT_EQ(buckets.NotFinite(), "");
      std::int64_t owned = 0, parts = 0;
      for (const kernels::Piece& piece : toy.registry.Owns().pieces) {
        owned += piece.own.Size();
        if (piece.own.Size() > 0) ++parts;
      }
      ExpectTraffic(layout_.Traffic(Group::kData, Transfer::kAllReduce), layout_.data.Size(), parts,
                    owned, 2);
      const auto pieces = static_cast<std::int64_t>(toy.registry.Owns().pieces.size());
      ExpectTraffic(layout_.Traffic(Group::kShard, Transfer::kReduceScatter), Ranks(), pieces,
                    toy.registry.Size(), 1);
      if (sharding == Sharding::kOptimizer) {
        EXPECT_GT(buckets.StartedBeforeEnd(), 0);
        EXPECT_GT(buckets.FirstStart(), 0);
        EXPECT_LT(buckets.FirstStart(), buckets.LastReady());
      }
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
