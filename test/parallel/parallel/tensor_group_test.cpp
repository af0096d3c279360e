// TensorGroup on groups of 1 to 4 ranks: the stream whole or cut by rows, rows that do not divide
// and fewer rows than ranks.
#include "trireme/parallel/tensor_group.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::parallel {
namespace {

using kernels::Matrix;

constexpr std::int64_t kColumns = 5;
constexpr std::int64_t kRows[] = {0, 1, 3, 8, 10};

class TensorGroupTest : public testing::Test {
 protected:
  // Runs `body` on the groups of the first 1, 2, ... ranks, with and without sequence parallelism.
  void OnEveryGroup(const std::function<void(const TensorGroup&)>& body) {
    for (int size = 1; size <= world_.Size(); ++size) {
      const comm::Communicator group = world_.Split(world_.Rank() < size ? 0 : 1, world_.Rank());
      if (world_.Rank() >= size) continue;
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE("a group of " + std::to_string(size) + (sequence_parallel ? ", sharded" : ""));
        body(TensorGroup({group, comm::Group::kTensor, ledger_}, sequence_parallel));
      }
    }
  }

  comm::Ledger ledger_;
  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
};

Matrix View(std::vector<double>& values, std::int64_t rows) {
  return {values.data(), Dtype::kFloat64, rows, kColumns, kColumns};
}

std::size_t Elements(std::int64_t rows) { return static_cast<std::size_t>(rows * kColumns); }

TEST_F(TensorGroupTest, KnowsItsPart) {
  EXPECT_EQ(TensorGroup().Size(), 1);
  EXPECT_FALSE(TensorGroup().Sharded());
  OnEveryGroup([](const TensorGroup& group) {
    EXPECT_EQ(group.Slice(10).begin, 10 * group.Rank() / group.Size());
    EXPECT_EQ(group.Rows(10).Size(), group.Sharded() ? group.Slice(10).Size() : 10);
    EXPECT_TRUE(group.Size() > 1 || !group.Sharded());
  });
}

TEST_F(TensorGroupTest, ReduceAddsUpAllRanks) {
  OnEveryGroup([](const TensorGroup& group) {
    for (const std::int64_t rows : kRows) {
      for (const bool start : {false, true}) {
        const Part part = group.Rows(rows);
        std::vector<double> whole(Elements(rows)), apart(Elements(part.Size()), -1);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          whole[i] = static_cast<double>(i + 1) * (group.Rank() + 1);
        }
        const Matrix full = View(whole, rows);
        const Matrix shard = group.Sharded() ? View(apart, part.Size()) : full;
        if (start) {
          group.StartReduce(full, shard).Wait();
        } else {
          group.Reduce(full, shard);
        }
        const int ranks = group.Size() * (group.Size() + 1) / 2;
        for (std::int64_t i = 0; i < shard.Size(); ++i) {
          EXPECT_EQ(shard.As<double>()[i],
                    static_cast<double>(part.begin * kColumns + i + 1) * ranks);
        }
      }
    }
  });
}

TEST_F(TensorGroupTest, GatherMakesItWhole) {
  OnEveryGroup([](const TensorGroup& group) {
    for (const std::int64_t rows : kRows) {
      const Part part = group.Rows(rows);
      std::vector<double> whole(Elements(rows), -1), apart(Elements(part.Size()));
      const Matrix full = View(whole, rows);
      const Matrix shard = group.Sharded() ? View(apart, part.Size()) : full;
      for (std::int64_t i = 0; i < shard.Size(); ++i) {
        shard.As<double>()[i] = static_cast<double>(part.begin * kColumns + i);
      }
      group.Gather(shard, full);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(whole[i], static_cast<double>(i));
      }
    }
  });
}

TEST_F(TensorGroupTest, ShardingReplacesTheKindOfTransfer) {
  const TensorGroup whole({world_, comm::Group::kTensor, ledger_}, false);
  const TensorGroup sharded({world_, comm::Group::kTensor, ledger_}, true);
  std::vector<double> values(Elements(10), 1);
  const Matrix full = View(values, 10);
  const Part part = sharded.Rows(10);
  const auto payload = [&](comm::Transfer transfer) {
    return ledger_.At(comm::Group::kTensor, transfer).payload;
  };
  const std::int64_t bytes = 10 * kColumns * 8;
  whole.Reduce(full, full);
  whole.Gather(full, full);
  EXPECT_EQ(payload(comm::Transfer::kAllReduce), bytes);
  EXPECT_EQ(payload(comm::Transfer::kAllGather), 0);
  std::vector<double> apart(Elements(part.Size()));
  const Matrix shard = View(apart, part.Size());
  sharded.Reduce(full, shard);
  sharded.Gather(shard, full);
  EXPECT_EQ(payload(comm::Transfer::kAllReduce), bytes);
  EXPECT_EQ(payload(comm::Transfer::kReduceScatter), bytes);
  EXPECT_EQ(payload(comm::Transfer::kAllGather), bytes);
}

TEST_F(TensorGroupTest, WrongMatricesAreRefused) {
  const TensorGroup whole({world_, comm::Group::kTensor, ledger_}, false);
  const TensorGroup sharded({world_, comm::Group::kTensor, ledger_}, true);
  std::vector<double> values(Elements(10)), other(Elements(10));
  const Matrix full = View(values, 10);
  EXPECT_THROW(whole.Reduce(full, View(other, 10)), Error);
  EXPECT_THROW(whole.Gather(View(other, 10), full), Error);
  EXPECT_THROW(sharded.Reduce(full, full), Error);
  EXPECT_THROW(sharded.Gather(full.Rows(0, 7), full), Error);
  const Matrix narrow = full.Columns(0, 3);
  EXPECT_THROW(whole.Reduce(narrow, narrow), Error);
}

}  // namespace
}  // namespace trireme::parallel
