// NCCL's channel in a group of one, which a program never makes: what one card can show of it.
#include <gtest/gtest.h>

#include "channel_checks.hpp"
#include "nccl/nccl_channel.hpp"
#include "rank_gpu.hpp"

namespace trireme::comm {
namespace {

using test::Operand;
using Numbers = std::vector<double>;

class AloneTest : public test::RankGpuTest {
 protected:
  void SetUp() override { Open(false); }
  static Numbers Some(std::int64_t count) {
    Numbers numbers;
    for (std::int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<double>(i % 100));
    return numbers;
  }
};

TEST_F(AloneTest, MovesWhatIsThere) {
  nccl::NcclChannel channel(world_, {.stream = Stream(), .group = Group::kData});
  for (const Dtype dtype : test::kChannelTypes) {
    for (const std::int64_t count : {0, 1, 1001, 100'003}) {
      const std::int64_t counts[] = {count};
      const Places places(Transfer::kAllGather, Counts(counts), 1);
      for (const Transfer transfer :
           {Transfer::kAllReduce, Transfer::kReduceScatter, Transfer::kAllGather,
            Transfer::kAllToAll, Transfer::kBroadcast}) {
        SCOPED_TRACE(testing::Message()
                     << NameOf(transfer) << " " << count << " " << NameOf(dtype));
        const Operand from(Stream(), dtype, Some(count));
        const Operand to(Stream(), dtype, Numbers(static_cast<std::size_t>(count), -1));
        const bool placed = transfer != Transfer::kAllReduce && transfer != Transfer::kBroadcast;
        const int ticket = channel.Start({.transfer = transfer,
                                          .dtype = dtype,
                                          .from = from.At(),
                                          .to = to.At(),
                                          .count = count,
                                          .places = placed ? &places : nullptr,
                                          .taken = placed ? &places : nullptr});
        channel.Wait(ticket);
        EXPECT_EQ(to.Values(), Some(count));
        EXPECT_GE(channel.TakeExposed(), 0);
      }
    }
  }
  EXPECT_NO_THROW(channel.CheckHealth());
}

TEST_F(AloneTest, IsPartOfAGraph) {
  constexpr std::int64_t kCount = 513;
  nccl::NcclChannel channel(world_, {.stream = Stream(), .group = Group::kData});
  const Operand from(Stream(), Dtype::kFloat32, Some(kCount));
  const Operand to(Stream(), Dtype::kFloat32, Numbers(kCount, -1));
  device::Synchronise(Stream());
  device::Graph graph;
  graph.Begin(Stream());
  const int ticket = channel.Start({.from = from.At(), .to = to.At(), .count = kCount});
  EXPECT_FALSE(channel.Test(ticket));
  channel.Wait(ticket);
  graph.End(Stream());
  EXPECT_GT(graph.Nodes(), 0);
  EXPECT_EQ(to.Values(), Numbers(kCount, -1));
  graph.Launch(Stream());
  EXPECT_EQ(to.Values(), Some(kCount));
  EXPECT_EQ(channel.TakeExposed(), 0);
}

}  // namespace
}  // namespace trireme::comm
