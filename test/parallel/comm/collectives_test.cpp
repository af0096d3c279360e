// Collectives, and the ledger of what they move.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "counted_mpi.hpp"
#include "staged_channel.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/comm/ledger.hpp"

namespace trireme::comm {
namespace {

using test::counted_mpi::Function;

// Collectives on groups of 1 to 8 ranks: sums known from the ranks alone; in place, uneven and
// empty parts, blocking and not; what the ledger takes down of them.

class CollectivesTest : public testing::Test {
 protected:
  // Runs `body` on the groups of the first 1, 2, ... ranks.
  void OnEveryGroup(const std::function<void(const Collectives&)>& body) {
    for (int size = 1; size <= world_.Size(); ++size) {
      SCOPED_TRACE("a group of " + std::to_string(size));
      const Communicator group = world_.Split(world_.Rank() < size ? 0 : 1, world_.Rank());
      if (world_.Rank() < size) body(Collectives(group, Group::kTensor, ledger_));
    }
  }
  const Traffic& Of(Transfer transfer) const { return ledger_.At(Group::kTensor, transfer); }

  Ledger ledger_;
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
};

// Parts of the ranks: uneven, some empty; all empty with a scale of 0, and with a large one long
// enough for other algorithms.
std::vector<std::int64_t> UnevenCounts(int size, std::int64_t scale) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(scale * ((3 * rank + 2) % 4));
  return counts;
}
constexpr std::int64_t kScales[] = {0, 1, 4001};

template <typename T>
T Value(int rank, std::size_t element) {
  return static_cast<T>((rank + 1) * static_cast<int>(element + 1));
}

// Sum of Value over the ranks of a group.
template <typename T>
T SumOf(int size, std::size_t element) {
  return static_cast<T>(size * (size + 1) / 2 * static_cast<int>(element + 1));
}

TEST_F(CollectivesTest, AllReduces) {
  OnEveryGroup([](const Collectives& group) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
      std::vector<float> sum(count), most(count);
      std::vector<double> started(count);
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] = most[i] = Value<float>(group.Rank(), i);
        started[i] = Value<double>(group.Rank(), i);
      }
      const auto elements = static_cast<std::int64_t>(count);
      Request request = group.StartAllReduce(Dtype::kFloat64, started.data(), elements);
      request.Wait();
      EXPECT_TRUE(request.Complete());
      group.AllReduce(Dtype::kFloat32, sum.data(), elements);
      group.AllReduce(Dtype::kFloat32, most.data(), elements, Reduction::kMax);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(sum[i], SumOf<float>(group.Size(), i));
        EXPECT_EQ(started[i], SumOf<double>(group.Size(), i));
        EXPECT_EQ(most[i], Value<float>(group.Size() - 1, i));
      }
    }
  });
}

TEST_F(CollectivesTest, AllReduceEndsWithTheSameBitsOnAllRanks) {
  OnEveryGroup([](const Collectives& group) {
    // Long enough for the algorithms that cut a message.
    std::vector<float> values(50'000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i) * static_cast<float>(group.Rank() + 1));
    }
    group.AllReduce(Dtype::kFloat32, values.data(), std::ssize(values));
    std::vector<float> first = values;
    group.Broadcast(Dtype::kFloat32, first.data(), std::ssize(first), 0);
    EXPECT_EQ(values, first);
  });
}

TEST_F(CollectivesTest, ReduceScatters) {
  OnEveryGroup([](const Collectives& group) {
    for (int variant = 0; variant < 9; ++variant) {
      const int way = variant % 3;
      SCOPED_TRACE(variant);
      const auto counts = UnevenCounts(group.Size(), kScales[variant / 3]);
      std::size_t total = 0, begin = 0;
      for (int rank = 0; rank < group.Size(); ++rank) {
        if (rank == group.Rank()) begin = total;
        total += static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]);
      }
      const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(group.Rank())]);
      std::vector<float> from(total), other(own, -1);
      for (std::size_t i = 0; i < total; ++i) from[i] = Value<float>(group.Rank(), i);
      // A view of no rows may lie where the other buffer begins.
      float* to = own == 0 ? from.data() : other.data();
      if (way == 2) {
        group.StartReduceScatterInPlace(Dtype::kFloat32, from.data(), counts).Wait();
        to = from.data();
      } else if (way == 1) {
        group.StartReduceScatter(Dtype::kFloat32, from.data(), to, counts).Wait();
      } else {
        group.ReduceScatter(Dtype::kFloat32, from.data(), to, counts);
      }
      for (std::size_t i = 0; i < own; ++i) {
        EXPECT_EQ(to[i], SumOf<float>(group.Size(), begin + i));
      }
    }
  });
}

// Parts that overlap the begin of the operand, which they go to: MPICH's own way there aborts, if
// they are long.
TEST_F(CollectivesTest, SumsInPlaceOfPartsLongerThanThoseBefore) {
  OnEveryGroup([](const Collectives& group) {
    for (const std::int64_t scale : {1, 60'001}) {
      SCOPED_TRACE(scale);
      std::vector<std::int64_t> counts;
      for (int rank = 0; rank < group.Size(); ++rank)
        counts.push_back(rank == 1 ? scale + 9 : scale);
      std::vector<float> sum(static_cast<std::size_t>(group.Size() * scale + 9));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = Value<float>(group.Rank(), i % 100);
      Request request = group.StartReduceScatterInPlace(Dtype::kFloat32, sum.data(), counts);
      Request moved = std::move(request);
      moved.Wait();
      const auto begin =
          static_cast<std::size_t>(group.Rank() * scale + (group.Rank() > 1 ? 9 : 0));
      const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(group.Rank())]);
      for (std::size_t i = 0; i < own; ++i) {
        ASSERT_EQ(sum[i], SumOf<float>(group.Size(), (begin + i) % 100)) << i;
      }
    }
  });
}

TEST(ScatterInPlace, IsAvoidedWhereItFails) {
  constexpr const char* kOpen = "Open MPI v4.1.4, package: Debian OpenMPI";
  constexpr const char* kMpich = "MPICH Version:\t4.0.2";
  constexpr std::array kEven = {5, 5, 5, 5}, kLong = {5, 6, 5, 5};
  EXPECT_TRUE(ScattersInPlace(kOpen, kLong.data(), 4));
  EXPECT_FALSE(ScattersInPlace(kMpich, kLong.data(), 4));
  EXPECT_TRUE(ScattersInPlace(kMpich, kEven.data(), 4));
  EXPECT_TRUE(ScattersInPlace(kMpich, kLong.data(), 1));
}

TEST_F(CollectivesTest, AllGathers) {
  OnEveryGroup([](const Collectives& group) {
    for (int variant = 0; variant < 12; ++variant) {
      const bool in_place = variant % 2 == 1, start = variant % 4 >= 2;
      SCOPED_TRACE(variant);
      const auto counts = UnevenCounts(group.Size(), kScales[variant / 4]);
      std::vector<double> wanted;
      std::size_t begin = 0;
      for (int rank = 0; rank < group.Size(); ++rank) {
        if (rank == group.Rank()) begin = wanted.size();
        for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(rank)]; ++i) {
          wanted.push_back(Value<double>(rank, static_cast<std::size_t>(i)));
        }
      }
      const auto own = counts[static_cast<std::size_t>(group.Rank())];
      std::vector<double> to(wanted.size(), -1), other(static_cast<std::size_t>(own));
      double* from = in_place ? to.data() + begin : own == 0 ? to.data() : other.data();
      for (std::int64_t i = 0; i < own; ++i) {
        from[i] = Value<double>(group.Rank(), static_cast<std::size_t>(i));
      }
      if (in_place && start) {
        group.StartAllGatherInPlace(Dtype::kFloat64, to.data(), counts).Wait();
      } else if (start) {
        group.StartAllGather(Dtype::kFloat64, from, to.data(), counts).Wait();
      } else if (in_place) {
        group.AllGatherInPlace(Dtype::kFloat64, to.data(), counts);
      } else {
        group.AllGather(Dtype::kFloat64, from, to.data(), counts);
      }
      EXPECT_EQ(to, wanted);
    }
  });
}

TEST_F(CollectivesTest, AllToAlls) {
  OnEveryGroup([](const Collectives& group) {
    for (const std::int64_t scale : kScales) {
      SCOPED_TRACE(scale);
      const auto counts = UnevenCounts(group.Size(), scale);
      const auto own = counts[static_cast<std::size_t>(group.Rank())];
      // Names the sender, the receiver and the place.
      const auto value = [](int from, int to, std::int64_t i) {
        return static_cast<double>(from * 100 + to) + static_cast<double>(i) * 1e4;
      };
      std::vector<double> from, wanted;
      for (int rank = 0; rank < group.Size(); ++rank) {
        for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(rank)]; ++i) {
          from.push_back(value(group.Rank(), rank, i));
        }
        for (std::int64_t i = 0; i < own; ++i) wanted.push_back(value(rank, group.Rank(), i));
      }
      std::vector<double> to(wanted.size(), -1);
      group.AllToAll(Dtype::kFloat64, from.data(), to.data(), counts);
      EXPECT_EQ(to, wanted);
    }
  });
}

// Several at once, as the layers of a model start them: each keeps its counts, the caller's are
// gone.
TEST_F(CollectivesTest, StartedTransfersOwnTheirCounts) {
  OnEveryGroup([](const Collectives& group) {
    constexpr int kTransfersAtOnce = 6;
    constexpr std::size_t kEach = 4001;
    const auto size = static_cast<std::size_t>(group.Size());
    const auto begin = static_cast<std::size_t>(group.Rank()) * kEach;
    std::vector<std::vector<float>> sums, parts;
    std::vector<Request> requests;
    for (int k = 0; k < kTransfersAtOnce; ++k) {
      auto& sum = sums.emplace_back(size * kEach);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = Value<float>(group.Rank(), i % 100);
      auto& part = parts.emplace_back(size * kEach, -1.0F);
      for (std::size_t i = 0; i < kEach; ++i) part[begin + i] = Value<float>(group.Rank(), i % 100);
      std::vector<std::int64_t> counts(size, kEach);
      requests.push_back(group.StartReduceScatterInPlace(Dtype::kFloat32, sum.data(), counts));
      requests.push_back(group.StartAllGatherInPlace(Dtype::kFloat32, part.data(), counts));
      std::fill(counts.begin(), counts.end(), -1);
    }
    for (auto request = requests.rbegin(); request != requests.rend(); ++request) request->Wait();
    for (int k = 0; k < kTransfersAtOnce; ++k) {
      const auto& sum = sums[static_cast<std::size_t>(k)];
      const auto& part = parts[static_cast<std::size_t>(k)];
      for (std::size_t i = 0; i < kEach; ++i) {
        ASSERT_EQ(sum[i], SumOf<float>(group.Size(), (begin + i) % 100)) << k << " " << i;
      }
      for (std::size_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(part[i], Value<float>(static_cast<int>(i / kEach), i % kEach % 100)) << k;
      }
    }
  });
}

// Counts by a rule: parts between grains, in rank order, which transfers take as they take a list.
TEST_F(CollectivesTest, CutsBetweenGrains) {
  for (const std::int64_t length : {0, 1, 31, 32, 33, 1000}) {
    for (const std::int64_t grain : {1, 7, 32}) {
      std::int64_t next = 0;
      std::vector<std::int64_t> list;
      for (int rank = 0; rank < world_.Size(); ++rank) {
        const Part part = PartOfGrains(length, grain, rank, world_.Size());
        EXPECT_EQ(part.begin, next);
        EXPECT_TRUE(part.begin % grain == 0 || part.begin == length);
        next = part.end;
        list.push_back(part.Size());
      }
      EXPECT_EQ(next, length);
      const Counts cut = Counts::Cut(length, grain), listed(list);
      EXPECT_EQ(cut.Largest(world_.Size()), *std::max_element(list.begin(), list.end()));
      EXPECT_EQ(listed.Largest(world_.Size()), cut.Largest(world_.Size()));
      std::vector<float> got(static_cast<std::size_t>(length));
      const Part mine = PartOfGrains(length, grain, world_.Rank(), world_.Size());
      for (auto i = mine.begin; i < mine.end; ++i) got[static_cast<std::size_t>(i)] = float(i);
      Collectives(world_, Group::kShard, ledger_)
          .AllGatherInPlace(Dtype::kFloat32, got.data(), cut);
      for (std::int64_t i = 0; i < length; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], i);
    }
  }
}

// Records in the ledger of started and exchanged transfers, on one group of all ranks.
TEST_F(CollectivesTest, RecordsTheWholeOperand) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  const Collectives group(world_, Group::kShard, ledger_);
  const auto counts = UnevenCounts(group.Size(), 10);
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  const auto own = counts[static_cast<std::size_t>(group.Rank())];
  std::vector<float> from(static_cast<std::size_t>(total)), to(from);
  std::vector<float> taken(static_cast<std::size_t>(own * group.Size()));
  test::counted_mpi::Reset();
  group.StartAllGather(Dtype::kFloat32, from.data(), to.data(), counts).Wait();
  group.StartAllGatherInPlace(Dtype::kFloat32, to.data(), counts).Wait();
  group.StartReduceScatterInPlace(Dtype::kFloat32, to.data(), counts).Wait();
  group.AllToAll(Dtype::kFloat32, from.data(), taken.data(), counts);
  const auto expect = [&](Function function, Transfer transfer, int calls) {
    const Traffic& traffic = ledger_.At(Group::kShard, transfer);
    const auto counted = test::counted_mpi::Of(function, world_.Handle());
    EXPECT_EQ(counted.calls, calls) << NameOf(transfer);
    EXPECT_EQ(counted.bytes, calls * 4 * total) << NameOf(transfer);
    EXPECT_EQ(traffic.calls, calls) << NameOf(transfer);
    EXPECT_EQ(traffic.payload, calls * 4 * total) << NameOf(transfer);
    EXPECT_DOUBLE_EQ(traffic.moved, Moved(transfer, group.Size(), traffic.payload));
  };
  expect(Function::kIallgatherv, Transfer::kAllGather, 2);
  expect(Function::kIreduceScatter, Transfer::kReduceScatter, 1);
  expect(Function::kAlltoallv, Transfer::kAllToAll, 1);
}

TEST_F(CollectivesTest, Broadcasts) {
  OnEveryGroup([](const Collectives& group) {
    const int root = group.Size() - 1;
    std::vector<double> values(100, group.Rank());
    group.Broadcast(Dtype::kFloat64, values.data(), 100, root);
    EXPECT_EQ(values, std::vector<double>(100, root));
  });
}

TEST_F(CollectivesTest, MessagesArriveInOrder) {
  OnEveryGroup([](const Collectives& group) {
    if (group.Size() == 1) return;
    // Around the ring: two of one tag, one of another posted first, and an empty one.
    const int next = (group.Rank() + 1) % group.Size();
    const int last = (group.Rank() + group.Size() - 1) % group.Size();
    std::vector<float> got(3, -1), sent = {1.0F + static_cast<float>(group.Rank()), 20, 300};
    std::vector<Request> requests;
    requests.push_back(group.StartReceive(Dtype::kFloat32, &got[2], 1, last, 9));
    requests.push_back(group.StartReceive(Dtype::kFloat32, &got[0], 1, last, 4));
    requests.push_back(group.StartReceive(Dtype::kFloat32, &got[1], 1, last, 4));
    requests.push_back(group.StartReceive(Dtype::kFloat32, nullptr, 0, last, 5));
    requests.push_back(group.StartSend(Dtype::kFloat32, &sent[0], 1, next, 4));
    requests.push_back(group.StartSend(Dtype::kFloat32, &sent[1], 1, next, 4));
    requests.push_back(group.StartSend(Dtype::kFloat32, &sent[2], 1, next, 9));
    requests.push_back(group.StartSend(Dtype::kFloat32, nullptr, 0, next, 5));
    for (Request& request : requests) {
      while (!request.Test()) std::this_thread::yield();
      EXPECT_TRUE(request.Complete());
      request.Wait();  // returns at once, and records nothing more
    }
    EXPECT_EQ(got, (std::vector<float>{1.0F + static_cast<float>(last), 20, 300}));
  });
  const std::int64_t groups = world_.Size() - std::max(world_.Rank(), 1);  // of two and more
  EXPECT_EQ(Of(Transfer::kSend).calls, 4 * groups);
  EXPECT_EQ(Of(Transfer::kReceive).calls, 4 * groups);
  EXPECT_EQ(Of(Transfer::kSend).payload, 12 * groups);
  EXPECT_DOUBLE_EQ(Of(Transfer::kSend).moved, 12.0 * static_cast<double>(groups));
  EXPECT_DOUBLE_EQ(Of(Transfer::kReceive).moved, 0);
}

TEST_F(CollectivesTest, ShiftsGoAroundTheRing) {
  OnEveryGroup([](const Collectives& group) {
    if (group.Size() == 1) return;
    const auto values = [](int rank) {
      return std::vector<float>(static_cast<std::size_t>(rank + 1), static_cast<float>(rank));
    };
    const int rank = group.Rank(), last = (rank + group.Size() - 1) % group.Size();
    const std::vector<float> sent = values(rank);
    std::vector<float> got(values(last).size(), -1);
    auto [out, in] =
        group.StartShift(Dtype::kFloat32, sent.data(), rank + 1, got.data(), last + 1, 3);
    in.Wait();
    out.Wait();
    EXPECT_EQ(got, values(last));
  });
}

TEST_F(CollectivesTest, AGroupOfOneCopiesAndRecordsNothing) {
  const Collectives alone;
  const Communicator self = Communicator::Adopt(MPI_COMM_SELF);
  const Collectives one(self, Group::kTensor, ledger_);
  for (const Collectives& group : {alone, one}) {
    const std::vector<std::int64_t> counts = {2};
    std::vector<float> from = {1, 2}, to = {0, 0};
    group.ReduceScatter(Dtype::kFloat32, from.data(), to.data(), counts);
    EXPECT_EQ(to, from);
    from = {3, 4};
    group.AllGather(Dtype::kFloat32, from.data(), to.data(), counts);
    EXPECT_EQ(to, from);
    group.AllGatherInPlace(Dtype::kFloat32, to.data(), counts);
    EXPECT_TRUE(group.StartAllGatherInPlace(Dtype::kFloat32, to.data(), counts).Complete());
    EXPECT_TRUE(group.StartReduceScatterInPlace(Dtype::kFloat32, to.data(), counts).Complete());
    EXPECT_EQ(to, from);
    from = {5, 6};
    group.AllToAll(Dtype::kFloat32, from.data(), to.data(), counts);
    EXPECT_EQ(to, from);
    from = {7, 8};
    EXPECT_TRUE(group.StartAllGather(Dtype::kFloat32, from.data(), to.data(), counts).Complete());
    EXPECT_EQ(to, from);
    group.AllReduce(Dtype::kFloat32, to.data(), 2);
    EXPECT_TRUE(group.StartAllReduce(Dtype::kFloat32, to.data(), 2).Test());
    group.Broadcast(Dtype::kFloat32, to.data(), 2, 0);
    EXPECT_EQ(to, from);
    EXPECT_THROW(group.StartSend(Dtype::kFloat32, to.data(), 2, 0, 0), Error);
    EXPECT_THROW(group.StartReceive(Dtype::kFloat32, to.data(), 2, 0, 0), Error);
  }
  for (int kind = 0; kind < kTransfers; ++kind) {
    EXPECT_EQ(Of(static_cast<Transfer>(kind)).calls, 0);
  }
}

TEST_F(CollectivesTest, HiddenIsUntilTheWaitBegins) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  using std::chrono::milliseconds;
  const Collectives group(world_, Group::kTensor, ledger_);
  std::vector<float> values(1000, 1);
  const double before = Seconds();
  Request request = group.StartAllReduce(Dtype::kFloat32, values.data(), 1000);
  EXPECT_GE(request.Started(), before);
  std::this_thread::sleep_for(milliseconds(30));
  const double begin = Seconds();
  request.Wait();
  const double seconds = Seconds() - begin;
  const Traffic& traffic = Of(Transfer::kAllReduce);
  EXPECT_EQ(traffic.calls, 1);
  EXPECT_GE(traffic.seconds_hidden, 0.03);
  EXPECT_LE(traffic.seconds_hidden, begin + seconds - before);
  EXPECT_GT(traffic.seconds_waited, 0);
  EXPECT_LE(traffic.seconds_waited, seconds);
  EXPECT_DOUBLE_EQ(ledger_.SecondsWaited(Group::kTensor), traffic.seconds_waited);

  // Awaited in turn: hidden only until the caller stopped computing.
  ledger_.Clear();
  request = group.StartAllReduce(Dtype::kFloat32, values.data(), 1000);
  const double since = Seconds();
  const double hidden = since - request.Started();
  std::this_thread::sleep_for(milliseconds(30));
  request.Wait(since);
  EXPECT_DOUBLE_EQ(Of(Transfer::kAllReduce).seconds_hidden, hidden);

  // Blocking: nothing is hidden.
  ledger_.Clear();
  group.AllReduce(Dtype::kFloat32, values.data(), 1000);
  EXPECT_DOUBLE_EQ(Of(Transfer::kAllReduce).seconds_hidden, 0);
  EXPECT_GT(Of(Transfer::kAllReduce).seconds_waited, 0);
}

TEST_F(CollectivesTest, LongOperandsTravelInPieces) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  const Collectives group(world_, Group::kTensor, ledger_);
  const std::int64_t count = (std::int64_t{1} << 31) + 5;
  // Addresses alone: MPI is not really called, and nothing touches the memory.
  const auto bytes = static_cast<std::size_t>(4 * count);
  void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  test::counted_mpi::Reset();
  test::counted_mpi::Forward(false);
  group.AllReduce(Dtype::kFloat32, data, count);
  group.Broadcast(Dtype::kFloat32, data, count, 0);
  test::counted_mpi::Forward(true);
  for (const Function function : {Function::kAllreduce, Function::kBcast}) {
    const auto counted = test::counted_mpi::Of(function, world_.Handle());
    EXPECT_EQ(counted.calls, 3);
    EXPECT_EQ(counted.bytes, 4 * count);
    EXPECT_EQ(counted.last_data, ElementAt(data, Dtype::kFloat32, std::int64_t{1} << 31));
  }
  EXPECT_EQ(Of(Transfer::kAllReduce).calls, 1);
  EXPECT_EQ(Of(Transfer::kAllReduce).payload, 4 * count);
  munmap(data, bytes);
}

TEST_F(CollectivesTest, CountsBeyondMpiAreRefused) {
  if (world_.Size() == 1) GTEST_SKIP() << "nothing is transferred";
  const Collectives group(world_, Group::kTensor, ledger_);
  const std::int64_t many = std::int64_t{1} << 31;
  float none = 0;
  const auto message = [](const std::function<void()>& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kFailed);
      return error.what();
    }
    return "no error";
  };
  const std::string hint =
      "\n  Make the operand smaller: a smaller data.micro_batch, more ranks along grid.tensor, or "
      "a smaller grid.bucket_mib.";
  const std::string tail = " of 2147483648 elements in one call: an MPI count ends at 2147483647";
  EXPECT_EQ(message([&] { group.StartAllReduce(Dtype::kFloat32, &none, many); }),
            "all-reduce" + tail + hint);
  EXPECT_EQ(message([&] { group.StartSend(Dtype::kFloat32, &none, many, 0, 0); }),
            "send" + tail + hint);
  // Each part fits, all together do not: starts are counts too.
  std::vector<std::int64_t> counts(static_cast<std::size_t>(world_.Size()), 0);
  counts[0] = counts[1] = many / 2;
  EXPECT_EQ(message([&] { group.ReduceScatter(Dtype::kFloat32, &none, &none, counts); }),
            "reduce-scatter" + tail + hint);
  EXPECT_EQ(message([&] { group.AllGatherInPlace(Dtype::kFloat32, &none, counts); }),
            "all-gather" + tail + hint);
  EXPECT_EQ(message([&] { group.StartAllGatherInPlace(Dtype::kFloat32, &none, counts); }),
            "all-gather" + tail + hint);
  EXPECT_EQ(message([&] { group.StartReduceScatterInPlace(Dtype::kFloat32, &none, counts); }),
            "reduce-scatter" + tail + hint);
  EXPECT_EQ(message([&] { group.AllToAll(Dtype::kFloat32, &none, &none, counts); }),
            "all-to-all" + tail + hint);
  // Each rank's message fits, their sum at rank 0 does not: all ranks say so.
  std::fill(counts.begin(), counts.end(), 0);
  counts[0] = many / world_.Size();
  EXPECT_EQ(message([&] { group.AllToAll(Dtype::kFloat32, &none, &none, counts); }),
            "all-to-all" + tail + hint);
  counts.pop_back();
  EXPECT_NE(message([&] {
              group.AllGather(Dtype::kFloat32, &none, &none, counts);
            }).find("all-gather with 7 counts in a group of 8"),
            std::string::npos);
}

// Ledger: sums by group and kind of transfer, and the bytes that a good algorithm moves.

TEST(Ledger, SumsByGroupAndKind) {
  Ledger ledger;
  ledger.Record(Group::kTensor, Transfer::kAllReduce, 4, 1000, 0.5, 0.25);
  ledger.Record(Group::kTensor, Transfer::kAllReduce, 4, 600, 1, 0);
  ledger.Record(Group::kTensor, Transfer::kAllGather, 4, 400, 2, 0);
  ledger.Record(Group::kData, Transfer::kAllReduce, 2, 8, 4, 8);
  const Traffic& traffic = ledger.At(Group::kTensor, Transfer::kAllReduce);
  EXPECT_EQ(traffic.calls, 2);
  EXPECT_EQ(traffic.payload, 1600);
  EXPECT_DOUBLE_EQ(traffic.moved, 2400);
  EXPECT_DOUBLE_EQ(traffic.seconds_waited, 1.5);
  EXPECT_DOUBLE_EQ(traffic.seconds_hidden, 0.25);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kTensor), 3.5);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kData), 4);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kPipeline), 0);
  ledger.AddWaited(Group::kTensor, 0.5);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kTensor), 4);
  EXPECT_DOUBLE_EQ(ledger.At(Group::kTensor, Transfer::kAllReduce).seconds_waited, 1.5);
  ledger.Clear();
  EXPECT_EQ(ledger.At(Group::kTensor, Transfer::kAllReduce).calls, 0);
  EXPECT_DOUBLE_EQ(ledger.SecondsWaited(Group::kTensor), 0);
}

TEST(Ledger, BytesMovedFollowTheKind) {
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllReduce, 4, 1000), 1500);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kReduceScatter, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllGather, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllToAll, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kBroadcast, 4, 1000), 750);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kSend, 4, 1000), 1000);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kReceive, 4, 1000), 0);
  EXPECT_DOUBLE_EQ(Moved(Transfer::kAllReduce, 1, 1000), 0);
}

TEST(Ledger, HasNames) {
  EXPECT_EQ(std::string(NameOf(Group::kKeyValue)), "key/value");
  EXPECT_EQ(std::string(NameOf(Group::kData)), "data");
  EXPECT_EQ(std::string(NameOf(Transfer::kReduceScatter)), "reduce-scatter");
  EXPECT_EQ(std::string(NameOf(Transfer::kReceive)), "receive");
  EXPECT_EQ(std::string(NameOf(Transfer::kAllToAll)), "all-to-all");
  std::set<std::string> groups, transfers;
  for (int i = 0; i < kGroups; ++i) groups.insert(NameOf(static_cast<Group>(i)));
  for (int i = 0; i < kTransfers; ++i) transfers.insert(NameOf(static_cast<Transfer>(i)));
  EXPECT_EQ(groups, (std::set<std::string>{"world", "data", "shard", "context", "tensor",
                                           "pipeline", "embedding", "key/value", "replica"}));
  EXPECT_EQ(transfers.size(), static_cast<std::size_t>(kTransfers));
  EXPECT_EQ(transfers.count("?"), 0u);
}

}  // namespace
}  // namespace trireme::comm
