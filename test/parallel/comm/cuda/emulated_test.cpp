// What only the emulated NCCL can show: parts, defects, NCCL's choices, lost ranks.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>

#include "channel_checks.hpp"
#include "emulator/nccl_operation.hpp"
#include "nccl/nccl.hpp"
#include "nccl/nccl_channel.hpp"
#include "rank_gpu.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {
namespace {

using test::Operand;

// What a grid asks of NCCL and what it plans for it: blocks of a card, memory, graphs of several
// groups, and NCCL's own log of what it took.

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

// Parts of a shard group that differ in size: results, and the number of NCCL's calls, which must
// not grow with the group.

using Numbers = std::vector<double>;

constexpr std::int64_t kGrain = 32;
constexpr int kMostCalls = 4;  // a collective of blocks, its tail, a message to and from neighbours

class PartsTest : public test::RankGpuTest {
 protected:
  void SetUp() override {
    Open(false);
    if (world_.Size() == 1 && !IsSkipped()) GTEST_SKIP() << "nothing is transferred";
  }
  // Small whole numbers, whose sums are exact in every type and order.
  static Numbers Some(std::int64_t count, int seed) {
    Numbers numbers;
    for (std::int64_t i = 0; i < count; ++i) {
      numbers.push_back(static_cast<double>((i * 7 + seed * 5) % 13 - 6));
    }
    return numbers;
  }
  Numbers Sum(std::int64_t count) const {
    Numbers sum(static_cast<std::size_t>(count), 0);
    for (int rank = 0; rank < world_.Size(); ++rank) {
      const Numbers some = Some(count, rank);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += some[i];
    }
    return sum;
  }
  static Numbers PartOf(const Numbers& whole, const Part& part) {
    return {whole.begin() + part.begin, whole.begin() + part.end};
  }
  // Lengths whose parts differ by a grain, by the last grain alone, and by both.
  std::vector<std::int64_t> Lengths() const {
    const std::int64_t even = kGrain * 8 * world_.Size();
    return {even,
            even + kGrain,
            even + 5,
            even - kGrain - 3,
            even + (world_.Size() - 1) * kGrain,
            kGrain * world_.Size() + 1};
  }
  Ledger ledger_;
};

TEST_F(PartsTest, TakeAsManyCallsInAnyGroup) {
  for (int order = 0; order < test::Orders(); ++order) {
    test::ChooseOrder(order);
    const std::unique_ptr<Channel> channel =
        MakeChannel(world_, {.stream = Stream(), .group = Group::kShard});
    const Collectives shard(world_, Group::kShard, ledger_, channel.get());
    for (const std::int64_t length : Lengths()) {
      SCOPED_TRACE("length " + std::to_string(length) + ", order " + std::to_string(order));
      const Dtype dtype = test::kChannelTypes[order % 3];
      const Counts counts = Counts::Cut(length, kGrain);
      const Part own = PartOfGrains(length, kGrain, world_.Rank(), world_.Size());
      const Operand sums(Stream(), dtype, Some(length, world_.Rank()));
      const std::int64_t before = emulator::NcclCalls();
      shard.StartReduceScatterInPlace(dtype, sums.At(), counts).Wait();
      EXPECT_LE(emulator::NcclCalls() - before, kMostCalls);
      Numbers front = sums.Values();
      front.resize(static_cast<std::size_t>(own.Size()));
      EXPECT_EQ(front, PartOf(Sum(length), own));

      const Numbers whole = Some(length, 0);
      const Operand part(Stream(), dtype, PartOf(whole, own));
      const Operand all(Stream(), dtype, Numbers(static_cast<std::size_t>(length), -1));
      const std::int64_t between = emulator::NcclCalls();
      shard.AllGather(dtype, part.At(), all.At(), counts);
      EXPECT_LE(emulator::NcclCalls() - between, kMostCalls);
      EXPECT_EQ(all.Values(), whole);

      Numbers mine(static_cast<std::size_t>(length), -1);
      std::copy(whole.begin() + own.begin, whole.begin() + own.end, mine.begin() + own.begin);
      const Operand in_place(Stream(), dtype, mine);
      shard.AllGatherInPlace(dtype, in_place.At(), counts);
      EXPECT_EQ(in_place.Values(), whole);
    }
  }
}

// Any list of parts: those that no equal blocks fit take a call each.
TEST_F(PartsTest, AreRightHoweverTheyAreCut) {
  const std::unique_ptr<Channel> channel =
      MakeChannel(world_, {.stream = Stream(), .group = Group::kShard});
  const Collectives shard(world_, Group::kShard, ledger_, channel.get());
  const test::ChannelChecks checks = {Stream(), shard};
  for (const Dtype dtype : test::kChannelTypes) {
    // The checks' numbers grow with the rank: beyond 4 ranks bf16 rounds them.
    if (dtype == Dtype::kBfloat16 && world_.Size() > 4) continue;
    for (const int scale : {0, 1, 37, 257}) checks.EveryTransfer(dtype, scale);
  }
  const int size = world_.Size();
  for (const int large : {0, size - 1}) {
    std::vector<std::int64_t> list(static_cast<std::size_t>(size), 3 * kGrain);
    list[static_cast<std::size_t>(large)] = 40 * kGrain;
    const std::int64_t length = std::accumulate(list.begin(), list.end(), std::int64_t{0});
    const std::int64_t begin =
        std::accumulate(list.begin(), list.begin() + world_.Rank(), std::int64_t{0});
    const Part own = {begin, begin + list[static_cast<std::size_t>(world_.Rank())]};
    const Operand sums(Stream(), Dtype::kFloat32, Some(length, world_.Rank()));
    shard.StartReduceScatterInPlace(Dtype::kFloat32, sums.At(), Counts(list)).Wait();
    Numbers front = sums.Values();
    front.resize(static_cast<std::size_t>(own.Size()));
    EXPECT_EQ(front, PartOf(Sum(length), own));
  }
}

// Mistakes that a channel could make with its events, made on purpose: some order of the queues
// shows each of them as a wrong result.

// Starts before its operand is there.
class HastyChannel : public nccl::NcclChannel {
 public:
  using NcclChannel::NcclChannel;

 protected:
  void FollowComputation(const device::Event&, void*) const override {}
};

// Lets the computation go on before the transfer is through.
class ForgetfulChannel : public nccl::NcclChannel {
 public:
  using NcclChannel::NcclChannel;
  void Wait(int) override {}
};

class ChannelDefectsTest : public test::RankGpuTest {
 protected:
  void SetUp() override { Open(false); }

  // In how many of 20 orders a sum on a channel of this kind is wrong on some rank.
  template <typename Kind>
  int Wrong() {
    int wrong = 0;
    for (int order = 0; order < 20; ++order) {
      test::ChooseOrder(order);
      Kind channel(world_, {.stream = Stream(), .group = Group::kData});
      const Collectives transfers(world_, Group::kData, ledger_, &channel);
      const Operand operand(Stream(), Dtype::kFloat32, std::vector<double>(100, 1));
      transfers.AllReduce(Dtype::kFloat32, operand.At(), 100);
      const double size = world_.Size();
      const bool right = operand.Values() == std::vector<double>(100, size);
      wrong += world_.Max(std::int64_t{right ? 0 : 1}) > 0 ? 1 : 0;
    }
    return wrong;
  }

 private:
  Ledger ledger_;
};

TEST_F(ChannelDefectsTest, NoneWithoutADefect) { EXPECT_EQ(Wrong<nccl::NcclChannel>(), 0); }

TEST_F(ChannelDefectsTest, AStartThatDoesNotFollowTheComputation) {
  EXPECT_GE(Wrong<HastyChannel>(), 2);
}

TEST_F(ChannelDefectsTest, AWaitThatIsForgotten) { EXPECT_GE(Wrong<ForgetfulChannel>(), 2); }

// A rank that is lost in the middle of a run: the others end with a message that names the group,
// within seconds.

class LostRankTest : public test::RankGpuTest {
 protected:
  void SetUp() override { Open(false); }
};

TEST_F(LostRankTest, IsNamedWithinSeconds) {
  // Before the process's first operation: making the channel of a group is one.
  setenv("TRIREME_EMULATOR_NCCL_FAIL", "1:4", 1);
  constexpr double kPatience = 20;  // seconds
  ProcessGrid grid(world_, {.pipeline = 1, .data = world_.Size(), .context = 1, .tensor = 1});
  grid.UseGpu(Stream(), false, 1);
  const Collectives transfers = grid.Over(Group::kData);
  const device::Buffer memory = device::AllocateZeroed(400, device::Kind::kCuda);
  device::Event end(Stream());
  std::string message;
  const double start = Seconds();
  int sums = 0;
  try {
    // As a run does: work is queued, and the end of it polled with the channels' health.
    while (Seconds() - start < kPatience) {
      transfers.AllReduce(Dtype::kFloat32, memory.get(), 100);
      end.Record(Stream().gpu->queue);
      while (!end.Happened() && Seconds() - start < kPatience) grid.CheckHealth();
      ++sums;
    }
  } catch (const Error& error) {
    message = error.what();
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
  }
  EXPECT_LT(Seconds() - start, kPatience / 2);
  // The lost rank's operations: one to connect, and these. Others may hear of the loss before they
  // see the end of the second.
  EXPECT_LE(sums, 2);
  EXPECT_GE(sums, world_.Rank() == 1 ? 2 : 1);
  EXPECT_EQ(message.rfind("NCCL, data group: ", 0), 0U) << message;
  if (world_.Rank() != 1) {
    EXPECT_NE(message.find("remote process exited or there was a network error"), std::string::npos)
        << message;
    EXPECT_NE(message.find("A rank of this group stopped"), std::string::npos) << message;
  }
  // No wait for a transfer that cannot end any more, and no new one started.
  device::Synchronise(Stream());
  EXPECT_THROW(transfers.AllReduce(Dtype::kFloat32, memory.get(), 100), Error);
  EXPECT_THROW(grid.CheckHealth(), Error);
}

}  // namespace
}  // namespace trireme::comm
