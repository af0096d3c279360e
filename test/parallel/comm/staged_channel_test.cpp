// The channel by way of the host, on the CPU, whose memory is the host's: the same checks as on a
// GPU (comm_cuda), in every build.
#include "staged_channel.hpp"

#include <gtest/gtest.h>

#include <string>

#include "channel_checks.hpp"

namespace trireme::comm {
namespace {

using test::ChannelChecks;

class StagedChannelTest : public testing::Test {
 protected:
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
  Ledger ledger_;
  device::Stream stream_;
};

TEST_F(StagedChannelTest, MovesWhatMpiWould) {
  for (int size = 2; size <= world_.Size(); ++size) {
    SCOPED_TRACE("a group of " + std::to_string(size));
    const Communicator group = world_.Split(world_.Rank() < size ? 0 : 1, world_.Rank());
    if (world_.Rank() >= size) continue;
    StagedChannel channel(group, {});
    const Collectives transfers(group, Group::kTensor, ledger_, &channel);
    const ChannelChecks checks = {stream_, transfers};
    for (const Dtype dtype : test::kChannelTypes) {
      for (const std::int64_t scale : {0, 1, 1001}) checks.EveryTransfer(dtype, scale);
      checks.ManyInFlight(dtype);
      checks.Messages(dtype, 33);
      checks.Shifts(dtype, 33);
      checks.MessagesInTurn(dtype, 65);
      checks.RoundedSums(dtype, group);
    }
    EXPECT_EQ(channel.TakeExposed(), 0);
    EXPECT_FALSE(channel.Recordable());
    EXPECT_NO_THROW(channel.CheckHealth());
  }
}

TEST_F(StagedChannelTest, RecordsAsMpiDoes) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  StagedChannel channel(world_, {});
  const Collectives transfers(world_, Group::kTensor, ledger_, &channel);
  std::vector<float> values(100, 1.0F), host(values);
  transfers.AllReduce(Dtype::kFloat32, values.data(), 100);
  transfers.OnHost().AllReduce(Dtype::kFloat32, host.data(), 100);
  EXPECT_EQ(values, host);
  const Traffic& traffic = ledger_.At(Group::kTensor, Transfer::kAllReduce);
  EXPECT_EQ(traffic.calls, 2);
  EXPECT_EQ(traffic.payload, 800);
  EXPECT_GT(traffic.seconds_waited, 0);
  EXPECT_EQ(traffic.seconds_hidden, 0);
}

TEST_F(StagedChannelTest, OperandsBeyondMpiAreRefused) {
  StagedChannel channel(world_, {});
  try {
    channel.Start({.count = std::int64_t{1} << 31});
    FAIL() << "2^31 elements were accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("an MPI count ends at"), std::string::npos);
  }
}

TEST(Channel, NoneOnTheCpuAndNoneForOne) {
  const Communicator world = Communicator::Adopt(MPI_COMM_WORLD);
  EXPECT_EQ(MakeChannel(world, {}), nullptr);
  EXPECT_EQ(MakeChannel(Communicator::Adopt(MPI_COMM_SELF), {}), nullptr);
}

}  // namespace
}  // namespace trireme::comm
