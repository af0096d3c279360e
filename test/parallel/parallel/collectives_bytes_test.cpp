// The ledger against MPI: what tensor exchanges, buckets, shared gradients and messages between
// stages are said to transfer is what MPI was given, group by group and kind by kind.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "counted_mpi.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/shared_gradients.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Transfer;
using kernels::GradientSum;
using test::counted_mpi::Function;

constexpr std::int64_t kCollectivesBytesRows = 13, kCollectivesBytesColumns = 6;

void Exchange(const TensorGroup& group) {
  std::vector<float> values(kCollectivesBytesRows * kCollectivesBytesColumns, 1),
      apart(kCollectivesBytesRows * kCollectivesBytesColumns, 1);
  const kernels::Matrix full{values.data(), Dtype::kFloat32, kCollectivesBytesRows,
                             kCollectivesBytesColumns, kCollectivesBytesColumns};
  const std::int64_t rows = group.Rows(kCollectivesBytesRows).Size();
  const kernels::Matrix shard{group.Sharded() ? apart.data() : values.data(), Dtype::kFloat32, rows,
                              kCollectivesBytesColumns, kCollectivesBytesColumns};
  group.Reduce(full, shard);
  group.Gather(shard, full);
  group.StartReduce(full, shard).Wait();
}

void SumGradients(const comm::ProcessGrid& grid) {
  const auto add = [](kernels::ParameterList& list, const char* name, GradientSum sum) {
    kernels::Parameter parameter;
    parameter.name = name;
    parameter.shape = {40, 5};
    parameter.sum = sum;
    list.Add(parameter);
  };
  kernels::ParameterList list;
  if (grid.FirstStage() || grid.LastStage()) add(list, "embedding", GradientSum::kTied);
  add(list, "norm", GradientSum::kTensor);
  add(list, "ffn.norm", GradientSum::kTensor);
  ShardSetup setup;
  setup.bucket_bytes = 1024;
  kernels::Registry registry(list, Dtype::kFloat64, PlanOwnership(list, Dtype::kFloat64, setup));
  GradientBuckets buckets(grid.Over(Group::kData), {}, registry, {}, setup, nullptr);
  buckets.Begin();
  buckets.Ready(0);
  buckets.Wait();
  SharedGradients shared(registry, {{GradientSum::kTensor, grid.Over(Group::kTensor)},
                                    {GradientSum::kTied, grid.Over(Group::kEmbedding)}});
  shared.Sum();
}

void PassOn(const comm::Collectives& stages) {
  std::vector<float> values(77, 1);
  if (stages.Rank() + 1 < stages.Size()) {
    stages.StartSend(Dtype::kFloat32, values.data(), 77, stages.Rank() + 1, 3).Wait();
  }
  if (stages.Rank() > 0) {
    stages.StartReceive(Dtype::kFloat32, values.data(), 77, stages.Rank() - 1, 3).Wait();
  }
  stages.Broadcast(Dtype::kFloat32, values.data(), 11, 0);
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < stages.Size(); ++rank) counts.push_back(rank);
  stages.AllGather(Dtype::kFloat32, values.data() + 40, values.data(), counts);
}

// The exchanges of shards: parts gathered, sums scattered, each started before the other ends.
void ExchangeShards(const comm::Collectives& group) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < group.Size(); ++rank) counts.push_back(50 + rank);
  const auto whole = static_cast<std::size_t>(60 * group.Size());
  std::vector<double> from(whole, 1), to(whole, 1), in_place(whole, 1), sums(whole, 1);
  comm::Request requests[] = {
      group.StartAllGather(Dtype::kFloat64, from.data(), to.data(), counts),
      group.StartAllGatherInPlace(Dtype::kFloat64, in_place.data(), counts),
      group.StartReduceScatterInPlace(Dtype::kFloat64, sums.data(), counts)};
  for (comm::Request& request : requests) request.Wait();
  group.AllToAll(Dtype::kFloat64, from.data(), to.data(), counts);
}

// MPI's functions behind each kind of transfer.
std::vector<Function> FunctionsOf(Transfer transfer) {
  switch (transfer) {
    case Transfer::kAllReduce:
      return {Function::kAllreduce, Function::kIallreduce};
    case Transfer::kReduceScatter:
      return {Function::kReduceScatter, Function::kIreduceScatter};
    case Transfer::kAllGather:
      return {Function::kAllgatherv, Function::kIallgatherv};
    case Transfer::kAllToAll:
      return {Function::kAlltoallv};
    case Transfer::kBroadcast:
      return {Function::kBcast};
    case Transfer::kSend:
      return {Function::kIsend};
    case Transfer::kReceive:
      return {Function::kIrecv};
  }
  return {};
}

// Compares every group and kind; returns the bytes of all.
std::int64_t ExpectLedgerIsRight(const comm::ProcessGrid& grid) {
  const std::pair<Group, MPI_Comm> groups[] = {
      {Group::kWorld, grid.World().Handle()},        {Group::kData, grid.SameShard().Handle()},
      {Group::kShard, grid.Shard().Handle()},        {Group::kContext, grid.Context().Handle()},
      {Group::kTensor, grid.Tensor().Handle()},      {Group::kPipeline, grid.Pipeline().Handle()},
      {Group::kEmbedding, grid.Embedding().Handle()}};
  std::int64_t all = 0;
  for (const auto& [group, handle] : groups) {
    for (int kind = 0; kind < comm::kTransfers; ++kind) {
      const auto transfer = static_cast<Transfer>(kind);
      std::int64_t calls = 0, bytes = 0;
      for (const Function function : FunctionsOf(transfer)) {
        calls += test::counted_mpi::Of(function, handle).calls;
        bytes += test::counted_mpi::Of(function, handle).bytes;
      }
      const comm::Traffic& traffic = grid.Traffic().At(group, transfer);
      EXPECT_EQ(traffic.payload, bytes) << comm::NameOf(group) << " " << comm::NameOf(transfer);
      EXPECT_EQ(traffic.calls, calls) << comm::NameOf(group) << " " << comm::NameOf(transfer);
      all += bytes;
    }
  }
  return all;
}

TEST(CollectivesBytes, LedgerIsWhatMpiWasGiven) {
  const comm::Communicator world = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const comm::GridShape shapes[] = {{2, 1, 1, 2}, {1, 2, 1, 2}, {2, 2, 1, 1},
                                    {1, 1, 1, 4}, {4, 1, 1, 1}, {1, 4, 1, 1},
                                    {1, 2, 2, 1}, {2, 1, 2, 1}, {1, 1, 4, 1}};
  for (const comm::GridShape& shape : shapes) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(comm::Describe(shape));
      comm::GridOptions options;
      options.sequence_parallel = sequence_parallel;
      options.sharding = sequence_parallel ? comm::Sharding::kGradients : comm::Sharding::kNone;
      // All ranks, or pairs of them.
      options.shard_group = shape.data * shape.context == 4 ? 2 : 0;
      const comm::ProcessGrid grid(world, shape, options);
      test::counted_mpi::Reset();
      Exchange(TensorGroup(grid.Over(Group::kTensor), sequence_parallel));
      SumGradients(grid);
      PassOn(grid.Over(Group::kPipeline));
      ExchangeShards(grid.Over(Group::kShard));
      ExchangeShards(grid.Over(Group::kContext));
      float most = 0;
      grid.Over(Group::kWorld).AllReduce(Dtype::kFloat32, &most, 1, comm::Reduction::kMax);
      EXPECT_GT(ExpectLedgerIsRight(grid), 500);
    }
  }
}

TEST(CollectivesBytes, WhatGoesAroundTheLedgerIsNoticed) {
  const comm::Communicator world = comm::Communicator::Adopt(MPI_COMM_WORLD);
  test::counted_mpi::Reset();
  world.Sum(1.0);
  EXPECT_EQ(test::counted_mpi::Of(Function::kAllreduce, world.Handle()).bytes, 8);
  EXPECT_EQ(test::counted_mpi::Of(Function::kAllreduce).calls, 1);
  EXPECT_EQ(test::counted_mpi::Of(Function::kBcast).calls, 0);
}

}  // namespace
}  // namespace trireme::parallel
