// What layouts move and what they keep in memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "counted_mpi.hpp"
#include "expected_traffic.hpp"
#include "small_run.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

using comm::Group;
using comm::Transfer;
using counted_mpi::Function;

// Bytes that one training step moves, group by group: exactly what follows from the sizes of model
// and layout (doc/reference/bytes_and_memory.md), and nothing that the ledger does not know.

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
      ASSERT_LT(samples.BatchSize(last), settings.samples.batch);
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

// The memory of a rank: what the plan says before a run is what the allocator then counts, and what
// recomputation, sequence parallelism, slices and schedules are said to save is saved.

constexpr double kSomeMegabytes = 2e6;
constexpr std::int64_t kFloat = 4;

// A model of some MB, so that two per cent are not a handful of vectors.
struct Sizes {
  std::int64_t dim = 128, heads = 8, head_dim = 16, ffn = 512, layers = 4, length = 32;
};

// Sizes for comparisons of activations alone.
constexpr Sizes kSmall{.dim = 32, .heads = 8, .head_dim = 4, .ffn = 128};

std::string DeckOf(const Sizes& sizes, const std::string& model, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nbatch=16\nsequence_length={}\n[model]\ndim={}\nheads={}\n"
      "head_dim={}\nffn={}\nlayers={}\nmax_positions={}\n{}[schedule]\nsteps=20\n[grid]\n{}",
      sizes.length, sizes.dim, sizes.heads, sizes.head_dim, sizes.ffn, sizes.layers, sizes.length,
      model, layout);
}

class MemoryTest : public LayoutTest {
 protected:
  RunSettings Settings(const std::string& model, const std::string& layout,
                       const Sizes& sizes = {}) {
    return SettingsOf(DeckOf(sizes, model, layout), tokens_, world_.Size(), Dtype::kFloat32);
  }
  // On the rank that has most.
  std::int64_t LargestActivations(const std::string& model, const std::string& layout) {
    TrainingRun run(world_, tokens_, Settings(model, layout, kSmall));
    return world_.Max(Term(run.All(), "activations"));
  }
  void ExpectAsPlanned(const std::string& model, const std::string& layout) {
    const RunSettings settings = Settings(model, layout);
    const std::int64_t before = device::AllocatedBytes();
    device::ResetPeakAllocatedBytes();
    TrainingRun run(world_, tokens_, settings);
    const std::int64_t built = device::AllocatedBytes();
    const device::MemoryTerms terms = run.All().Memory();
    const std::int64_t planned = terms.Total() - terms.mpi_buffers;
    const std::string what = fmt::format("rank {}, {}{}", world_.Rank(), model, layout);
    EXPECT_GT(planned, kSomeMegabytes) << what;
    EXPECT_EQ(built - before, planned) << what;
    // Two steps, an evaluation and a prediction take no more.
    run.Train(2);
    train::Evaluate(run.Net(), tokens_, data::Split::kValid);
    tasks::GenerateOptions few;
    few.tokens = 2;
    tasks::Continue(run.Net(), {1, 2, 3}, few);
    EXPECT_EQ(device::PeakAllocatedBytes(), built) << what;
    EXPECT_EQ(device::AllocatedBytes(), built) << what;
  }
};

constexpr std::array kModels = {
    "", "norm_position=post\nactivation=relu\nposition=sinusoidal\ntie_embeddings=no\n",
    "kv_heads=2\nnorm=rmsnorm\nactivation=swiglu\nposition=rope\nbias=no\n"};
constexpr std::array kMemoryLayouts = {
    "[data]\nmicro_batch=2\n",
    "tensor=2\nsequence_parallel=yes\n[data]\nmicro_batch=2\n",
    "tensor=4\n[data]\nmicro_batch=4\n",
    "tensor=8\nsequence_parallel=yes\n[data]\nmicro_batch=4\n",
    "pipeline=4\n[pipeline]\nschedule=gpipe\n[data]\nmicro_batch=1\n",
    "pipeline=4\n[pipeline]\nschedule=1f1b\n[data]\nmicro_batch=2\n",
    "tensor=2\npipeline=2\nsequence_parallel=yes\n[pipeline]\nschedule=zero_bubble\n"
    "[data]\nmicro_batch=2\n",
    "tensor=2\npipeline=2\n[pipeline]\nschedule=interleaved\nchunks=2\n[data]\nmicro_batch=2\n",
    "pipeline=4\ntensor=2\nsequence_parallel=yes\n[pipeline]\nschedule=zero_bubble\n"
    "[data]\nmicro_batch=4\n",
    "sharding=optimizer\n[data]\nmicro_batch=2\n",
    "sharding=gradients\nprefetch=2\n[data]\nmicro_batch=1\n",
    "sharding=parameters\nprefetch=2\n[data]\nmicro_batch=1\n",
    "data=4\ntensor=2\nsequence_parallel=yes\nsharding=parameters\nshard_group=2\n"
    "[data]\nmicro_batch=2\n",
    "data=4\npipeline=2\nsharding=gradients\n[pipeline]\nschedule=zero_bubble\n"
    "[data]\nmicro_batch=1\n",
    "data=2\ntensor=2\npipeline=2\nsharding=optimizer\nshard_group=2\n[data]\nmicro_batch=1\n",
    "context=8\n[data]\nmicro_batch=2\n",
    "context=2\ntensor=2\npipeline=2\nsequence_parallel=yes\n[data]\nmicro_batch=4\n",
    "data=2\ncontext=4\nsharding=parameters\nprefetch=0\n[data]\nmicro_batch=2\n"};
// Of the first two models: the third has too few key/value heads for 4 canonical slices.
constexpr std::array kCanonicalLayouts = {
    "data=8\n[run]\ncanonical=8x1\n[data]\nmicro_batch=2\n",
    "data=2\ntensor=2\npipeline=2\nsharding=gradients\n[run]\ncanonical=8x4\n"
    "[pipeline]\nschedule=zero_bubble\n[data]\nmicro_batch=2\n",
    "data=4\ntensor=2\nsequence_parallel=yes\nsharding=parameters\nshard_group=2\n"
    "[run]\ncanonical=4x2\ncanonical_leaf=1\n[data]\nmicro_batch=2\n",
    "tensor=4\ndata=2\nsharding=optimizer\n[run]\ncanonical=2x4\ncanonical_leaf=2\n[data]\nmicro_"
    "batch=4\n"};

constexpr std::array kRecomputes = {"none", "selective", "full"};

// Every layout once, every model with every recomputation once.
TEST_F(MemoryTest, PlanIsWhatTheAllocatorCounts) {
  for (std::size_t i = 0; i < kMemoryLayouts.size(); ++i) {
    ExpectAsPlanned(fmt::format("{}recompute={}\n", kModels[i % 3], kRecomputes[(i + i / 3) % 3]),
                    kMemoryLayouts[i]);
  }
  for (std::size_t i = 0; i < kCanonicalLayouts.size(); ++i) {
    ExpectAsPlanned(fmt::format("{}recompute={}\n", kModels[i % 2], kRecomputes[i % 3]),
                    kCanonicalLayouts[i]);
  }
}

TEST_F(MemoryTest, RecomputationAndSequenceParallelismSaveActivations) {
  for (const char* model : kModels) {
    for (const char* layout :
         {"[data]\nmicro_batch=2\n", "tensor=4\nsequence_parallel=yes\n[data]\nmicro_batch=8\n",
          "tensor=2\npipeline=2\n[data]\nmicro_batch=2\n",
          "pipeline=4\n[pipeline]\nschedule=gpipe\n[data]\nmicro_batch=1\n"}) {
      std::array<std::int64_t, 3> bytes{};
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] =
            LargestActivations(fmt::format("{}recompute={}\n", model, kRecomputes[i]), layout);
      }
      EXPECT_LT(bytes[1], bytes[0]) << model << layout;
      EXPECT_LT(bytes[2], bytes[1]) << model << layout;
    }
    for (const char* layout :
         {"tensor=4\n[data]\nmicro_batch=8\n", "tensor=4\npipeline=2\n[data]\nmicro_batch=4\n"}) {
      std::string sharded = layout;
      sharded.insert(sharded.find("[data]"), "sequence_parallel=yes\n");
      EXPECT_LT(LargestActivations(model, sharded), LargestActivations(model, layout)) << sharded;
    }
  }
}

TEST_F(MemoryTest, TensorRanksHoldTheirShareOfTheState) {
  const auto state = [&](const std::string& layout) {
    TrainingRun run(world_, tokens_, Settings("", layout));
    return static_cast<double>(world_.Max(
        Term(run.All(), "parameters") + Term(run.All(), "gradients") + Term(run.All(), "moments")));
  };
  const double whole = state("");
  // Norms, output biases and positions are everywhere: some per cent.
  constexpr double kEverywhere = 0.03;
  for (const int tensor : {2, 4, 8}) {
    const double share = state(fmt::format("tensor={}\n", tensor)) / whole;
    EXPECT_GT(share, 1.0 / tensor);
    EXPECT_LT(share, 1.0 / tensor + kEverywhere);
  }
}

// The zero-bubble schedule holds on no stage more than 1F1B on its first, where there are enough
// micro-batches for all stages: P of them up to their weight gradients. What only the input
// gradient needs gives way, block by block, to the gradients that wait for the weight gradient.
TEST_F(MemoryTest, ZeroBubbleHoldsWhatTheFirstStageOfOneForwardOneBackwardHolds) {
  using parallel::ScheduleKind;
  for (int stages = 2; stages <= 8; ++stages) {
    for (int count = 1; count <= 3 * stages; ++count) {
      parallel::PipelineShape shape{ScheduleKind::kOneForwardOneBackward, stages, 1, count};
      const parallel::Slots first = parallel::MakeProgram(shape, 0).slots.at(0);
      shape.kind = ScheduleKind::kZeroBubble;
      for (int stage = 0; stage < stages; ++stage) {
        const parallel::Slots slots = parallel::MakeProgram(shape, stage).slots.at(0);
        EXPECT_LE(slots.weight, first.weight);
        EXPECT_LE(slots.input, first.input);
        EXPECT_LE(slots.input + slots.backward, std::max(first.input, stages) + 1);
      }
    }
  }
  for (const int stages : {2, 4}) {
    const std::int64_t micro_batch = 2;
    const std::string layout =
        fmt::format("pipeline={}\n[data]\nmicro_batch={}\n[pipeline]\n", stages, micro_batch);
    const std::int64_t other = LargestActivations("", layout + "schedule=1f1b\n");
    const std::int64_t here = LargestActivations("", layout + "schedule=zero_bubble\n");
    // One block's unit more than blocks x P, and the head's input.
    constexpr double kUnit = 1.03;
    EXPECT_LE(static_cast<double>(here), kUnit * static_cast<double>(other)) << stages;
  }
}

}  // namespace
}  // namespace trireme::test
