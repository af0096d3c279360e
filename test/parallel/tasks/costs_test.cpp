// Costs of sharding, memory of nodes, and plans against what a run takes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "expected_traffic.hpp"
#include "small_run.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

using comm::Group;
using comm::Sharding;
using comm::Transfer;
using testing::HasSubstr;
using testing::Not;

// Stated costs of sharding and context parallelism, against the published formulas: bytes stored
// and moved by ZeRO's stages (Rajbhandari et al. 2020, sections 5 and 7), and activations of a part
// of each sequence.

constexpr double kStates = 0.05;  // relative difference of stored bytes and ZeRO's formula

// Tables with no more than the formulas count: with a tied table, no learned positions and no final
// norm, every unit is used twice in a micro-batch.
constexpr const char* kTwice =
    "norm_position=post\nactivation=relu\nposition=sinusoidal\ntie_embeddings=yes\n";
constexpr const char* kOnceToo = "tie_embeddings=no\n";  // table, positions, head: once

std::string ShardingCostsDeckOf(const std::string& model, const std::string& layout,
                                int length = 7) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length={0}\n[model]\nlayers=3\nheads=2\nkv_heads=2\n"
      "head_dim=6\ndim=12\nffn=17\nmax_positions={0}\n{1}[schedule]\nsteps=20\n[grid]\n"
      "bucket_mib=0.001\n{2}",
      length, model, layout);
}

// Some MB of parameters.
std::string LargeDeck(const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nbatch=8\nmicro_batch=1\nsequence_length=16\n[model]\nlayers=5\n"
      "heads=4\nkv_heads=4\nhead_dim=32\ndim=128\nffn=512\nmax_positions=16\n[schedule]\nsteps=20\n"
      "[grid]\n{}",
      layout);
}

std::int64_t ModelSize(const kernels::Registry& registry) {
  std::int64_t elements = 0;
  for (const kernels::Parameter& parameter : registry.Parameters()) {
    elements += kernels::ElementCount(parameter.shape);
  }
  return elements;
}

class ShardingCosts : public LayoutTest {
 protected:
  // On the first `ranks` ranks, which are a world of their own.
  void On(int ranks, const std::function<void(const comm::Communicator&)>& body) {
    const bool mine = world_.Rank() < ranks;
    const comm::Communicator part = world_.Split(mine ? 0 : 1, world_.Rank());
    if (mine) body(part);
    world_.Barrier();
  }
};

// Model states of AdamW in fp32 with Psi parameters, bytes: values, gradients 4 Psi each, moments 8
// Psi; stage 1 divides the moments by the ranks, stage 2 the gradients, stage 3 the values too.
double StatesOf(Sharding sharding, double psi, int ranks) {
  const auto share = [&](Sharding from) { return sharding >= from ? 1.0 / ranks : 1.0; };
  return psi * (4 * share(Sharding::kParameters) + 4 * share(Sharding::kGradients) +
                8 * share(Sharding::kOptimizer));
}

TEST_F(ShardingCosts, ModelStatesAreThoseOfZero) {
  struct Shape {
    int ranks, group;
  };
  double worst = 0;
  for (const auto [ranks, group] : {Shape{2, 2}, {4, 4}, {8, 8}, {4, 2}, {8, 2}, {8, 4}}) {
    On(ranks, [&, ranks = ranks, group = group](const comm::Communicator& world) {
      for (const Sharding sharding :
           {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
        const bool none = sharding == Sharding::kNone;
        const std::string deck =
            LargeDeck(fmt::format("sharding={}\n{}", comm::NameOf(sharding),
                                  none ? "" : fmt::format("shard_group={}\n", group)));
        const RunSettings settings = SettingsOf(deck, tokens_, ranks, Dtype::kFloat32);
        const std::int64_t before = device::AllocatedBytes();
        TrainingRun run(world, tokens_, settings);
        const train::TrainingState& training = run.All();
        const std::int64_t counted = device::AllocatedBytes() - before;
        const auto psi = static_cast<double>(ModelSize(training.Net().Parameters()));
        EXPECT_GT(psi, 1e6);
        const double wanted = StatesOf(sharding, psi, group);
        const std::int64_t planned =
            Term(training, "parameters") + Term(training, "gradients") + Term(training, "moments");
        // Bytes that the allocator counts beside everything else that is planned.
        const device::MemoryTerms terms = training.Memory();
        const std::int64_t stored = counted - (terms.Total() - terms.mpi_buffers - planned);
        const std::string what = fmt::format("{} on {} ranks, shards of {}, rank {}",
                                             comm::NameOf(sharding), ranks, group, world.Rank());
        EXPECT_LT(std::abs(static_cast<double>(planned) - wanted), kStates * wanted) << what;
        EXPECT_LT(std::abs(static_cast<double>(stored) - wanted), kStates * wanted) << what;
        worst = std::max(worst, std::abs(static_cast<double>(stored) - wanted) / wanted);
        // Each of the three by itself.
        const auto is = [&](const char* term, double bytes) {
          EXPECT_LT(std::abs(static_cast<double>(Term(training, term)) - bytes), kStates * bytes)
              << what << ", " << term;
        };
        const auto share = [&](Sharding from) { return sharding >= from ? 1.0 / group : 1.0; };
        is("parameters", 4 * psi * share(Sharding::kParameters));
        is("gradients", 4 * psi * share(Sharding::kGradients));
        is("moments", 8 * psi * share(Sharding::kOptimizer));
        // Apart from these, and never without need.
        EXPECT_EQ(Term(training, "gathered parameters") > 0, sharding == Sharding::kParameters);
        EXPECT_EQ(Term(training, "gradients under way") > 0, sharding >= Sharding::kGradients);
      }
    });
  }
  RecordProperty("worst_percent", fmt::format("{:.3f}", 100 * world_.Max(worst)));
}

// Two buffers of a block and one of each other unit; prefetch + 1 for gathered parameters, one more
// than there are blocks at most.
TEST_F(ShardingCosts, BuffersAreThoseOfAFewUnits) {
  for (const int prefetch : {0, 1, 3, 9}) {
    const RunSettings settings =
        SettingsOf(LargeDeck(fmt::format("sharding=parameters\nprefetch={}\n", prefetch)), tokens_,
                   world_.Size(), Dtype::kFloat32);
    TrainingRun run(world_, tokens_, settings);
    const ExpectedStorage storage(settings, run.Grid(), settings.model.options.layers);
    std::int64_t others = 0;
    const auto whole = [](std::int64_t elements) { return (elements * 4 + 127) / 128 * 128; };
    for (const ExpectedUnit& unit : storage.Units()) {
      if (unit.kind != UnitKind::kBlock) others += whole(unit.range.Size());
    }
    const std::int64_t block = whole(storage.BlockElements());
    const auto blocks = std::min<std::int64_t>(prefetch + 1, settings.model.options.layers + 1);
    EXPECT_EQ(Term(run.All(), "gathered parameters"), blocks * block + others);
    EXPECT_EQ(Term(run.All(), "gradients under way"), 2 * block + others);
  }
}

struct Moved {
  std::int64_t scattered = 0, gathered = 0, reduced = 0;  // bytes times ranks
};

// Of one step, from the ledger: what each rank sends, times the ranks, which makes it whole.
Moved MovedByAStep(TrainingRun& run, std::int64_t step) {
  run.Grid().Traffic().Clear();
  run.Step().Run(step);
  const auto moved = [&](Group group, Transfer transfer, int size) {
    return std::llround(run.Grid().Traffic().At(group, transfer).moved * size);
  };
  const int shard = run.Grid().Shard().Size();
  constexpr std::int64_t kNorm = 8;  // the gradient's, over the shard group
  EXPECT_EQ(run.Grid().Traffic().At(Group::kShard, Transfer::kAllReduce).payload,
            shard > 1 ? kNorm : 0);
  return {moved(Group::kShard, Transfer::kReduceScatter, shard),
          moved(Group::kShard, Transfer::kAllGather, shard),
          moved(Group::kData, Transfer::kAllReduce, run.Grid().SameShard().Size())};
}

// The published volumes, exactly: data parallelism sends 2 (d - 1) / d times the gradients a step,
// and so does stage 1; stage 2 scatters every micro-batch's gradients; stage 3 sends (d - 1) / d
// times the gradients and twice the parameters in each, or less where a unit is used once.
TEST_F(ShardingCosts, BytesMovedAreThoseOfZero) {
  for (const int d : {2, 3, 4, 5, 8}) {
    On(d, [&](const comm::Communicator& world) {
      for (const char* model : {kTwice, kOnceToo}) {
        // Shares of 7 windows differ; 1 to 4 micro-batches in the largest.
        for (const int micro_batch : {1, 2, 4}) {
          for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer,
                                          Sharding::kGradients, Sharding::kParameters}) {
            const std::string deck = ShardingCostsDeckOf(
                model, fmt::format("sharding={}\n[data]\nbatch=7\nmicro_batch={}\n",
                                   comm::NameOf(sharding), micro_batch));
            const RunSettings settings = SettingsOf(deck, tokens_, d, Dtype::kFloat32);
            TrainingRun run(world, tokens_, settings);
            const ExpectedStorage storage(settings, run.Grid(), 3);
            const std::int64_t bytes = storage.Elements() * 4, others = d - 1;
            const std::int64_t share = (7 + d - 1) / d;
            const std::int64_t micro_batches = (share + micro_batch - 1) / micro_batch;
            std::int64_t used = 0;
            for (const ExpectedUnit& unit : storage.Units()) {
              used += unit.uses * unit.range.Size() * 4;
            }
            const Moved moved = MovedByAStep(run, 0);
            const std::int64_t all = moved.scattered + moved.gathered + moved.reduced;
            const std::string what = fmt::format("{} ranks\n{}", d, deck);
            EXPECT_GE(bytes, ModelSize(run.Net().Parameters()) * 4) << what;
            EXPECT_EQ(run.Net().Parameters().Size() * 4, bytes) << what;
            switch (sharding) {
              case Sharding::kNone:
              case Sharding::kOptimizer:
                EXPECT_EQ(all, 2 * others * bytes) << what;
                break;
              case Sharding::kGradients:
                EXPECT_EQ(all, (micro_batches + 1) * others * bytes) << what;
                break;
              case Sharding::kParameters:
                EXPECT_EQ(moved.scattered, micro_batches * others * bytes) << what;
                EXPECT_EQ(moved.gathered, micro_batches * others * used) << what;
                EXPECT_LE(all, 3 * micro_batches * others * bytes) << what;
                EXPECT_EQ(all == 3 * micro_batches * others * bytes, model == kTwice) << what;
                break;
            }
          }
        }
      }
    });
  }
}

// Shards stay among few ranks; owned gradients alone are summed over the others, once a step.
TEST_F(ShardingCosts, HybridMovesShardsAmongFewAndOwnedGradientsOnce) {
  for (const int group : {2, 4}) {
    for (const Sharding sharding :
         {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
      const std::string deck =
          ShardingCostsDeckOf(kTwice, fmt::format("sharding={}\nshard_group={}\n[data]\nbatch=16\n"
                                                  "micro_batch=1\n",
                                                  comm::NameOf(sharding), group));
      const RunSettings settings = SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32);
      TrainingRun run(world_, tokens_, settings);
      const ExpectedStorage storage(settings, run.Grid(), 3);
      constexpr std::int64_t kMicroBatches = 2;
      const std::int64_t bytes = storage.Elements() * 4, copies = world_.Size() / group;
      const Moved moved = MovedByAStep(run, 0);
      const std::int64_t scatters = sharding == Sharding::kOptimizer ? 1 : kMicroBatches;
      const std::int64_t gathers = sharding == Sharding::kParameters ? 2 * kMicroBatches : 1;
      EXPECT_EQ(moved.scattered, scatters * (group - 1) * bytes) << deck;
      EXPECT_EQ(moved.gathered, gathers * (group - 1) * bytes) << deck;
      // 2 (1 - s / G) of what each owns; together, of everything.
      EXPECT_EQ(static_cast<std::int64_t>(
                    std::llround(run.Grid().Shard().Sum(static_cast<double>(moved.reduced)))),
                2 * (copies - 1) * bytes)
          << deck;
    }
  }
}

// Of each window a rank sends the keys and values of all positions but the next rank's, in the
// forward pass and in the backward pass, and there the gradients of all but its own; recomputation
// is one forward pass more.
TEST_F(ShardingCosts, RingsMoveKeysAndValues) {
  constexpr std::int64_t kLayers = 3, kPosition = 2 * 2 * 6 * 4;  // bytes of keys and values
  for (const int context : {2, 4, 8}) {
    for (const int length : {7, 70}) {
      std::vector<std::int64_t> sent;
      std::int64_t windows = 0, others = 0, own = 0;
      for (const char* recompute : {"none", "full"}) {
        const std::string deck =
            ShardingCostsDeckOf(fmt::format("recompute={}\n", recompute),
                                fmt::format("data={}\ncontext={}\n[data]\nbatch=8\nmicro_batch=2\n",
                                            world_.Size() / context, context),
                                length);
        TrainingRun run(world_, tokens_, SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32));
        const int data = run.Grid().Coordinates().data, rank = run.Grid().Coordinates().context;
        windows = std::ssize(run.Step().Samples().Share(0, data, run.Grid().Shape().data));
        own = PositionsOf(length, rank, context).Count();
        others = length - PositionsOf(length, (rank + 1) % context, context).Count();
        run.Grid().Traffic().Clear();
        run.Step().Run(0);
        sent.push_back(run.Grid().Traffic().At(Group::kContext, Transfer::kSend).payload);
      }
      const std::int64_t forward = kLayers * windows * others * kPosition;
      const std::int64_t backward = forward + kLayers * windows * (length - own) * kPosition;
      EXPECT_GT(forward, 0);
      EXPECT_EQ(sent[0], forward + backward) << context << " of " << length;
      EXPECT_EQ(sent[1] - sent[0], forward) << context << " of " << length;
    }
  }
}

std::string LongDeck(int layers, int context, int ranks) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nbatch=8\nmicro_batch=1\nsequence_length=512\n[model]\nlayers={}\n"
      "heads=4\nkv_heads=4\nhead_dim=8\ndim=32\nffn=128\nmax_positions=512\n[schedule]\nsteps=20\n"
      "[grid]\ndata={}\ncontext={}\n",
      layers, ranks / context, context);
}

// Memory that blocks keep between the passes is exactly the positions' share; the whole, with
// attention's scratch and the ring's blocks, nearly so.
TEST_F(ShardingCosts, ActivationsFallWithTheContextRanks) {
  constexpr double kKept = 0.01, kWhole = 0.1;
  constexpr int kLayers = 8;
  struct Bytes {
    double planned = 0, counted = 0;
  };
  const auto activations = [&](int layers, int context) {
    const RunSettings settings = SettingsOf(LongDeck(layers, context, world_.Size()), tokens_,
                                            world_.Size(), Dtype::kFloat32);
    const std::int64_t before = device::AllocatedBytes();
    TrainingRun run(world_, tokens_, settings);
    const train::TrainingState& training = run.All();
    const std::int64_t counted = device::AllocatedBytes() - before;
    const std::int64_t planned = Term(training, "activations");
    const device::MemoryTerms terms = training.Memory();
    const std::int64_t others = terms.Total() - terms.mpi_buffers - planned;
    return Bytes{static_cast<double>(planned), static_cast<double>(counted - others)};
  };
  Bytes whole, kept;
  for (const int context : {1, 2, 4, 8}) {
    const Bytes many = activations(2 * kLayers, context), few = activations(kLayers, context);
    const Bytes blocks{many.planned - few.planned, many.counted - few.counted};
    if (context == 1) {
      whole = many;
      kept = blocks;
      EXPECT_GT(kept.planned, 1e6);
      continue;
    }
    for (const double Bytes::*count : {&Bytes::planned, &Bytes::counted}) {
      EXPECT_NEAR(blocks.*count / (kept.*count) * context, 1, kKept) << context;
      EXPECT_NEAR(many.*count / (whole.*count) * context, 1, kWhole) << context;
      EXPECT_LT(many.*count, whole.*count) << context;
    }
    RecordProperty(fmt::format("context_{}_percent", context),
                   fmt::format("{:.2f}", 100 * many.counted / whole.counted));
  }
}

// A plan against the run that it plans: on each rank, to the byte, what is allocated and what a
// step transfers.

constexpr std::array kPlanLayouts = {
    // Data parallel, micro-batches that do not divide.
    "",
    "[data]\nmicro_batch=3\n",
    "[grid]\nbucket_mib=0.01\n",
    // Tensor and sequence parallel.
    "[grid]\ntensor=2\n[data]\nmicro_batch=2\n",
    "[grid]\ntensor=4\nsequence_parallel=yes\n[data]\nmicro_batch=3\n",
    "[grid]\ntensor=8\nsequence_parallel=yes\n[model]\nrecompute=full\n",
    "[grid]\ntensor=8\n[model]\nkv_heads=2\nactivation=swiglu\nposition=rope\nnorm=rmsnorm\n",
    // Pipelines.
    "[grid]\npipeline=4\n[pipeline]\nschedule=gpipe\n[data]\nmicro_batch=1\n",
    "[grid]\npipeline=4\n[data]\nmicro_batch=2\n",
    "[grid]\npipeline=2\ntensor=2\nsequence_parallel=yes\n[pipeline]\nschedule=zero_bubble\n"
    "[data]\nmicro_batch=2\n",
    "[grid]\npipeline=2\ntensor=2\n[pipeline]\nschedule=interleaved\nchunks=2\n"
    "[data]\nmicro_batch=2\n",
    "[grid]\npipeline=8\n[pipeline]\nschedule=zero_bubble\n[data]\nmicro_batch=1\n",
    "[grid]\npipeline=2\n[model]\ntie_embeddings=no\nnorm_position=post\nrecompute=selective\n",
    // Sharding.
    "[grid]\nsharding=optimizer\n[data]\nmicro_batch=2\n",
    "[grid]\nsharding=gradients\n[data]\nmicro_batch=1\n",
    "[grid]\nsharding=parameters\nprefetch=2\n[data]\nmicro_batch=1\n[optimizer]\naverage=1\n",
    "[grid]\ntensor=2\nsequence_parallel=yes\nsharding=parameters\nshard_group=2\n"
    "[data]\nmicro_batch=2\n",
    "[grid]\npipeline=2\nsharding=gradients\n[pipeline]\nschedule=zero_bubble\n"
    "[data]\nmicro_batch=1\n",
    "[grid]\npipeline=2\nsharding=optimizer\nshard_group=2\n[model]\nposition=sinusoidal\n"
    "[optimizer]\naverage=0.5\n",
    // Context.
    "[grid]\ncontext=2\n",
    "[grid]\ncontext=4\ntensor=2\nsharding=parameters\n",
    "[grid]\ncontext=2\npipeline=2\nsequence_parallel=yes\ntensor=2\n[model]\nrecompute=full\n",
    // Canonical arithmetic.
    "[run]\ncanonical=8x2\n",
    "[run]\ncanonical=4x4\ncanonical_leaf=2\n[grid]\ntensor=2\npipeline=2\nsharding=gradients\n"
    "[data]\nmicro_batch=4\n",
    // Rules with memory of their own.
    "[optimizer]\nkind=muon\n[grid]\nsharding=optimizer\n",
    "[optimizer]\nkind=muon\n[grid]\ntensor=2\npipeline=2\nsharding=gradients\n",
    "[optimizer]\nkind=lion\n[grid]\ntensor=4\n",
    // A head that divides its input, with and without a norm before it.
    "[grid]\ntensor=4\nsequence_parallel=yes\n[model]\nparametrization=mup\nmup_base=12\n"
    "norm_position=post\n",
    "[grid]\npipeline=2\ntensor=2\n[model]\nparametrization=mup\nmup_base=12\n",
};
static_assert(kPlanLayouts.size() == 29);

std::string TextOf(const std::string& layout) {
  return "[run]\nseed=11\n[data]\nbatch=13\nsequence_length=9\n[model]\ndim=36\nheads=8\n"
         "head_dim=4\nffn=44\nlayers=7\nmax_positions=9\n[schedule]\nsteps=20\n" +
         layout;
}

struct Precision {
  const char* name;
  Dtype dtype;
  bool bf16_products = false;
};
constexpr std::array kPrecisions = {Precision{"fp32", Dtype::kFloat32},
                                    Precision{"fp64", Dtype::kFloat64},
                                    Precision{"bf16", Dtype::kFloat32, true}};

class PlanTest : public LayoutTest {
 protected:
  train::Plan PlanOf(const std::string& layout, const Precision& precision) const {
    return test::PlanOf(TextOf(layout), tokens_, world_.Size(), precision.dtype, {},
                        precision.bf16_products);
  }
};

TEST_F(PlanTest, MemoryAndTransfersAreTheRuns) {
  for (const Precision& precision : kPrecisions) {
    // Memory needs no bf16 instructions.
    const bool runs = !precision.bf16_products || !device::Bf16Instructions().empty();
    for (const char* layout : kPlanLayouts) {
      const std::string what =
          fmt::format("rank {}, {}, {}", world_.Rank(), precision.name, layout);
      const train::Plan plan = PlanOf(layout, precision);
      const std::int64_t planned_before = device::PlannedBytes();
      const train::RankPlan mine = train::PlanRank(plan, world_.Rank());
      EXPECT_EQ(device::PlannedBytes(), planned_before) << what;

      const comm::ProcessGrid grid(world_, plan.grid, plan.sharing);
      const std::int64_t before = device::AllocatedBytes();
      train::TrainingState state(grid, plan.training, plan.machine.stream);
      train::TrainingStep step(state, tokens_);
      EXPECT_EQ(device::AllocatedBytes() - before, mine.memory.Total() - mine.memory.mpi_buffers)
          << what;
      EXPECT_EQ(state.Memory(), mine.memory) << what;
      EXPECT_EQ(train::PlanMemory(plan, world_.Rank()), mine.memory) << what;

      if (!runs || (precision.bf16_products && plan.training.model.canonical.On())) continue;
      grid.Traffic().Clear();
      step.Run(0);
      ExpectSame(grid.Traffic(), mine.traffic, what);
      EXPECT_EQ(device::AllocatedBytes() - before, mine.memory.Total() - mine.memory.mpi_buffers)
          << what;
    }
  }
}

// Counting the targets takes a transfer.
class MaskedPlanTest : public LayoutTest {
 protected:
  static data::TokenData Masked() {
    data::TokenData data = ManyTokens();
    for (std::size_t split = 0; split < data.tokens.size(); ++split) {
      const std::size_t count = data.tokens[split].size();
      data.documents[split] = {0, static_cast<std::int64_t>(count) / 2};
      for (std::size_t i = 0; i < count; ++i) data.counted[split].push_back(i % 3 == 0 ? 1 : 0);
    }
    return data;
  }
  MaskedPlanTest() : LayoutTest(Masked()) {}
};

TEST_F(MaskedPlanTest, MemoryAndTransfersAreTheRuns) {
  for (const char* layout : {"", "[data]\ndocument_mask=yes\n",
                             "[grid]\npipeline=2\ncontext=2\nsharding=gradients\n"
                             "[data]\ndocument_mask=yes\n"}) {
    const train::Plan plan = test::PlanOf(TextOf(layout), tokens_, world_.Size(), Dtype::kFloat32);
    EXPECT_THAT(train::Describe(plan), testing::HasSubstr("; loss mask\n"));
    const train::RankPlan mine = train::PlanRank(plan, world_.Rank());
    const comm::ProcessGrid grid(world_, plan.grid, plan.sharing);
    train::TrainingState state(grid, plan.training, plan.machine.stream);
    train::TrainingStep step(state, tokens_);
    EXPECT_EQ(state.Memory(), mine.memory) << layout;
    grid.Traffic().Clear();
    step.Run(0);
    ExpectSame(grid.Traffic(), mine.traffic, fmt::format("rank {}, {}", world_.Rank(), layout));
  }
}

// The same answer for every rank that asks: a plan needs no rank of its own.
TEST_F(PlanTest, EveryRankPlansForEveryOther) {
  const train::Plan plan = PlanOf("[grid]\npipeline=2\nsharding=parameters\n", kPrecisions[0]);
  for (int rank = 0; rank < world_.Size(); ++rank) {
    const std::int64_t bytes = train::PlanRank(plan, rank).memory.Total();
    EXPECT_EQ(world_.Max(bytes), bytes);
    EXPECT_EQ(world_.Min(bytes), bytes);
  }
}

// Ranks of a node add up what they plan, and refuse together what is too much.

constexpr std::int64_t kGib = std::int64_t{1} << 30;

using NodeMemoryTest = LayoutTest;

// Ranks need different amounts: stages do.
TEST_F(NodeMemoryTest, TermsAreAddedUpOneByOne) {
  const std::int64_t rank = world_.Rank(), ranks = world_.Size();
  device::MemoryTerms mine{.parameters = 10, .moments = rank};
  if (rank == ranks - 1) mine.vocabulary_tile = 3;
  const comm::NodeDemand demand = comm::DemandOf(world_, mine);
  EXPECT_EQ(demand.ranks, ranks);
  EXPECT_EQ(demand.terms, (device::MemoryTerms{.parameters = 10 * ranks,
                                               .moments = ranks * (ranks - 1) / 2,
                                               .vocabulary_tile = 3}));
  EXPECT_EQ(demand.available.bytes, world_.Min(demand.available.bytes));
}

// The message of too large a demand on this grid.
std::string Refusal(const comm::Communicator& world, Sharding sharding, bool canonical) {
  const comm::ProcessGrid grid(world, {.data = world.Size()}, {.sharding = sharding});
  const comm::NodeDemand demand{
      world.Size(),
      {.parameters = kGib, .gradients = 2 * kGib, .moments = 4 * kGib, .activations = 8 * kGib},
      {kGib, "available on the node"}};
  try {
    comm::CheckNodeMemory(demand, grid, canonical);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// Sharding helps with what is not shared out yet.
TEST_F(NodeMemoryTest, TheHintSaysWhatShardingSharesOut) {
  EXPECT_THAT(Refusal(world_, Sharding::kNone, false),
              HasSubstr(fmt::format("the {} ranks of this node plan 15.0 GiB", world_.Size())));
  EXPECT_THAT(Refusal(world_, Sharding::kNone, false), HasSubstr("shares out 7.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kNone, true), HasSubstr("shares out 5.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kOptimizer, false), HasSubstr("shares out 3.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kGradients, false), HasSubstr("shares out 1.0 GiB of it"));
  EXPECT_THAT(Refusal(world_, Sharding::kParameters, false), Not(HasSubstr("grid.sharding")));
}

std::string NodeMemoryDeckOf(std::int64_t dim, int layers, const std::string& grid) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nbatch=16\nmicro_batch=2\nsequence_length=7\n[model]\nlayers={}\n"
      "heads=8\nhead_dim=8\ndim={}\nffn={}\nmax_positions=7\n[schedule]\nsteps=20\n[grid]\n{}",
      layers, dim, 4 * dim, grid);
}

// A model that no machine holds is refused by all ranks together, before anything is allocated.
TEST_F(NodeMemoryTest, AModelThatNoNodeHoldsIsRefused) {
  constexpr std::int64_t kDim = 1 << 13;  // a block's shards still pass in one transfer
  constexpr int kLayers = 960;
  for (const char* layout :
       {"", "sharding=parameters\n", "tensor=4\npipeline=2\nsequence_parallel=yes\n",
        "context=2\nsharding=gradients\n"}) {
    const std::int64_t before = device::AllocatedBytes();
    device::ResetPeakAllocatedBytes();
    const train::Plan plan =
        PlanOf(NodeMemoryDeckOf(kDim, kLayers, layout), tokens_, world_.Size(), Dtype::kFloat32);
    const comm::ProcessGrid grid(world_, plan.grid, plan.sharing);
    const comm::NodeDemand demand = comm::DemandOf(world_, train::PlanMemory(plan, world_.Rank()));
    try {
      comm::CheckNodeMemory(demand, grid, false);
      ADD_FAILURE() << "nothing was thrown: " << layout;
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput) << layout;
      const std::string text = error.what();
      EXPECT_THAT(text, HasSubstr("memory: the 8 ranks of this node plan "));
      EXPECT_THAT(text, HasSubstr("; nothing was allocated"));
      EXPECT_THAT(text, HasSubstr("What helps: "));
    }
    EXPECT_EQ(device::PeakAllocatedBytes(), before) << layout;
  }
}

// The check's sum is then allocated.
TEST_F(NodeMemoryTest, ASmallModelPasses) {
  for (const char* layout :
       {"sharding=parameters\n", "pipeline=2\ntensor=2\n[run]\ncanonical=8x2\n"}) {
    const std::string deck = NodeMemoryDeckOf(32, 48, layout);
    const train::Plan plan = PlanOf(deck, tokens_, world_.Size(), Dtype::kFloat32);
    const comm::NodeDemand demand = comm::DemandOf(world_, train::PlanMemory(plan, world_.Rank()));
    const std::int64_t before = device::AllocatedBytes();
    const TrainingRun run(world_, tokens_,
                          SettingsOf(deck, tokens_, world_.Size(), Dtype::kFloat32));
    const std::int64_t counted = device::AllocatedBytes() - before;
    EXPECT_EQ(demand.terms.Total() - demand.terms.mpi_buffers, world_.Sum(counted));
  }
}

}  // namespace
}  // namespace trireme::test
