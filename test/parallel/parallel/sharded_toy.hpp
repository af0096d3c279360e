// A toy model on one rank of a layout of shard groups, and what its transfers should come to.
#ifndef TRIREME_TEST_PARALLEL_SHARDED_TOY_HPP_
#define TRIREME_TEST_PARALLEL_SHARDED_TOY_HPP_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "defects.hpp"
#include "toy_units.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

using comm::Group;
using comm::Sharding;
using comm::Transfer;

inline constexpr std::int64_t kSize = 8;         // bytes of an element
inline constexpr std::int64_t kAlignment = 128;  // bytes: of an allocation

inline std::int64_t Allocated(std::int64_t elements) {
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

inline ShardSetup SetupOf(Sharding sharding, int prefetch = 1, bool overlap = true,
                          bool whole_parameters = false) {
  ShardSetup setup;
  setup.sharding = sharding;
  setup.bucket_bytes = 2000;
  setup.prefetch = prefetch;
  setup.overlap = overlap;
  setup.whole_parameters = whole_parameters;
  return setup;
}

inline void ExpectTraffic(const comm::Traffic& traffic, int ranks, std::int64_t calls,
                          std::int64_t elements, int times) {
  const std::int64_t parts = ranks == 1 ? 0 : 1;  // a group of one transfers nothing
  EXPECT_EQ(traffic.calls, calls * parts);
  EXPECT_EQ(traffic.payload, elements * kSize * parts);
  EXPECT_DOUBLE_EQ(traffic.moved,
                   static_cast<double>(times * (ranks - 1) * elements * kSize) / ranks);
}

inline std::string MessageOf(const std::function<void()>& body) {
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

}  // namespace trireme::parallel

#endif  // TRIREME_TEST_PARALLEL_SHARDED_TOY_HPP_
