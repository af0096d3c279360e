// Units that are sharded: parameters, gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "defects.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Sharding;
using comm::Transfer;
using testing::HasSubstr;

// A toy model of units for tests of sharding: what is registered, what every element's value is,
// and what each rank finds for its gradient.

kernels::ParameterId AddToy(kernels::ParameterList& list, const std::string& name,
                            const kernels::Shape& shape, bool early = false, bool here = true) {
  kernels::Parameter parameter;
  parameter.name = name;
  parameter.shape = shape;
  parameter.early = early;
  if (!here) parameter.end = 0;
  return list.Add(parameter);
}

// embedding.token, blocks.0 ... of different sizes, one held elsewhere among them, head. Sizes are
// odd, so that lines, shards and units end in different places.
void AddToyUnits(kernels::ParameterList& list, int blocks = 3) {
  list.BeginUnit("embedding.token");
  AddToy(list, "embedding.token.weight", {53, 7});
  for (int i = 0; i < blocks; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    list.BeginUnit(name, true);
    AddToy(list, name + ".norm", {7}, true);
    AddToy(list, name + ".weight", {19 + 4 * i, 7});
    AddToy(list, name + ".bias", {3});
  }
  list.BeginUnit("blocks.elsewhere", true);
  AddToy(list, "blocks.elsewhere.weight", {5, 7}, false, false);
  list.BeginUnit("head");
  AddToy(list, "head.norm", {7}, true);
  AddToy(list, "head.bias", {29});
}

double ToyValue(std::int64_t flat) { return 1 + static_cast<double>(flat % 1013) / 8; }

// Small integers: their sums are exact in any order.
double ToyGradient(int rank, int micro_batch, std::int64_t flat) {
  return static_cast<double>(flat % 97 + 1) * (rank + 1) * (micro_batch + 2);
}
double ToyGradientSum(int ranks, int micro_batches, std::int64_t flat) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < micro_batches; ++i) sum += ToyGradient(rank, i, flat);
  }
  return sum;
}

// Owned values become ToyValue, all other stored ones something else.
void FillOwned(kernels::Registry& registry) {
  auto* values = static_cast<double*>(registry.Values());
  for (std::int64_t i = 0; i < registry.Owns().values; ++i) values[i] = -1;
  for (const kernels::Piece& piece : registry.Owns().pieces) {
    if (piece.range.begin >= registry.Size()) continue;
    for (std::int64_t i = piece.own.begin; i < piece.own.end; ++i) {
      values[piece.value + i - piece.own.begin] = ToyValue(i);
    }
  }
}

// Elements of the unit's parameters that are not ToyValue.
int WrongValues(const kernels::Registry& registry, int unit) {
  int wrong = 0;
  for (std::size_t i = 0; i < registry.Parameters().size(); ++i) {
    const auto id = static_cast<kernels::ParameterId>(i);
    const kernels::Parameter& parameter = registry.Parameters()[i];
    if (registry.UnitOf(id) != unit || !parameter.Held()) continue;
    const auto* values = registry.Value(id).As<double>();
    for (std::int64_t j = 0; j < parameter.LocalSize(); ++j) {
      if (values[j] != ToyValue(parameter.offset + j)) ++wrong;
    }
  }
  return wrong;
}

// Adds what a rank found to the unit's gradients, to those that are early (or not) alone.
void AddGradients(kernels::Registry& registry, int unit, int rank, int micro_batch, bool early) {
  for (std::size_t i = 0; i < registry.Parameters().size(); ++i) {
    const auto id = static_cast<kernels::ParameterId>(i);
    const kernels::Parameter& parameter = registry.Parameters()[i];
    if (registry.UnitOf(id) != unit || !parameter.Held() || parameter.early != early) continue;
    auto* gradients = registry.Gradient(id).As<double>();
    for (std::int64_t j = 0; j < parameter.LocalSize(); ++j) {
      gradients[j] += ToyGradient(rank, micro_batch, parameter.offset + j);
    }
  }
}

// Owned gradients that are not the sum over so many ranks and micro-batches.
int WrongGradients(const kernels::Registry& registry, int ranks, int micro_batches) {
  int wrong = 0;
  const auto* gradients = static_cast<const double*>(registry.Gradients());
  for (std::size_t i = 0; i < registry.Parameters().size(); ++i) {
    const kernels::Owned owned = registry.OwnedOf(static_cast<kernels::ParameterId>(i));
    for (std::int64_t j = 0; j < owned.flat.Size(); ++j) {
      const double wanted = ToyGradientSum(ranks, micro_batches, owned.flat.begin + j);
      if (gradients[owned.gradient + j] != wanted) ++wrong;
    }
  }
  return wrong;
}

std::vector<int> HeldUnits(const kernels::Registry& registry) {
  std::vector<int> units;
  for (std::size_t i = 0; i < registry.Units().size(); ++i) {
    if (registry.Units()[i].range.Size() > 0) units.push_back(static_cast<int>(i));
  }
  return units;
}

// A toy model on one rank of a layout of shard groups, and what its transfers should come to.

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
  comm::Collectives Shard() { return {shard, Group::kShard, ledger, front.get()}; }
  // Puts a channel with this defect in front of Shard().
  void Spoil(test::Defect defect) {
    front = std::make_unique<test::SpoilingChannel>(
        comm::Collectives(shard, Group::kShard, unrecorded), defect);
  }
  comm::Collectives Data() { return {data, Group::kData, ledger}; }
  const comm::Traffic& Traffic(Group group, Transfer transfer) const {
    return ledger.At(group, transfer);
  }
  comm::Communicator shard, data;
  comm::Ledger ledger, unrecorded;
  std::unique_ptr<comm::Channel> front;
  int world_rank = 0, world_size = 1;
};

// A toy model of one rank of the layout.
struct Toy {
  Toy(Layout& layout, ShardSetup wanted, int blocks = 3) : setup(wanted) {
    setup.rank = layout.shard.Rank();
    setup.ranks = layout.shard.Size();
    kernels::ParameterList list;
    AddToyUnits(list, blocks);
    registry =
        kernels::Registry(list, Dtype::kFloat64, PlanOwnership(list, Dtype::kFloat64, setup));
    const std::int64_t before = device::AllocatedBytes();
    units = ShardedUnits(layout.Shard(), registry, {}, setup, nullptr);
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
  kernels::Registry registry;
  ShardedUnits units;
  std::int64_t allocated = 0;
};

ShardSetup SetupOf(Sharding sharding, int prefetch = 1, bool overlap = true,
                   bool whole_parameters = false) {
  ShardSetup setup;
  setup.sharding = sharding;
  setup.bucket_bytes = 2000;
  setup.prefetch = prefetch;
  setup.overlap = overlap;
  setup.whole_parameters = whole_parameters;
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

// PlanOwnership and ShardedUnits' values on toy models over groups of 1, 2, 3, 4 and 8 ranks:
// gathered values, bytes and memory exactly as predicted, mistakes that show.

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

// Gradients of sharded toy models: scattered to their owners and summed over groups of 1, 2, 3, 4
// and 8 ranks and across them, in order, with bytes exactly as predicted.

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
