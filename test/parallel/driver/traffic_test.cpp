// Bytes that one training step moves, group by group: exactly what follows from the sizes of model
// and layout (doc/parallelism.md), and nothing that the ledger does not know.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>

#include "counted_mpi.hpp"
#include "expected_traffic.hpp"
#include "layout_fixture.hpp"

namespace trireme::test {
namespace {

using comm::Group;
using comm::Transfer;
using counted_mpi::Function;

constexpr double kRounding = 1e-12;  // relative, of sums of `moved`

constexpr const char* kGpt = "heads=8\nkv_heads=4\nhead_dim=3\ndim=12\nlayers=5\nffn=17\n";
constexpr const char* kLlama =
    "heads=8\nkv_heads=1\nhead_dim=4\ndim=13\nlayers=7\nffn=19\nnorm=rmsnorm\nactivation=swiglu\n"
    "position=rope\nbias=no\n";
constexpr const char* kPost =
    "heads=8\nkv_heads=2\nhead_dim=2\ndim=11\nlayers=5\nffn=17\nnorm_position=post\n"
    "activation=relu\nposition=sinusoidal\ntie_embeddings=no\n";

constexpr const char* kQwen2 =
    "heads=8\nkv_heads=1\nhead_dim=4\ndim=13\nlayers=7\nffn=19\nnorm=rmsnorm\nactivation=swiglu\n"
    "position=rope\nbias=no\nqkv_bias=yes\n";
constexpr const char* kQwen3 =
    "heads=8\nkv_heads=2\nhead_dim=4\ndim=13\nlayers=7\nffn=19\nnorm=rmsnorm\nactivation=swiglu\n"
    "position=rope\nbias=no\nqk_norm=yes\n";

struct Layout {
  const char* model;
  const char* grid;
  const char* pipeline;
  const char* recompute;
  const char* data;
};
// Batches of 10 windows; the last one of an epoch has 5 of length 7, or 2 of length 70.
constexpr std::array kLayouts = {
    Layout{kGpt, "", "", "none", "micro_batch=1\n"},  // data = 8: ranks without a sample at the end
    Layout{kLlama, "data=4\ntensor=2\n", "", "full", "micro_batch=2\n"},
    Layout{kGpt, "tensor=4\nsequence_parallel=yes\n", "", "none", "micro_batch=2\n"},
    Layout{kPost, "tensor=4\nsequence_parallel=yes\n", "", "full", "micro_batch=3\n"},
    Layout{kLlama, "tensor=8\nsequence_parallel=yes\n", "", "full", "micro_batch=3\n"},
    Layout{kGpt, "tensor=8\n", "", "selective", "micro_batch=10\n"},
    Layout{kGpt, "tensor=2\npipeline=2\n", "1f1b", "selective", "micro_batch=2\n"},
    Layout{kPost, "tensor=2\npipeline=2\n", "gpipe", "full", "micro_batch=2\n"},
    Layout{kLlama, "tensor=2\npipeline=2\nsequence_parallel=yes\n", "zero_bubble", "none",
           "micro_batch=1\n"},
    Layout{kGpt, "tensor=2\npipeline=2\nsequence_parallel=yes\n", "interleaved\nchunks=2",
           "selective", "micro_batch=3\n"},
    Layout{kGpt, "pipeline=4\n", "gpipe", "none", "micro_batch=2\n"},
    Layout{kPost, "pipeline=4\ndata=1\ntensor=2\nsequence_parallel=yes\n", "zero_bubble", "full",
           "micro_batch=3\n"},
    Layout{kLlama, "pipeline=8\n", "1f1b", "none", "micro_batch=1\n"},
    Layout{kLlama, "pipeline=4\ntensor=2\n", "interleaved\nchunks=2", "full", "micro_batch=3\n"},
    Layout{kGpt, "tensor=8\n", "", "none", "micro_batch=8\nsequence_length=70\n"},
    Layout{kQwen2, "tensor=4\n", "", "none", "micro_batch=2\n"},
    Layout{kQwen2, "tensor=2\npipeline=2\nsharding=gradients\n", "1f1b", "full", "micro_batch=2\n"},
    Layout{kQwen3, "tensor=8\n", "", "none", "micro_batch=2\n"},
    Layout{kQwen3, "tensor=4\nsequence_parallel=yes\n", "", "selective", "micro_batch=2\n"},
    Layout{kQwen3, "tensor=2\nsharding=optimizer\n", "", "full", "micro_batch=2\n"},
    Layout{kQwen3, "tensor=4\nsharding=parameters\n", "", "none", "micro_batch=2\n"},
    Layout{kGpt, "tensor=4\npipeline=2\nsequence_parallel=yes\n", "1f1b", "full",
           "micro_batch=8\nsequence_length=70\n"},
    // Sharding: each kind alone, in hybrid groups, with all other axes; of the last batch some data
    // ranks have fewer micro-batches than others, or none.
    Layout{kGpt, "sharding=optimizer\n", "", "none", "micro_batch=1\n"},
    Layout{kPost, "sharding=gradients\n", "", "none", "micro_batch=1\n"},
    Layout{kGpt, "sharding=parameters\n", "", "selective", "micro_batch=1\n"},
    Layout{kLlama, "data=4\ntensor=2\nsharding=optimizer\nshard_group=2\n", "", "full",
           "micro_batch=2\n"},
    Layout{kGpt, "data=4\ntensor=2\nsequence_parallel=yes\nsharding=gradients\nshard_group=2\n", "",
           "none", "micro_batch=1\n"},
    Layout{kLlama, "data=4\ntensor=2\nsequence_parallel=yes\nsharding=parameters\n", "", "full",
           "micro_batch=1\n"},
    Layout{kGpt, "data=2\ntensor=2\npipeline=2\nsharding=optimizer\n", "1f1b", "none",
           "micro_batch=2\n"},
    Layout{kGpt, "data=4\npipeline=2\nsharding=gradients\n", "zero_bubble", "none",
           "micro_batch=1\n"},
    Layout{kPost, "data=2\npipeline=4\nsharding=parameters\n", "1f1b", "full", "micro_batch=2\n"},
    Layout{kLlama, "data=2\ntensor=2\npipeline=2\nsequence_parallel=yes\nsharding=parameters\n",
           "zero_bubble", "none", "micro_batch=2\n"},
    Layout{kGpt, "data=4\npipeline=2\nsharding=parameters\nshard_group=2\n",
           "interleaved\nchunks=2", "none", "micro_batch=2\n"},
    Layout{kLlama, "data=2\ntensor=4\nsharding=gradients\n", "", "none", "micro_batch=2\n"},
    Layout{kGpt, "data=2\ntensor=4\nsequence_parallel=yes\nsharding=optimizer\n", "", "none",
           "micro_batch=2\n"},
    // Context: alone, with all other axes.
    Layout{kGpt, "context=2\n", "", "none", "micro_batch=2\n"},
    Layout{kGpt, "context=8\n", "", "full", "micro_batch=3\nsequence_length=70\n"},
    Layout{kLlama, "context=2\ntensor=2\npipeline=2\nsequence_parallel=yes\n", "1f1b", "full",
           "micro_batch=3\n"},
    Layout{kPost, "context=4\npipeline=2\n", "zero_bubble", "none", "micro_batch=3\n"},
    Layout{kGpt, "data=2\ncontext=2\ntensor=2\nsharding=parameters\n", "", "selective",
           "micro_batch=2\n"},
    Layout{kGpt, "data=2\ncontext=2\npipeline=2\nsharding=gradients\nshard_group=2\n",
           "interleaved\nchunks=2", "full", "micro_batch=3\n"}};

std::string DeckOf(const Layout& layout) {
  const std::string pipeline = layout.pipeline;
  return fmt::format(
      "[run]\nseed=11\n[data]\nbatch=10\n{}{}[model]\n{}max_positions=70\ndropout=0.1\n"
      "init_deviation=0.2\nrecompute={}\n[schedule]\nsteps=20\n[grid]\nbucket_mib=0.001\n{}{}",
      layout.data,
      std::string(layout.data).find("sequence_length") == std::string::npos ? "sequence_length=7\n"
                                                                            : "",
      layout.model, layout.recompute, layout.grid,
      pipeline.empty() ? "" : "[pipeline]\nschedule=" + pipeline + "\n");
}

std::int64_t TrafficBlocksOf(const TrainingRun& run) {
  std::int64_t blocks = 0;
  for (const Part& chunk : run.Net().LocalPlan().chunks) blocks += chunk.Size();
  return blocks;
}

// MPI's functions behind each kind of transfer, on one communicator or all.
Expected GivenToMpi(Transfer transfer, MPI_Comm comm) {
  Expected sum;
  const auto add = [&](Function function) {
    sum.calls += counted_mpi::Of(function, comm).calls;
    sum.payload += counted_mpi::Of(function, comm).bytes;
  };
  switch (transfer) {
    case Transfer::kAllReduce:
      add(Function::kAllreduce);
      add(Function::kIallreduce);
      break;
    case Transfer::kReduceScatter:
      add(Function::kReduceScatter);
      add(Function::kIreduceScatter);
      break;
    case Transfer::kAllGather:
      add(Function::kAllgatherv);
      add(Function::kIallgatherv);
      break;
    case Transfer::kAllToAll:
      add(Function::kAlltoallv);
      break;
    case Transfer::kBroadcast:
      add(Function::kBcast);
      break;
    case Transfer::kSend:
      add(Function::kIsend);
      break;
    case Transfer::kReceive:
      add(Function::kIrecv);
      break;
  }
  return sum;
}

// Everything that MPI was given, on any communicator, is in the ledger under its group's name.
void ExpectLedgerIsAll(const comm::ProcessGrid& grid, const std::string& what) {
  const std::pair<Group, MPI_Comm> groups[] = {
      {Group::kWorld, grid.World().Handle()},         {Group::kData, grid.SameShard().Handle()},
      {Group::kShard, grid.Shard().Handle()},         {Group::kContext, grid.Context().Handle()},
      {Group::kTensor, grid.Tensor().Handle()},       {Group::kPipeline, grid.Pipeline().Handle()},
      {Group::kEmbedding, grid.Embedding().Handle()}, {Group::kReplica, grid.Replica().Handle()}};
  for (int kind = 0; kind < comm::kTransfers; ++kind) {
    const auto transfer = static_cast<Transfer>(kind);
    // Transfers that no other communicator took are the key/value group's, whose communicator is
    // the model's.
    Expected rest = GivenToMpi(transfer, MPI_COMM_NULL);
    for (const auto& [group, handle] : groups) {
      const Expected given = GivenToMpi(transfer, handle);
      const comm::Traffic& known = grid.Traffic().At(group, transfer);
      EXPECT_EQ(known.calls, given.calls) << comm::NameOf(group) << what;
      EXPECT_EQ(known.payload, given.payload) << comm::NameOf(group) << what;
      rest.calls -= given.calls;
      rest.payload -= given.payload;
    }
    const comm::Traffic& key_value = grid.Traffic().At(Group::kKeyValue, transfer);
    EXPECT_EQ(key_value.calls, rest.calls) << what;
    EXPECT_EQ(key_value.payload, rest.payload) << what;
  }
  EXPECT_EQ(counted_mpi::Of(Function::kOther).calls, 0) << what;
}

// Ranks of the group, for the published factors.
int SizeOfGroup(const comm::ProcessGrid& grid, const model::Options& options, Group group) {
  const comm::GridShape& shape = grid.Shape();
  switch (group) {
    case Group::kWorld:
      return grid.World().Size();
    case Group::kData:
      return grid.SameShard().Size();
    case Group::kShard:
      return grid.Shard().Size();
    case Group::kContext:
      return shape.context;
    case Group::kTensor:
      return shape.tensor;
    case Group::kPipeline:
      return shape.pipeline;
    case Group::kEmbedding:
      return 2;
    case Group::kKeyValue:
      return std::max(shape.tensor / static_cast<int>(options.kv_heads), 1);
    case Group::kReplica:
      return shape.pipeline * shape.tensor;
  }
  return 0;
}

// Thakur et al. 2005, table of bandwidth terms.
double Factor(Transfer transfer, int size) {
  const double others = static_cast<double>(size - 1) / size;
  if (transfer == Transfer::kAllReduce) return 2 * others;
  if (transfer == Transfer::kSend) return 1;
  return transfer == Transfer::kReceive ? 0 : others;
}

using TrafficTest = LayoutTest;

TEST_F(TrafficTest, OneStepMovesWhatTheSizesSay) {
  std::array<std::int64_t, comm::kGroups> seen{};
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const Layout& layout : kLayouts) {
      const std::string deck = DeckOf(layout);
      const RunSettings settings = SettingsOf(deck, tokens_, world_.Size(), dtype);
      TrainingRun run(world_, tokens_, settings);
      const data::Sampler& samples = run.Step().Samples();
      const std::int64_t last = samples.StepsPerEpoch() - 1;
      ASSERT_LT(samples.BatchSize(last), settings.batch);
      for (const std::int64_t step : {std::int64_t{0}, last}) {
        const ExpectedTraffic expected(settings, run.Grid(), TrafficBlocksOf(run),
                                       samples.BatchSize(step));
        run.Grid().Traffic().Clear();
        counted_mpi::Reset();
        run.Step().Run(step);
        const std::string where = fmt::format(", step {} of\n{}", step, deck);
        ExpectLedgerIsAll(run.Grid(), where);
        for (int g = 0; g < comm::kGroups; ++g) {
          for (int t = 0; t < comm::kTransfers; ++t) {
            const auto group = static_cast<Group>(g);
            const auto transfer = static_cast<Transfer>(t);
            const Expected wanted = expected.At(group, transfer);
            const comm::Traffic& got = run.Grid().Traffic().At(group, transfer);
            const std::string what =
                fmt::format("{} {}{}", comm::NameOf(group), comm::NameOf(transfer), where);
            EXPECT_EQ(got.calls, wanted.calls) << what;
            EXPECT_EQ(got.payload, wanted.payload) << what;
            const double moved =
                static_cast<double>(wanted.payload) *
                Factor(transfer, SizeOfGroup(run.Grid(), settings.model.options, group));
            EXPECT_LE(std::abs(got.moved - moved), kRounding * moved) << what;
            seen[static_cast<std::size_t>(g)] += got.payload;
          }
        }
      }
    }
  }
  // Every group had its turn, on this rank or another.
  for (int g = 0; g < comm::kGroups; ++g) {
    EXPECT_GT(world_.Sum(seen[static_cast<std::size_t>(g)]), 0)
        << comm::NameOf(static_cast<Group>(g));
  }
}

// Accumulation over micro-batches communicates once.
TEST_F(TrafficTest, DataParallelBytesDoNotDependOnTheMicroBatches) {
  for (const char* grid : {"data=2\ntensor=4\n", "data=4\npipeline=2\n", "data=2\npipeline=4\n"}) {
    std::int64_t calls = 0, payload = 0;
    for (const int micro_batch : {1, 2, 5}) {
      const std::string data = fmt::format("micro_batch={}\n", micro_batch);
      const std::string deck = DeckOf({kGpt, grid, "1f1b", "none", data.c_str()});
      TrainingRun run(world_, tokens_, SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32));
      run.Train(1);
      const comm::Traffic& data_group = run.Grid().Traffic().At(Group::kData, Transfer::kAllReduce);
      if (micro_batch == 1) {
        calls = data_group.calls;
        payload = data_group.payload;
        EXPECT_EQ(calls, static_cast<std::int64_t>(run.Buckets()));
        EXPECT_GT(calls, 1);
      }
      EXPECT_EQ(data_group.calls, calls) << deck;
      EXPECT_EQ(data_group.payload, payload) << deck;
    }
  }
}

}  // namespace
}  // namespace trireme::test
