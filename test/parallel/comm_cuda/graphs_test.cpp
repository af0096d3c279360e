// Transfers as part of a graph: recorded once, run again and again, beside others that are not.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "channel_checks.hpp"
#include "orders.hpp"
#include "rank_gpu.hpp"

namespace trireme::comm {
namespace {

using test::Operand;

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
