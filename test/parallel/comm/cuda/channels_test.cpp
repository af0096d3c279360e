// Transfers between GPUs: channels, those of a grid, and graphs of them.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "channel_checks.hpp"
#include "rank_gpu.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {
namespace {

using test::ChannelChecks;
using test::Operand;

// Channels between GPUs, through NCCL and by way of the host, on groups of 1 to 4 ranks: every
// transfer, in every form and type, in several orders of the queues.

// Whether by way of the host.
class ChannelsTest : public test::RankGpuTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override { Open(Staged()); }
  static bool Staged() { return GetParam(); }
  std::unique_ptr<Channel> Make(const Communicator& group) const {
    return MakeChannel(group, {.stream = Stream(),
                               .group = Group::kTensor,
                               .staged = Staged(),
                               .to_next = test::kToNext,
                               .to_previous = test::kToPrevious});
  }
  Ledger ledger_;
};

INSTANTIATE_TEST_SUITE_P(Ways, ChannelsTest, testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "Staged" : "Nccl");
});

TEST_P(ChannelsTest, NoneForOneRank) {
  EXPECT_EQ(Make(Communicator::Adopt(MPI_COMM_SELF)), nullptr);
}

TEST_P(ChannelsTest, MoveWhatMpiWould) {
  for (int size = 2; size <= world_.Size(); ++size) {
    SCOPED_TRACE("a group of " + std::to_string(size));
    const Communicator group = world_.Split(world_.Rank() < size ? 0 : 1, world_.Rank());
    if (world_.Rank() >= size) continue;
    const std::unique_ptr<Channel> channel = Make(group);
    EXPECT_EQ(channel->Recordable(), !Staged());
    const Collectives transfers(group, Group::kTensor, ledger_, channel.get());
    const ChannelChecks checks = {Stream(), transfers};
    for (int order = 0; order < test::Orders(); ++order) {
      SCOPED_TRACE("order " + std::to_string(order));
      test::ChooseOrder(order);
      const Dtype dtype = test::kChannelTypes[order % 3];
      checks.EveryTransfer(dtype, order == 0 ? 0 : order % 2 == 1 ? 1 : 257);
      checks.ManyInFlight(dtype);
      checks.Messages(dtype, 1 + 32 * order);
      checks.MessagesInTurn(dtype, 65);
      checks.Shifts(dtype, 40 * order);
      checks.RoundedSums(dtype, group);
    }
    for (const Dtype dtype : test::kChannelTypes) checks.EveryTransfer(dtype, 37);
    EXPECT_NO_THROW(channel->CheckHealth());
  }
}

// The device's time, not the host's: rank 0 comes to a sum that the others start later.
TEST_P(ChannelsTest, TellHowLongTheComputationStoodStill) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  // Seconds, and what is left of them at the least where rank 0 itself is held up.
  constexpr double kLate = 0.4, kLeft = 0.1;
  const std::unique_ptr<Channel> channel = Make(world_);
  const Collectives transfers(world_, Group::kTensor, ledger_, channel.get());
  const Operand operand(Stream(), Dtype::kFloat32, {1, 2, 3});
  transfers.AllReduce(Dtype::kFloat32, operand.At(), 3);
  device::Synchronise(Stream());
  channel->TakeExposed();
  world_.Barrier();
  if (world_.Rank() != 0) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
  transfers.AllReduce(Dtype::kFloat32, operand.At(), 3);
  device::Synchronise(Stream());
  const double exposed = channel->TakeExposed();
  const double on_host = ledger_.SecondsWaited(Group::kTensor);
  if (Staged()) {
    EXPECT_EQ(exposed, 0);
    if (world_.Rank() == 0) {
      EXPECT_GE(on_host, kLeft);
    }
  } else if (world_.Rank() == 0) {
    EXPECT_GE(exposed, kLeft);
    EXPECT_LE(exposed, 10);
  }
  EXPECT_EQ(channel->TakeExposed(), 0);
}

// As many transfers at a time as before take no more memory of the GPU, and no time is lost that
// nobody asked for.
TEST_P(ChannelsTest, AreUsedForLong) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  const std::unique_ptr<Channel> channel = Make(world_);
  const Collectives transfers(world_, Group::kTensor, ledger_, channel.get());
  const Operand operand(Stream(), Dtype::kFloat32, {1});
  int highest = 0;
  for (int i = 0; i < 200; ++i) {
    const int ticket = channel->Start({.dtype = Dtype::kFloat32,
                                       .reduction = Reduction::kMax,
                                       .from = operand.At(),
                                       .to = operand.At(),
                                       .count = 1});
    channel->Wait(ticket);
    highest = std::max(highest, ticket);
    if (i % 10 == 9) device::Synchronise(Stream());
  }
  EXPECT_LT(highest, 20);
  EXPECT_EQ(operand.Values(), std::vector<double>{1});
}

TEST_P(ChannelsTest, RecordInTheLedger) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  const std::unique_ptr<Channel> channel = Make(world_);
  const Collectives transfers(world_, Group::kTensor, ledger_, channel.get());
  const Operand operand(Stream(), Dtype::kBfloat16, std::vector<double>(10, 1));
  transfers.AllReduce(Dtype::kBfloat16, operand.At(), 10);
  Request request = transfers.StartAllReduce(Dtype::kBfloat16, operand.At(), 10);
  while (!request.Test()) std::this_thread::yield();
  request.Wait();  // no more to wait for
  const Traffic& traffic = ledger_.At(Group::kTensor, Transfer::kAllReduce);
  EXPECT_EQ(traffic.calls, 2);
  EXPECT_EQ(traffic.payload, 40);
  EXPECT_EQ(traffic.seconds_hidden, 0);
  const double square = world_.Size() * world_.Size();
  EXPECT_EQ(operand.Values(), std::vector<double>(10, square));
}

// A rank whose host waits in MPI has sent what it has queued all the same.
TEST_P(ChannelsTest, GoOnWhileTheHostWaitsInMpi) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  const std::unique_ptr<Channel> channel = Make(world_);
  const Collectives transfers(world_, Group::kTensor, ledger_, channel.get());
  const int next = (world_.Rank() + 1) % world_.Size();
  const int last = (world_.Rank() + world_.Size() - 1) % world_.Size();
  for (int order = 0; order < test::Orders(); ++order) {
    test::ChooseOrder(order);
    const Operand out(Stream(), Dtype::kFloat32, {1, 2, 3}),
        in(Stream(), Dtype::kFloat32, {0, 0, 0});
    Request send, receive;
    if (world_.Rank() % 2 == 0) {
      if (next % 2 == 1) {  // the last of an odd number has nobody
        send = transfers.StartSend(Dtype::kFloat32, out.At(), 3, next, test::kToNext[0]);
      }
    } else {
      receive = transfers.StartReceive(Dtype::kFloat32, in.At(), 3, last, test::kToNext[0]);
      receive.Wait();
      EXPECT_EQ(in.Values(), (std::vector<double>{1, 2, 3}));
    }
    world_.Barrier();
    send.Wait();
    device::Synchronise(Stream());
  }
}

TEST_P(ChannelsTest, RefuseMessagesThatHaveNoWay) {
  if (world_.Size() == 1 || Staged()) GTEST_SKIP() << "the host's messages take any way";
  const std::unique_ptr<Channel> channel = Make(world_);
  const Collectives transfers(world_, Group::kTensor, ledger_, channel.get());
  const int next = (world_.Rank() + 1) % world_.Size();
  try {
    transfers.StartSend(Dtype::kFloat32, nullptr, 0, next, 77);
    FAIL() << "a message of tag 77 was sent";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("NCCL, tensor group: no way for a send of tag 77"),
              std::string::npos)
        << error.what();
  }
}

// Groups of a process grid that move the memory of GPUs, and the grid's words on all of them.

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

// Transfers as part of a graph: recorded once, run again and again, beside others that are not.

class ChannelGraphsTest : public test::RankGpuTest {
 protected:
  void SetUp() override {
    Open(false);
    if (world_.Size() == 1 && !IsSkipped()) GTEST_SKIP() << "nothing is transferred";
  }
  Ledger ledger_;
};

TEST_F(ChannelGraphsTest, RunAgainAndAgain) {
  constexpr std::int64_t kCount = 33;
  constexpr Dtype kType = Dtype::kFloat64;
  const int size = world_.Size(), next = (world_.Rank() + 1) % size;
  const int last = (world_.Rank() + size - 1) % size;
  for (int order = 0; order < test::Orders(); ++order) {
    SCOPED_TRACE("order " + std::to_string(order));
    test::ChooseOrder(order);
    const std::unique_ptr<Channel> channel =
        MakeChannel(world_, {.stream = Stream(),
                             .group = Group::kContext,
                             .to_next = test::kToNext,
                             .to_previous = test::kToPrevious});
    const Collectives transfers(world_, Group::kContext, ledger_, channel.get());
    const Operand sum(Stream(), kType, std::vector<double>(kCount, 1));
    const Operand in(Stream(), kType, std::vector<double>(kCount, -1));
    const Operand extra(Stream(), kType, std::vector<double>(kCount, 1));
    transfers.AllReduce(kType, sum.At(), kCount);  // a rehearsal
    device::Synchronise(Stream());
    channel->TakeExposed();
    device::Graph graph;
    graph.Begin(Stream());
    // A message carries what the sum before it made; two are under way at a time. Started in an
    // order in which they could also follow one another, as drivers before CUDA 12.9 have it.
    transfers.AllReduce(kType, sum.At(), kCount);
    const auto start_send = [&] {
      return transfers.StartSend(kType, sum.At(), kCount, next, test::kToNext[0]);
    };
    Request early = world_.Rank() % 2 == 0 ? start_send() : Request();
    Request receive = transfers.StartReceive(kType, in.At(), kCount, last, test::kToNext[0]);
    Request send = world_.Rank() % 2 == 0 ? std::move(early) : start_send();
    EXPECT_FALSE(send.Test());
    receive.Wait();
    send.Wait();
    graph.End(Stream());
    double wanted = size;
    for (int launch = 0; launch < 3; ++launch) {
      graph.Launch(Stream());
      wanted *= size;
      transfers.AllReduce(kType, extra.At(), kCount);
      EXPECT_EQ(sum.Values(), std::vector<double>(kCount, wanted));
      EXPECT_EQ(in.Values(), std::vector<double>(kCount, wanted));
    }
    EXPECT_EQ(extra.Values(), std::vector<double>(kCount, std::pow(size, 3)));
    EXPECT_GE(channel->TakeExposed(), 0);  // of the others alone
    graph = device::Graph();               // before its channel
  }
}

}  // namespace
}  // namespace trireme::comm
