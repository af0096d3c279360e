// Parts of a shard group that differ in size: results, and the number of NCCL's calls, which must
// not grow with the group.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "channel_checks.hpp"
#include "emulator/nccl_operation.hpp"
#include "orders.hpp"
#include "rank_gpu.hpp"

namespace trireme::comm {
namespace {

using test::Operand;
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

}  // namespace
}  // namespace trireme::comm
