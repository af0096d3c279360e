// Stated costs of sharding and context parallelism, against the published formulas: bytes stored
// and moved by ZeRO's stages (Rajbhandari et al. 2020, sections 5 and 7), and activations of a part
// of each sequence.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "expected_storage.hpp"
#include "layout_fixture.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::test {
namespace {

using comm::Group;
using comm::Sharding;
using comm::Transfer;

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

}  // namespace
}  // namespace trireme::test
