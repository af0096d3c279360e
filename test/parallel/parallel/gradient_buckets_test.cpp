// Sums of gradients and of a tensor group, and the bytes that they move.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "counted_mpi.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/parallel/gradient_buckets.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/parallel/shared_gradients.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {
namespace {

using comm::Group;
using comm::Transfer;
using kernels::GradientSum;
using kernels::Matrix;
using test::counted_mpi::Function;

// GradientBuckets: sums, what is in flight when, parameters held elsewhere, values that are not
// finite.

constexpr std::int64_t kBucketBytes = 4000;  // a layer's

class BucketsTest : public testing::Test {
 protected:
  // Adds a parameter of `count` elements, 0: held by other ranks.
  void Add(const std::string& name, std::int64_t count) {
    kernels::Parameter parameter;
    parameter.name = name;
    parameter.shape = {std::max(count, std::int64_t{1})};
    parameter.end = count;
    list_.Add(parameter);
  }
  GradientBuckets Buckets(const comm::Collectives& data) {
    return {data, {}, registry_, {}, {}, nullptr};
  }
  // Four layers, with parameters of other stages before, among and behind them.
  void AddLayers() {
    Add("before", 0);
    for (int layer = 0; layer < 4; ++layer) {
      Add("layers." + std::to_string(layer), 1000 + 7 * layer);
      Add("elsewhere." + std::to_string(layer), 0);
    }
    Fill(kBucketBytes);
  }
  void Fill(std::int64_t bucket_bytes) {
    ShardSetup setup;
    setup.bucket_bytes = bucket_bytes;
    registry_ =
        kernels::Registry(list_, Dtype::kFloat32, PlanOwnership(list_, Dtype::kFloat32, setup));
    for (std::int64_t i = 0; i < registry_.Size(); ++i) {
      Gradients()[i] = static_cast<float>((i % 1000) * (world_.Rank() + 1));
    }
  }
  float* Gradients() { return static_cast<float*>(registry_.Gradients()); }
  // Every flat offset at which a parameter starts, from the last: as a backward pass announces
  // them.
  std::vector<std::int64_t> BackwardOrder() const {
    std::vector<std::int64_t> offsets;
    for (const kernels::Parameter& parameter : registry_.Parameters()) {
      if (parameter.begin < parameter.end) offsets.push_back(parameter.offset);
    }
    std::reverse(offsets.begin(), offsets.end());
    return offsets;
  }
  void ExpectSummed() {
    const auto ranks = static_cast<float>(world_.Size() * (world_.Size() + 1) / 2);
    for (std::int64_t i = 0; i < registry_.Size(); ++i) {
      ASSERT_EQ(Gradients()[i], static_cast<float>(i % 1000) * ranks) << i;
    }
  }
  const comm::Traffic& Traffic() const { return ledger_.At(Group::kData, Transfer::kAllReduce); }

  comm::Ledger ledger_;
  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  comm::Collectives data_{world_, Group::kData, ledger_};
  kernels::ParameterList list_;
  kernels::Registry registry_;
};

TEST_F(BucketsTest, AreInFlightBeforeTheBackwardPassEnds) {
  AddLayers();
  GradientBuckets buckets = Buckets(data_);
  EXPECT_EQ(buckets.Count(), 4u);
  buckets.Begin();
  EXPECT_EQ(buckets.FirstStart(), 0);
  EXPECT_EQ(buckets.LastReady(), 0);
  const double begin = Seconds();
  for (const std::int64_t offset : BackwardOrder()) buckets.Ready(offset);
  EXPECT_GE(buckets.FirstStart(), begin);
  EXPECT_LT(buckets.FirstStart(), buckets.LastReady());
  EXPECT_EQ(buckets.StartedBeforeEnd(), 3);  // all but that of the first layer
  buckets.Wait();
  ExpectSummed();
  EXPECT_EQ(Traffic().calls, static_cast<std::int64_t>(buckets.Count()));
  EXPECT_EQ(Traffic().payload, registry_.Size() * 4);
  EXPECT_GT(Traffic().seconds_hidden, 0);
  EXPECT_LE(Traffic().seconds_waited, buckets.SecondsWaited());
  EXPECT_EQ(buckets.NotFinite(), "");

  // The next step starts afresh; with all ready at once nothing was in flight before.
  Fill(kBucketBytes);
  GradientBuckets again = Buckets(data_);
  again.Begin();
  again.Ready(0);
  EXPECT_EQ(again.StartedBeforeEnd(), 0);
  EXPECT_GE(again.FirstStart(), again.LastReady());
  again.Wait();
  ExpectSummed();
  again.Begin();
  EXPECT_EQ(again.FirstStart(), 0);
}

// 16 MiB under way at once: a larger bucket is complete before the next one starts.
TEST_F(BucketsTest, HoldBoundedMemoryOfMpi) {
  constexpr std::int64_t large = std::int64_t{5} << 20;  // elements
  for (int layer = 0; layer < 3; ++layer) Add("layers." + std::to_string(layer), large);
  Fill(4 * large);
  GradientBuckets buckets = Buckets(data_);
  ASSERT_EQ(buckets.Count(), 3u);
  const int ranks = world_.Size();
  EXPECT_EQ(buckets.LibraryBytes(), (ranks == 1 ? 0 : ranks == 3 ? 2 : 1) * 4 * large);
  buckets.Begin();
  buckets.Ready(BackwardOrder()[1]);
  EXPECT_GE(Traffic().calls, ranks == 1 ? 0 : 1);
  buckets.Ready(0);
  EXPECT_GE(Traffic().calls, ranks == 1 ? 0 : 2);
  buckets.Wait();
  ExpectSummed();
}

TEST_F(BucketsTest, AreCutWhereSomethingBecomesReady) {
  AddLayers();
  // The last layer has 4,084 bytes; with the gap down to the parameter before it, which other ranks
  // hold, it would pass 4,100, and wait there for the layer before.
  Fill(4085);
  GradientBuckets buckets = Buckets(data_);
  EXPECT_EQ(buckets.Count(), 3u);
  buckets.Begin();
  const std::vector<std::int64_t> offsets = BackwardOrder();
  buckets.Ready(offsets[0]);
  EXPECT_EQ(buckets.FirstStart(), 0);
  buckets.Ready(offsets[1]);
  EXPECT_GT(buckets.FirstStart(), 0);
  buckets.Ready(0);
  EXPECT_EQ(buckets.StartedBeforeEnd(), 1);
  buckets.Wait();
  ExpectSummed();
}

TEST_F(BucketsTest, ProgressCompletesThem) {
  AddLayers();
  GradientBuckets buckets = Buckets(data_);
  buckets.Begin();
  buckets.Ready(BackwardOrder().front());
  const double begin = Seconds();
  constexpr double kPatience = 20;  // seconds
  while (Traffic().calls == 0 && Seconds() - begin < kPatience) buckets.Progress();
  EXPECT_EQ(Traffic().calls, 1);  // complete and recorded, without a wait
  EXPECT_EQ(Traffic().seconds_waited, 0);
  buckets.Ready(0);
  buckets.Wait();
  ExpectSummed();
}

TEST_F(BucketsTest, AnEmptyStorageHasNone) {
  Add("elsewhere", 0);
  Fill(kBucketBytes);
  GradientBuckets buckets = Buckets(data_);
  EXPECT_EQ(buckets.Count(), 0u);
  buckets.Begin();
  buckets.Ready(0);
  buckets.Progress();
  buckets.Wait();
  EXPECT_EQ(buckets.FirstStart(), 0);
  EXPECT_EQ(buckets.StartedBeforeEnd(), 0);
  EXPECT_EQ(Traffic().calls, 0);
}

TEST_F(BucketsTest, AGroupOfOneTransfersNothingAndStillLooks) {
  AddLayers();
  Gradients()[registry_.Parameters()[3].offset + 5] = std::numeric_limits<float>::quiet_NaN();
  GradientBuckets buckets = Buckets({});
  buckets.Begin();
  for (const std::int64_t offset : BackwardOrder()) buckets.Ready(offset);
  buckets.Wait();
  EXPECT_EQ(buckets.NotFinite(), "layers.1");
  EXPECT_EQ(buckets.FirstStart(), 0);
  EXPECT_EQ(buckets.StartedBeforeEnd(), 0);
}

TEST_F(BucketsTest, ABucketThatWasNeverReadyIsAnError) {
  AddLayers();
  GradientBuckets buckets = Buckets({});
  buckets.Begin();
  buckets.Ready(BackwardOrder().front());
  EXPECT_THROW(buckets.Wait(), Error);
}

TEST(BucketKeys, HaveDefaultsAndRanges) {
  deck::Schema schema;
  Declare(schema);
  ASSERT_NE(schema.Find("grid.prefetch"), nullptr);
  EXPECT_EQ(schema.Find("grid.prefetch")->fallback, "1");
  EXPECT_EQ(schema.Find("grid.prefetch")->range.minimum, 0);
  EXPECT_EQ(schema.Find("grid.prefetch")->range.maximum, 64);
  ASSERT_NE(schema.Find("grid.overlap"), nullptr);
  EXPECT_EQ(schema.Find("grid.overlap")->fallback, "yes");
  EXPECT_NE(schema.Find("grid.bucket_mib"), nullptr);
}

// The ledger against MPI: what tensor exchanges, buckets, shared gradients and messages between
// stages are said to transfer is what MPI was given, group by group and kind by kind.

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

// SharedGradients on two stages of two tensor ranks: who adds up what, in how many messages, and
// what a deliberate mistake leaves out.

constexpr std::int64_t kVocabulary = 7, kDim = 3;

class SharedGradientsTest : public testing::Test {
 protected:
  SharedGradientsTest() : key_value_(grid_.KeyValueGroup(1)) {
    // As a model registers them: two norms a stage, one key matrix a stage, the tied embedding on
    // the first and the last.
    const comm::GridShape at = grid_.Coordinates();
    list_.BeginUnit("embedding.token");
    Add("embedding", {kVocabulary, kDim}, GradientSum::kTied, true, at.tensor);
    for (int stage = 0; stage < 2; ++stage) {
      list_.BeginUnit("blocks." + std::to_string(stage), true);
      const bool here = stage == at.pipeline;
      Add("norm", {kDim}, GradientSum::kTensor, here);
      Add("key", {2, kDim}, GradientSum::kKeyValue, here);
      Add("query", {2, kDim}, GradientSum::kNone, here);
      Add("ffn.norm", {2 * kDim}, GradientSum::kTensor, here);
    }
    Fill({});
  }
  void Fill(const ShardSetup& setup) {
    registry_ =
        kernels::Registry(list_, Dtype::kFloat64, PlanOwnership(list_, Dtype::kFloat64, setup));
    for (const kernels::Parameter& parameter : registry_.Parameters()) {
      for (std::int64_t i = 0; i < parameter.end - parameter.begin; ++i) {
        Gradients()[parameter.offset + i] = Own(world_.Rank(), parameter, i);
      }
    }
  }

  void Add(const char* name, const kernels::Shape& shape, GradientSum sum, bool here,
           int slice = -1) {
    kernels::Parameter parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.sum = sum;
    if (slice >= 0) {
      const Part rows = PartOf(shape[0], slice, 2);
      parameter.begin = rows.begin * shape[1];
      parameter.end = rows.end * shape[1];
    }
    if (!here) parameter.begin = parameter.end = 0;
    list_.Add(parameter);
  }
  double* Gradients() { return static_cast<double*>(registry_.Gradients()); }
  // Gradient that rank `rank` found for an element.
  static double Own(int rank, const kernels::Parameter& parameter, std::int64_t i) {
    return (rank + 1) * 100 + static_cast<double>(parameter.offset + i);
  }
  // The ranks over which a sum goes.
  std::vector<int> Ranks(GradientSum sum) const {
    const int rank = world_.Rank();
    if (sum == GradientSum::kNone) return {rank};
    if (sum == GradientSum::kTied) return {rank % 2, rank % 2 + 2};
    return {rank / 2 * 2, rank / 2 * 2 + 1};
  }
  std::map<GradientSum, comm::Collectives> Groups() {
    return {{GradientSum::kTied, grid_.Over(Group::kEmbedding)},
            {GradientSum::kTensor, grid_.Over(Group::kTensor)},
            {GradientSum::kKeyValue, {key_value_, Group::kKeyValue, grid_.Traffic()}}};
  }
  // Every gradient is its sum, those of kind `but` this rank's own.
  void ExpectSummed(GradientSum but = GradientSum::kNone) {
    for (const kernels::Parameter& parameter : registry_.Parameters()) {
      for (std::int64_t i = 0; i < parameter.end - parameter.begin; ++i) {
        double wanted = 0;
        for (const int rank : Ranks(parameter.sum)) wanted += Own(rank, parameter, i);
        if (parameter.sum == but) wanted = Own(world_.Rank(), parameter, i);
        EXPECT_EQ(Gradients()[parameter.offset + i], wanted) << parameter.name << " " << i;
      }
    }
  }
  const comm::Traffic& Traffic(Group group) {
    return grid_.Traffic().At(group, Transfer::kAllReduce);
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  comm::ProcessGrid grid_{world_, {2, 1, 1, 2}, {.sequence_parallel = true}};
  comm::Communicator key_value_;
  kernels::ParameterList list_;
  kernels::Registry registry_;
};

TEST_F(SharedGradientsTest, EachKindIsSummedOverItsGroup) {
  SharedGradients shared(registry_, Groups());
  // The norms travel packed; a single tensor in place.
  EXPECT_EQ(shared.Bytes(), 128);  // for 3 * kDim values: a buffer takes whole lines
  shared.Sum();
  ExpectSummed();
  EXPECT_EQ(Traffic(Group::kTensor).calls, 1);
  EXPECT_EQ(Traffic(Group::kTensor).payload, 3 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kKeyValue).calls, 1);
  EXPECT_EQ(Traffic(Group::kKeyValue).payload, 2 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kEmbedding).calls, 1);
  const std::int64_t rows = PartOf(kVocabulary, grid_.Coordinates().tensor, 2).Size();
  EXPECT_EQ(Traffic(Group::kEmbedding).payload, rows * kDim * 8);
}

TEST_F(SharedGradientsTest, AMissingGroupLeavesOutItsSumAlone) {
  auto groups = Groups();
  groups.erase(GradientSum::kTensor);
  SharedGradients shared(registry_, groups);
  EXPECT_EQ(shared.Bytes(), 0);
  shared.Sum();
  ExpectSummed(GradientSum::kTensor);
  EXPECT_EQ(Traffic(Group::kTensor).calls, 0);
}

TEST_F(SharedGradientsTest, GroupsOfOneAndMissingGroupsHaveNothingToSum) {
  SharedGradients shared(registry_, {{GradientSum::kTied, comm::Collectives()}});
  shared.Sum();
  EXPECT_EQ(shared.Bytes(), 0);
  for (const kernels::Parameter& parameter : registry_.Parameters()) {
    if (parameter.begin == parameter.end) continue;
    EXPECT_EQ(Gradients()[parameter.offset], Own(world_.Rank(), parameter, 0));
  }
}

// Before pieces are scattered those of tensor ranks are summed, piece by piece; tied ones when they
// have met, where they are owned.
TEST_F(SharedGradientsTest, ShardedPiecesAreSummedOneByOne) {
  ShardSetup setup;
  setup.sharding = comm::Sharding::kOptimizer;
  setup.tensor_ranks = 2;
  setup.bucket_bytes = 1;
  Fill(setup);
  SharedGradients shared(registry_, Groups(), true);
  EXPECT_EQ(shared.Bytes(), 128);  // for 3 * kDim values: a buffer takes whole lines
  const int pieces = static_cast<int>(registry_.Owns().pieces.size());
  EXPECT_EQ(pieces, 2);  // the table, this stage's block
  shared.SumPiece(0);
  EXPECT_EQ(Traffic(Group::kTensor).calls, 0);
  shared.SumPiece(1);
  EXPECT_EQ(Traffic(Group::kTensor).payload, 3 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kKeyValue).payload, 2 * kDim * 8);
  EXPECT_EQ(Traffic(Group::kEmbedding).calls, 0);
  ExpectSummed(GradientSum::kTied);
  shared.Sum();
  ExpectSummed();
  EXPECT_EQ(Traffic(Group::kTensor).calls, 1);
  EXPECT_EQ(Traffic(Group::kKeyValue).calls, 1);
  EXPECT_EQ(Traffic(Group::kEmbedding).calls, 1);
}

// TensorGroup on groups of 1 to 4 ranks: the stream whole or cut by rows, rows that do not divide
// and fewer rows than ranks.

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
