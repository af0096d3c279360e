// Groups of a process grid that move the memory of GPUs, and the grid's words on all of them.
#include <gtest/gtest.h>

#include <string>

#include "channel_checks.hpp"
#include "rank_gpu.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {
namespace {

using test::Operand;

class GridChannelsTest : public test::RankGpuTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Open(GetParam());
    if (world_.Size() == 1 && !IsSkipped()) GTEST_SKIP() << "nothing is transferred";
  }
  // The sum of ones over a group, on the device.
  double Count(const Collectives& transfers) const {
    const Operand one(Stream(), Dtype::kFloat32, {1});
    transfers.AllReduce(Dtype::kFloat32, one.At(), 1);
    return one.Values()[0];
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, GridChannelsTest, testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "Staged" : "Nccl");
});

TEST_P(GridChannelsTest, MoveDeviceMemoryInEveryGroup) {
  const int size = world_.Size(), half = size / 2;
  GridOptions sharded;
  sharded.sharding = Sharding::kOptimizer;
  const std::vector<std::pair<GridShape, GridOptions>> layouts = {
      {{.pipeline = 1, .data = size, .context = 1, .tensor = 1}, {}},
      {{.pipeline = 2, .data = half, .context = 1, .tensor = 1}, {}},
      {{.pipeline = 1, .data = 1, .context = 2, .tensor = half}, {}},
      {{.pipeline = 1, .data = size, .context = 1, .tensor = 1}, sharded}};
  for (const auto& [shape, options] : layouts) {
    if (shape.Ranks() != size) continue;  // an odd number has no halves
    SCOPED_TRACE(Describe(shape));
    ProcessGrid grid(world_, shape, options);
    EXPECT_EQ(grid.ChannelOver(grid.Tensor(), Group::kKeyValue), nullptr);
    grid.UseGpu(Stream(), GetParam(), 2);
    EXPECT_EQ(Count(grid.Over(Group::kData)), grid.SameShard().Size());
    EXPECT_EQ(Count(grid.Over(Group::kShard)), grid.Shard().Size());
    EXPECT_EQ(Count(grid.Over(Group::kContext)), grid.Context().Size());
    EXPECT_EQ(Count(grid.Over(Group::kTensor)), grid.Tensor().Size());
    EXPECT_EQ(Count(grid.Over(Group::kPipeline)), grid.Pipeline().Size());
    EXPECT_EQ(Count(grid.Over(Group::kEmbedding)), grid.Embedding().Size());
    // The host's.
    for (const Group group : {Group::kWorld, Group::kReplica, Group::kTensor}) {
      float one = 1;
      const Collectives transfers = grid.Over(group).OnHost();
      transfers.AllReduce(Dtype::kFloat32, &one, 1);
      EXPECT_EQ(one, static_cast<float>(transfers.Size()));
    }
    float one = 1;
    grid.Over(Group::kWorld).AllReduce(Dtype::kFloat32, &one, 1);
    EXPECT_EQ(one, static_cast<float>(size));
    EXPECT_NO_THROW(grid.CheckHealth());
    EXPECT_GE(grid.TakeExposed(), 0);
    EXPECT_THROW(grid.UseGpu(Stream(), GetParam(), 1), Error);
  }
}

TEST_P(GridChannelsTest, ConnectTheRingsOfPipelineAndContext) {
  if (world_.Size() != 4) GTEST_SKIP() << "a layout of 4 ranks";
  constexpr Dtype kType = Dtype::kFloat32;
  ProcessGrid grid(world_, {.pipeline = 2, .data = 1, .context = 2, .tensor = 1});
  constexpr int kChunks = 2;
  grid.UseGpu(Stream(), GetParam(), kChunks);
  const auto pass = [&](const Collectives& transfers, int way, int tag) {
    const int size = transfers.Size(), rank = transfers.Rank();
    const Operand out(Stream(), kType, {static_cast<double>(10 * tag + rank)});
    const Operand in(Stream(), kType, {-1});
    Request receive = transfers.StartReceive(kType, in.At(), 1, (rank - way + size) % size, tag);
    transfers.StartSend(kType, out.At(), 1, (rank + way + size) % size, tag).Wait();
    receive.Wait();
    EXPECT_EQ(in.Values()[0], 10 * tag + (rank - way + size) % size);
  };
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    pass(grid.Over(Group::kPipeline), 1, 2 * chunk);
    pass(grid.Over(Group::kPipeline), -1, 2 * chunk + 1);
  }
  const Collectives context = grid.Over(Group::kContext);
  const int size = context.Size(), rank = context.Rank();
  for (const int tag : {1, 2}) {
    const Operand out(Stream(), kType, {static_cast<double>(10 * tag + rank)});
    const Operand in(Stream(), kType, {-1});
    for (Request& request : context.StartShift(kType, out.At(), 1, in.At(), 1, tag)) request.Wait();
    EXPECT_EQ(in.Values()[0], 10 * tag + (rank + size - 1) % size);
  }
}

TEST_P(GridChannelsTest, OtherGroupsChannelsCountWhileTheyLive) {
  ProcessGrid grid(world_, {.pipeline = 1, .data = 1, .context = 1, .tensor = world_.Size()});
  grid.UseGpu(Stream(), GetParam(), 1);
  const Communicator group = grid.KeyValueGroup(1);
  {
    const std::unique_ptr<Channel> channel = grid.ChannelOver(group, Group::kKeyValue);
    const Collectives transfers(group, Group::kKeyValue, grid.Traffic(), channel.get());
    EXPECT_EQ(Count(transfers), world_.Size());
    const double before = grid.Traffic().SecondsWaited(Group::kKeyValue);
    const double exposed = grid.TakeExposed();
    constexpr double kRounding = 1e-12;  // seconds
    EXPECT_NEAR(grid.Traffic().SecondsWaited(Group::kKeyValue) - before, exposed, kRounding);
  }
  EXPECT_EQ(grid.TakeExposed(), 0);
  EXPECT_NO_THROW(grid.CheckHealth());
}

}  // namespace
}  // namespace trireme::comm
