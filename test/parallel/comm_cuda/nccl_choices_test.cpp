// What a grid asks of NCCL and what it plans for it: blocks of a card, memory, graphs of several
// groups, and NCCL's own log of what it took.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <string>

#include "channel_checks.hpp"
#include "emulator/nccl_room.hpp"
#include "nccl/nccl.hpp"
#include "rank_gpu.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {
namespace {

using test::Operand;

constexpr std::int64_t kCount = 100;  // elements

class NcclChoicesTest : public test::RankGpuTest {
 protected:
  void SetUp() override {
    Open(false);
    if (world_.Size() != 4 && !IsSkipped()) GTEST_SKIP() << "layouts of 4 ranks";
  }
  void Sum(const ProcessGrid& grid, Group group) const {
    const Operand ones(Stream(), Dtype::kFloat32, std::vector<double>(kCount, 1));
    grid.Over(group).AllReduce(Dtype::kFloat32, ones.At(), kCount);
    device::Synchronise(Stream());
  }
};

// An operation's blocks, one after another.
TEST_F(NcclChoicesTest, SumsBesideTheComputationTakeAnEighthOfACard) {
  GridOptions sharded;
  sharded.sharding = Sharding::kOptimizer;
  sharded.shard_group = 2;
  ProcessGrid shards(world_, {.pipeline = 1, .data = 4, .context = 1, .tensor = 1}, sharded);
  shards.UseGpu(Stream(), false, 1);
  for (const Group group : {Group::kData, Group::kShard}) {
    emulator::ForgetMostBlocks();
    Sum(shards, group);
    EXPECT_EQ(emulator::MostBlocks(), 16) << NameOf(group);
  }
}

TEST_F(NcclChoicesTest, TheComputationWaitsForTensorSumsWhichTakeWhatNcclLikes) {
  ProcessGrid grid(world_, {.pipeline = 1, .data = 1, .context = 2, .tensor = 2});
  grid.UseGpu(Stream(), false, 1);
  emulator::ForgetMostBlocks();
  Sum(grid, Group::kTensor);
  EXPECT_EQ(emulator::MostBlocks(), emulator::BlocksOfNccl());
  emulator::ForgetMostBlocks();
  Sum(grid, Group::kContext);
  EXPECT_EQ(emulator::MostBlocks(), kMessageBlocks);
}

TEST_F(NcclChoicesTest, AGraphHoldsSeveralGroupsWithADriverForCuda129) {
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  ProcessGrid one(world_, {.pipeline = 1, .data = 4, .context = 1, .tensor = 1});
  one.UseGpu(Stream(), false, 1);
  ProcessGrid two(world_, {.pipeline = 1, .data = 2, .context = 1, .tensor = 2});
  two.UseGpu(Stream(), false, 1);
  EXPECT_TRUE(one.Recordable());
  EXPECT_TRUE(two.Recordable());
  setenv("TRIREME_EMULATOR_DRIVER", "12080", 1);
  EXPECT_TRUE(one.Recordable());
  EXPECT_FALSE(two.Recordable());
  unsetenv("TRIREME_EMULATOR_DRIVER");
}

TEST_F(NcclChoicesTest, TheLogTellsWhatWasTaken) {
  ProcessGrid grid(world_, {.pipeline = 2, .data = 2, .context = 1, .tensor = 1});
  grid.UseGpu(Stream(), false, 1);
  Sum(grid, Group::kData);
  std::map<std::string, std::string> facts;
  for (const auto& [name, text] : DescribeGpuTransfers()) facts[name] = text;
  EXPECT_EQ(facts["library"], GpuTransferLibrary());
  EXPECT_TRUE(facts["data group"].starts_with("P2P/EMULATED; 16 channels; rings and trees "))
      << facts["data group"];
  EXPECT_TRUE(facts["pipeline group, messages"].starts_with("P2P/EMULATED; 4 channels"))
      << facts["pipeline group, messages"];
  if (world_.Rank() == 0) {
    EXPECT_EQ(facts["algorithms"], "AllReduce RING/SIMPLE");
  }
  EXPECT_FALSE(facts.contains("NCCL_DEBUG_FILE"));  // the program's own
}

TEST(NcclLog, ChannelsAndShapes) {
  const std::string lines =
      "host:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1\n"
      "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
      "host:1:2 [0] NCCL INFO Channel 01/0 : 3[3] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"
      "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
      "host:1:2 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 8 p2p\n";
  const std::string text = nccl::DescribeCommunicator(lines);
  EXPECT_TRUE(text.starts_with("NET/IB/0/GDRDMA, P2P/CUMEM; 16 channels; rings and trees "))
      << text;
  std::string other = lines;
  other.replace(other.find("1/-1/-1"), 1, "2");
  EXPECT_NE(nccl::DescribeCommunicator(other), text);
  EXPECT_EQ(nccl::DescribeCommunicator(""), "");
}

// Lines of NCCL 2.27, 2.22 and 2.20.
TEST(NcclLog, Algorithms) {
  EXPECT_EQ(nccl::DescribeAlgorithms(
                "h:1:1 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL "
                "channel{Lo..Hi}={0..1}\n"
                "h:1:1 [0] NCCL INFO AllReduce: 9 Bytes -> Algo RING proto LL128 channel\n"
                "h:1:1 [0] NCCL INFO AllReduce: 9 Bytes -> Algo RING proto LL128 channel\n"
                "h:1:1 [0] NCCL INFO AllGather: 9 Bytes -> Algo 1 proto 2 time 1.5\n"
                "h:1:1 [0] NCCL INFO 9 Bytes -> Algo 0 proto 0 time 1.5\n"),
            "AllGather 1/2; AllReduce RING/LL128, TREE/LL; collectives 0/0");
  EXPECT_EQ(nccl::DescribeAlgorithms("nothing of the kind\n"), "");
}

// Of grids that are not there.
TEST(CommunicatorBytes, CountGroupsAndMessages) {
  const auto bytes = [](const GridShape& shape, int rank, int chunks, std::int64_t kv_heads,
                        const GridOptions& options = {}) {
    return ProcessGrid::Planned(shape, options, rank).CommunicatorBytes(chunks, kv_heads);
  };
  const std::int64_t none = bytes({}, 0, 1, 4);
  EXPECT_EQ(none, 0);
  const std::int64_t data = bytes({.data = 2}, 0, 1, 4);
  EXPECT_GT(data, std::int64_t{256} << 20);
  EXPECT_LT(data, std::int64_t{512} << 20);
  EXPECT_EQ(bytes({.tensor = 2}, 0, 1, 4), data);
  EXPECT_EQ(bytes({.data = 2, .tensor = 2}, 0, 1, 4), 2 * data);
  EXPECT_EQ(bytes({.tensor = 4}, 0, 1, 2), 2 * data);  // two ranks share a key's head
  GridOptions hybrid;
  hybrid.sharding = Sharding::kOptimizer;
  hybrid.shard_group = 2;
  EXPECT_EQ(bytes({.data = 4}, 0, 1, 4, hybrid), 2 * data);
  EXPECT_EQ(bytes({.context = 2}, 0, 1, 4), data + data / 4);  // a replica's sums; few blocks
  // Stages: the group, that of the two ends, and messages each way to each neighbour.
  const GridShape stages = {.pipeline = 4};
  const std::int64_t message = data / 12;
  EXPECT_EQ(bytes(stages, 0, 1, 4), 2 * data + 2 * message);
  EXPECT_EQ(bytes(stages, 1, 1, 4), data + 4 * message);
  EXPECT_EQ(bytes(stages, 1, 2, 4), data + 8 * message);
}

}  // namespace
}  // namespace trireme::comm
