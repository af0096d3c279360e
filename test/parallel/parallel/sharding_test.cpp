// ShardedUnits and GradientBuckets on toy models over groups of 1, 2, 3, 4 and 8 ranks: gathered
// values, scattered sums, bytes and memory exactly as predicted, mistakes that show.
#include "trireme/parallel/sharding.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "toy_units.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/parallel/gradient_buckets.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Sharding;
using comm::Transfer;
using testing::HasSubstr;

constexpr std::int64_t kSize = 8;         // bytes of an element
constexpr std::int64_t kAlignment = 128;  // bytes: of an allocation

std::int64_t Allocated(std::int64_t elements) {
  return CeilDivide(elements * kSize, kAlignment) * kAlignment;
}

// The world in shard groups of `ranks` (the last one smaller where that does not divide), and
// across them.
struct Layout {
  explicit Layout(int ranks) {
    const comm::Communicator world = comm::Communicator::Adopt(MPI_COMM_WORLD);
    shard = world.Split(world.Rank() / ranks, world.Rank());
    data = world.Split(world.Rank() % ranks, world.Rank());
    world_rank = world.Rank();
    world_size = world.Size();
  }
  comm::Collectives Shard() { return {shard, Group::kShard, ledger}; }
  comm::Collectives Data() { return {data, Group::kData, ledger}; }
  const comm::Traffic& Traffic(Group group, Transfer transfer) const {
    return ledger.At(group, transfer);
  }
  comm::Communicator shard, data;
  comm::Ledger ledger;
  int world_rank = 0, world_size = 1;
};

// A toy model of one rank of the layout.
struct Toy {
  Toy(Layout& layout, ShardSetup wanted, Defect defect = Defect::kNone, int blocks = 3)
      : setup(wanted) {
    setup.rank = layout.shard.Rank();
    setup.ranks = layout.shard.Size();
    AddToyUnits(registry, blocks);
    registry.Plan(Dtype::kFloat64, PlanOwnership(registry, Dtype::kFloat64, setup));
    units = ShardedUnits(layout.Shard(), registry, {}, setup, nullptr, defect);
    registry.Allocate(Dtype::kFloat64, true, PlanOwnership(registry, Dtype::kFloat64, setup));
    const std::int64_t before = device::AllocatedBytes();
    units.Allocate();
    allocated = device::AllocatedBytes() - before;
    FillOwned(registry);
  }
  std::int64_t Elements(const std::vector<int>& uses) const {
    std::int64_t elements = 0;
    for (const int unit : uses) {
      elements += registry.Units()[static_cast<std::size_t>(unit)].range.Size();
    }
    return elements;
  }
  // Forward through all units and backward again: as a step does.
  std::vector<int> ThereAndBack() const {
    std::vector<int> uses = HeldUnits(registry);
    uses.insert(uses.end(), uses.rbegin(), uses.rend());
    return uses;
  }
  ShardSetup setup;
  tensor::Registry registry;
  ShardedUnits units;
  std::int64_t allocated = 0;
};

ShardSetup SetupOf(Sharding sharding, int prefetch = 1, bool overlap = true) {
  ShardSetup setup;
  setup.sharding = sharding;
  setup.bucket_bytes = 2000;
  setup.prefetch = prefetch;
  setup.overlap = overlap;
  return setup;
}

void ExpectTraffic(const comm::Traffic& traffic, int ranks, std::int64_t calls,
                   std::int64_t elements, int times) {
  const std::int64_t parts = ranks == 1 ? 0 : 1;  // a group of one transfers nothing
  EXPECT_EQ(traffic.calls, calls * parts);
  EXPECT_EQ(traffic.payload, elements * kSize * parts);
  EXPECT_DOUBLE_EQ(traffic.moved,
                   static_cast<double>(times * (ranks - 1) * elements * kSize) / ranks);
}

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class ShardingTest : public testing::TestWithParam<int> {
 protected:
  Layout layout_{GetParam()};
  int Ranks() const { return layout_.shard.Size(); }
};

INSTANTIATE_TEST_SUITE_P(GroupsOf, ShardingTest, testing::Values(1, 2, 3, 4, 8));

TEST_P(ShardingTest, OwnedPartsMakeUpEveryUnitOnce) {
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    Toy toy(layout_, SetupOf(sharding));
    const tensor::Ownership& owns = toy.registry.Owns();
    std::int64_t end = 0, owned = 0;
    for (const tensor::Piece& piece : owns.pieces) {
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
      Toy toy(layout_, SetupOf(Sharding::kParameters, prefetch, overlap));
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

TEST_P(ShardingTest, GatheredAheadMeansReady) {
  Toy toy(layout_, SetupOf(Sharding::kParameters, 2));
  const std::vector<int> uses = toy.ThereAndBack();
  toy.units.BeginTasks(uses);
  for (const int unit : uses) {
    // Everyone has started it: chances enough to complete.
    layout_.shard.Barrier();
    for (int i = 0; i < 200; ++i) toy.units.Progress();
    layout_.shard.Barrier();
    toy.units.Use(unit);
    toy.units.Done(unit);
  }
  EXPECT_GT(toy.units.GathersReady(), toy.units.Gathers() / 2);
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
  Toy toy(layout_, SetupOf(Sharding::kParameters), Defect::kUsedBeforeGather);
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

TEST_P(ShardingTest, GradientsReachTheirOwnersSummed) {
  constexpr int kMicroBatches = 3;
  for (const Sharding sharding : {Sharding::kGradients, Sharding::kParameters}) {
    for (const bool apart : {false, true}) {
      for (const bool overlap : {true, false}) {
        Toy toy(layout_, SetupOf(sharding, 1, overlap));
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

TEST_P(ShardingTest, NotFiniteGradientsAreNamedWhereTheyWereFound) {
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

TEST_P(ShardingTest, GradientsBegunAndNotEndedAreErrors) {
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

TEST_P(ShardingTest, WholeValuesAreGatheredFromThoseWhoUpdatedThem) {
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const bool overlap : {true, false}) {
      layout_.ledger.Clear();
      Toy toy(layout_, SetupOf(sharding, 1, overlap));
      toy.units.BeginStep();
      toy.units.GatherUpdated();
      if (sharding == Sharding::kParameters) {
        EXPECT_EQ(layout_.Traffic(Group::kShard, Transfer::kAllGather).calls, 0);
        continue;
      }
      for (const int unit : HeldUnits(toy.registry)) EXPECT_EQ(WrongValues(toy.registry, unit), 0);
      ExpectTraffic(layout_.Traffic(Group::kShard, Transfer::kAllGather), Ranks(),
                    static_cast<std::int64_t>(toy.registry.Owns().pieces.size()),
                    toy.registry.Size(), 1);
      EXPECT_GE(toy.units.SecondsWaited(), 0);
    }
  }
}

// Sums over all ranks, where a copy is shared out among fewer.
TEST_P(ShardingTest, BucketsSumAcrossShardGroups) {
  if (layout_.world_size % GetParam() != 0) return;  // groups of different sizes share out nothing
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const bool overlap : {true, false}) {
      layout_.ledger.Clear();
      Toy toy(layout_, SetupOf(sharding, 1, overlap));
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
      std::int64_t owned = toy.registry.Owns().moments, parts = 0;
      for (const tensor::Piece& piece : toy.registry.Owns().pieces) {
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

TEST(Sharding, NothingShardedReturnsAtOnce) {
  Layout layout(1);
  Toy toy(layout, SetupOf(Sharding::kNone));
  EXPECT_FALSE(toy.units.ValuesSharded());
  EXPECT_FALSE(toy.units.GradientsSharded());
  ShardedUnits none;
  for (ShardedUnits* units : {&toy.units, &none}) {
    units->BeginTasks({0, 1});
    units->Use(1);  // whatever the order
    units->Done(1);
    units->BeginGradient(2);
    units->EndGradient(3);
    units->Progress();
    units->BeginStep();
    units->FinishGradients();
    units->GatherUpdated();
    units->Allocate();
    EXPECT_EQ(units->GatherBytes() + units->GradientBytes() + units->Gathers(), 0);
    EXPECT_EQ(units->NotFinite(), "");
    EXPECT_EQ(units->SecondsWaited(), 0);
  }
}

}  // namespace
}  // namespace trireme::parallel
