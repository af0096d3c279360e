// Channels between GPUs, through NCCL and by way of the host, on groups of 1 to 4 ranks: every
// transfer, in every form and type, in several orders of the queues.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "channel_checks.hpp"
#include "orders.hpp"
#include "rank_gpu.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {

using test::ChannelChecks;
using test::Operand;

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

}  // namespace
}  // namespace trireme::comm
