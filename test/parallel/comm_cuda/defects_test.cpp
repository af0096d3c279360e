// Mistakes that a channel could make with its events, made on purpose: some order of the queues
// shows each of them as a wrong result.
#include <gtest/gtest.h>

#include <string>

#include "channel_checks.hpp"
#include "nccl/nccl_channel.hpp"
#include "orders.hpp"
#include "rank_gpu.hpp"

namespace trireme::comm {
namespace {

using test::Operand;

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

}  // namespace
}  // namespace trireme::comm
