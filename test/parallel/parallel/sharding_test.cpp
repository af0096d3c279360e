// PlanOwnership and ShardedUnits' values on toy models over groups of 1, 2, 3, 4 and 8 ranks:
// gathered values, bytes and memory exactly as predicted, mistakes that show.
#include "trireme/parallel/sharding.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sharded_toy.hpp"

namespace trireme::parallel {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(GroupsOf, ShardingTest, testing::Values(1, 2, 3, 4, 8));

TEST_P(ShardingTest, OwnedPartsMakeUpEveryUnitOnce) {
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    Toy toy(layout_, SetupOf(sharding));
    const kernels::Ownership& owns = toy.registry.Owns();
    std::int64_t end = 0, owned = 0;
    for (const kernels::Piece& piece : owns.pieces) {
      EXPECT_EQ(piece.range.begin, end);
      end = piece.range.end;
      EXPECT_EQ(piece.moment, owned);
      owned += piece.own.Size();
      EXPECT_EQ((piece.own.begin - piece.range.begin) % 32 == 0 || piece.own.Size() == 0, true);
    }
    EXPECT_EQ(end, toy.registry.Size());
    EXPECT_EQ(owns.moments, owned);
    EXPECT_EQ(layout_.shard.Sum(owned), toy.registry.Size());
    EXPECT_EQ(owns.values, sharding == Sharding::kParameters ? owned : toy.registry.Size());
    EXPECT_EQ(owns.gradients, sharding == Sharding::kOptimizer ? toy.registry.Size() : owned);
    if (sharding != Sharding::kOptimizer) {
      EXPECT_EQ(owns.pieces.size(), HeldUnits(toy.registry).size());
    }
  }
}

TEST_P(ShardingTest, EveryUseSeesTheWholeUnitAndIsOneGather) {
  for (const int prefetch : {0, 1, 2, 64}) {
    for (const bool overlap : {true, false}) {
      layout_.ledger.Clear();
      Toy toy(layout_, SetupOf(Sharding::kParameters, prefetch, overlap, prefetch == 1));
      const std::vector<int> uses = toy.ThereAndBack();
      for (int step = 0; step < 2; ++step) {
        std::vector<int> announced = uses;
        announced.insert(announced.begin() + 2, 4);  // held elsewhere
        toy.units.BeginTasks(announced);
        for (const int unit : announced) {
          toy.units.Use(unit);
          EXPECT_EQ(WrongValues(toy.registry, unit), 0) << unit << " prefetch " << prefetch;
          toy.units.Progress();
          toy.units.Done(unit);
        }
        EXPECT_THROW(toy.registry.Value(0), Error);
      }
      const auto gathers = static_cast<std::int64_t>(2 * uses.size());
      EXPECT_EQ(toy.units.Gathers(), gathers);
      EXPECT_LE(toy.units.GathersReady(), overlap && prefetch > 0 ? gathers : 0);
      ExpectTraffic(layout_.Traffic(Group::kShard, Transfer::kAllGather), Ranks(), gathers,
                    2 * toy.Elements(uses), 1);
    }
  }
}

// For rules of updates that need whole matrices.
TEST_P(ShardingTest, WholeParametersHaveOneOwner) {
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    Toy toy(layout_, SetupOf(sharding, 1, true, true));
    std::int64_t moments = 0;
    for (std::size_t id = 0; id < toy.registry.Parameters().size(); ++id) {
      const std::int64_t size = toy.registry.Parameters()[id].LocalSize();
      const std::int64_t own =
          toy.registry.OwnedOf(static_cast<kernels::ParameterId>(id)).flat.Size();
      EXPECT_TRUE(own == 0 || own == size) << id;
      EXPECT_EQ(layout_.shard.Sum(own), size) << id;
      moments += own;
    }
    EXPECT_GE(toy.registry.Owns().moments, moments);
    for (const kernels::Piece& piece : toy.registry.Owns().pieces) {
      ASSERT_EQ(std::ssize(piece.counts), Ranks());
      EXPECT_EQ(piece.moment % 32, 0);
      EXPECT_EQ(piece.own.Size(), piece.counts[static_cast<std::size_t>(layout_.shard.Rank())]);
    }
  }
}

TEST_P(ShardingTest, TheNextUnitArrivesWhileOneComputes) {
  Toy toy(layout_, SetupOf(Sharding::kParameters, 1));
  const std::vector<int> uses = toy.ThereAndBack();
  toy.units.BeginTasks(uses);
  for (const int unit : uses) {
    toy.units.Use(unit);
    // Everyone has started the next one: chances enough to complete.
    layout_.shard.Barrier();
    for (int i = 0; i < 200; ++i) toy.units.Progress();
    layout_.shard.Barrier();
    toy.units.Done(unit);
  }
  EXPECT_GT(toy.units.GathersReady(), toy.units.Gathers() / 2);
}

TEST_P(ShardingTest, MemoryInUseIsNotGatheredInto) {
  Toy toy(layout_, SetupOf(Sharding::kParameters, 2));
  toy.units.BeginTasks({0, 0, 0, 0});
  toy.units.Use(0);
  toy.units.Use(0);
  toy.units.Done(0);
  double* value = toy.registry.Value(0).As<double>();
  value[0] = -5;  // a late arrival would take its place
  layout_.shard.Barrier();
  for (int i = 0; i < 200; ++i) toy.units.Progress();
  EXPECT_EQ(value[0], -5);
  toy.units.Done(0);
  for (int i = 0; i < 2; ++i) {
    toy.units.Use(0);
    EXPECT_EQ(WrongValues(toy.registry, 0), 0);
    toy.units.Done(0);
  }
}

TEST_P(ShardingTest, MemoryIsAsPlanned) {
  for (const int prefetch : {0, 1, 2, 64}) {
    Toy toy(layout_, SetupOf(Sharding::kParameters, prefetch));
    const auto size = [&](int unit) { return toy.Elements({unit}); };
    const std::int64_t block = Allocated(size(3));  // the largest
    const std::int64_t others = Allocated(size(0)) + Allocated(size(5));
    EXPECT_EQ(toy.units.GatherBytes(), std::min(prefetch + 1, 4) * block + others);
    EXPECT_EQ(toy.units.GradientBytes(), 2 * block + others);
    EXPECT_EQ(toy.allocated, toy.units.GatherBytes() + toy.units.GradientBytes());
  }
  Toy gradients(layout_, SetupOf(Sharding::kGradients));
  EXPECT_EQ(gradients.units.GatherBytes(), 0);
  EXPECT_EQ(gradients.allocated, gradients.units.GradientBytes());
  Toy optimizer(layout_, SetupOf(Sharding::kOptimizer));
  EXPECT_EQ(optimizer.allocated, 0);
}

TEST_P(ShardingTest, AUnitMayBeUsedTwiceAtOnce) {
  for (const int prefetch : {0, 1, 3}) {
    for (const int unit : {0, 1}) {
      layout_.ledger.Clear();
      Toy toy(layout_, SetupOf(Sharding::kParameters, prefetch));
      toy.units.BeginTasks({unit, unit, unit});
      toy.units.Use(unit);
      toy.units.Use(unit);
      EXPECT_EQ(WrongValues(toy.registry, unit), 0);
      toy.units.Done(unit);
      EXPECT_EQ(WrongValues(toy.registry, unit), 0);
      toy.units.Done(unit);
      EXPECT_THROW(toy.registry.Value(unit == 0 ? 0 : 1), Error);
      toy.units.Use(unit);
      EXPECT_EQ(WrongValues(toy.registry, unit), 0);
      toy.units.Done(unit);
      ExpectTraffic(layout_.Traffic(Group::kShard, Transfer::kAllGather), Ranks(), 3,
                    3 * toy.Elements({unit}), 1);
    }
  }
}

TEST_P(ShardingTest, UsesOutOfOrderNameBothUnits) {
  Toy toy(layout_, SetupOf(Sharding::kParameters));
  EXPECT_THAT(MessageOf([&] { toy.units.Use(1); }),
              HasSubstr("blocks.0 is used where nothing was announced"));
  toy.units.BeginTasks({1, 2});
  EXPECT_THAT(MessageOf([&] { toy.units.Use(2); }),
              HasSubstr("blocks.1 is used where blocks.0 was announced"));
  EXPECT_THAT(MessageOf([&] { toy.units.Done(1); }),
              HasSubstr("blocks.0 is done with and was not in use"));
  EXPECT_THAT(MessageOf([&] { toy.units.BeginTasks({1}); }),
              HasSubstr("new tasks begin, and blocks.0 was announced and never used"));
  toy.units.Use(1);
  toy.units.Use(2);
  EXPECT_THAT(MessageOf([&] { toy.units.BeginTasks({1}); }),
              HasSubstr("new tasks begin, and blocks.1 is still in use"));
  toy.units.Done(1);
  EXPECT_EQ(WrongValues(toy.registry, 2), 0);
  toy.units.Done(2);
  // One buffer for blocks cannot hold two.
  Toy narrow(layout_, SetupOf(Sharding::kParameters, 0));
  narrow.units.BeginTasks({1, 2});
  narrow.units.Use(1);
  EXPECT_THAT(MessageOf([&] { narrow.units.Use(2); }),
              HasSubstr("no memory for blocks.1 while blocks.0 is in use"));
}

TEST_P(ShardingTest, ThePrematureUseShowsAndCostsTheSame) {
  if (Ranks() == 1) return;  // no gathering
  layout_.Spoil(test::Defect::kUsedBeforeGather);
  Toy toy(layout_, SetupOf(Sharding::kParameters));
  const std::vector<int> uses = toy.ThereAndBack();
  toy.units.BeginTasks(uses);
  for (const int unit : uses) {
    toy.units.Use(unit);
    EXPECT_GT(WrongValues(toy.registry, unit), 0);
    toy.units.Done(unit);
  }
  ExpectTraffic(layout_.Traffic(Group::kShard, Transfer::kAllGather), Ranks(),
                static_cast<std::int64_t>(uses.size()), toy.Elements(uses), 1);
}

TEST_P(ShardingTest, WholeValuesAreGatheredFromThoseWhoUpdatedThem) {
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const bool overlap : {true, false}) {
      layout_.ledger.Clear();
      Toy toy(layout_, SetupOf(sharding, 1, overlap, !overlap));
      toy.units.BeginStep();
      toy.units.GatherUpdated();
      if (sharding == Sharding::kParameters) {
        EXPECT_EQ(layout_.Traffic(Group::kShard, Transfer::kAllGather).calls, 0);
        continue;
      }
      // In any order, and twice.
      const std::vector<int> units = HeldUnits(toy.registry);
      for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
        toy.units.Use(*unit);
        EXPECT_EQ(WrongValues(toy.registry, *unit), 0);
        toy.units.Progress();
        toy.units.Use(*unit);
        toy.units.Done(*unit);
      }
      toy.units.FinishUpdated();
      for (const int unit : units) EXPECT_EQ(WrongValues(toy.registry, unit), 0);
      ExpectTraffic(layout_.Traffic(Group::kShard, Transfer::kAllGather), Ranks(),
                    static_cast<std::int64_t>(toy.registry.Owns().pieces.size()),
                    toy.registry.Size(), 1);
      EXPECT_GE(toy.units.SecondsWaited(), 0);
    }
  }
}

TEST(Sharding, NothingShardedReturnsAtOnce) {
  Layout layout(1);
  Toy toy(layout, SetupOf(Sharding::kNone));
  EXPECT_FALSE(toy.units.ValuesSharded());
  EXPECT_FALSE(toy.units.GradientsSharded());
  ShardedUnits none;
  for (ShardedUnits* units : {&toy.units, &none}) {
    units->BeginTasks({0, 1});
    units->Use(1);  // in any order
    units->Done(1);
    units->BeginGradient(2);
    units->EndGradient(3);
    units->Progress();
    units->BeginStep();
    units->FinishGradients();
    units->GatherUpdated();
    EXPECT_EQ(units->GatherBytes() + units->GradientBytes() + units->Gathers(), 0);
    EXPECT_EQ(units->NotFinite(), "");
    EXPECT_EQ(units->SecondsWaited(), 0);
  }
}

}  // namespace
}  // namespace trireme::parallel
