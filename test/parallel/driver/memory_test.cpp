// The memory of a rank: what the plan says before a run is what the allocator then counts, and what
// recomputation, sequence parallelism, slices and schedules are said to save is saved.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "layout_fixture.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

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
