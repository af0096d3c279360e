// A training step takes nothing from the heap: what it needs was taken before. Layouts of one and
// two ranks, over an epoch with a short last batch, after an epoch that made what is kept.
#include "allocations.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "small_run.hpp"

namespace trireme::test {
namespace {

constexpr std::int64_t kEpoch = 4;  // steps; see small_run.hpp

struct Layout {
  const char* name;
  const char* keys;  // a deck's, of sections behind [model]
  const char* model = "";
  int ranks = 2;
  int threads = 1;
  bool bf16 = false, by_fp32 = false;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

std::string DeckOf(const Layout& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nmicro_batch=2\nbatch={}\n"
      "[schedule]\nsteps=20\nwarmup_steps=3\n[optimizer]\nclip_norm=0.5\nlabel_smoothing=0.05\n"
      "[model]\nlayers=2\nheads=4\nkv_heads=2\nhead_dim=4\ndim=16\nffn=24\nmax_positions=7\n"
      "dropout=0.1\nattention_dropout=0.1\nffn_dropout=0.1\nword_dropout=0.1\n"
      "layer_dropout=0.1\nweight_dropout=0.1\n{}\n{}\n",
      kBatch, layout.model, layout.keys);
}

constexpr const char* kModern =
    "norm=rmsnorm\nnorm_position=pre\nactivation=swiglu\nposition=rope\nbias=no\n"
    "tie_embeddings=yes";
constexpr const char* kGpt = "norm_position=pre\nactivation=gelu\nposition=learned\n";

class Allocations : public LayoutTest, public testing::WithParamInterface<Layout> {
 protected:
  Allocations() : LayoutTest(SyntheticTokens()) {}
};

TEST_P(Allocations, NoneInTheStep) {
  const Layout& layout = GetParam();
  RunSettings settings = SettingsOf(DeckOf(layout), tokens_, layout.ranks, Dtype::kFloat32);
  if (layout.bf16 && !layout.by_fp32 && device::Bf16Instructions().empty()) {
    GTEST_SKIP() << "no bf16 instructions";
  }
  settings.keep_gradients = false;  // as in a training run
  settings.stream.bf16 = layout.bf16;
  settings.stream.bf16_by_fp32 = layout.by_fp32;
  settings.stream.threads = layout.threads;
  device::ConfigureThreads(layout.threads, 1);
  TrainingRun run(layout.ranks == 1 ? self_ : world_, tokens_, settings);
  run.Train(kEpoch);
  AllocationCount count;
  for (std::int64_t step = kEpoch; step < 2 * kEpoch; ++step) run.Step().Run(step);
  count.Stop();
  EXPECT_EQ(count.Count(), 0) << "in " << kEpoch << " steps\n" << count.Places();
}

constexpr Layout kLayouts[] = {
    {"Serial", "", "", 1},
    {"SerialThreads", "", "", 1, 2},
    {"SerialGpt", "", kGpt, 1},
    {"SerialModern", "", kModern, 1},
    {"SerialBf16", "", "", 1, 1, true},
    {"SerialBf16ByFp32", "", "", 1, 1, true, true},
    {"SerialRecompute", "", "recompute=full", 1},
    {"SerialSelective", "", "recompute=selective", 1},
    {"Data", "[grid]\ndata=2\nbucket_mib=0.001"},
    {"DataModern", "[grid]\ndata=2\nbucket_mib=0.001", kModern},
    {"Optimizer", "[grid]\ndata=2\nsharding=optimizer\nbucket_mib=0.001"},
    {"Average", "[optimizer]\naverage=0.9\n[grid]\ndata=2\nsharding=optimizer"},
    {"Gradients", "[grid]\ndata=2\nsharding=gradients"},
    {"Parameters", "[grid]\ndata=2\nsharding=parameters"},
    {"Context", "[grid]\ncontext=2"},
    {"ContextModern", "[grid]\ncontext=2", kModern},
    {"Tensor", "[grid]\ntensor=2"},
    {"TensorModern", "[grid]\ntensor=2", kModern},
    {"TensorMup", "[grid]\ntensor=2\n[optimizer]\nz_loss=0.1",
     "norm_position=post\nparametrization=mup\nmup_base=8\nmup_base_head_dim=2\n"},
    {"SequenceParallel", "[grid]\ntensor=2\nsequence_parallel=yes", kGpt},
    {"OneForwardOneBackward", "[grid]\npipeline=2\n[pipeline]\nschedule=1f1b"},
    {"GPipe", "[grid]\npipeline=2\n[pipeline]\nschedule=gpipe", kModern},
    {"ZeroBubble", "[grid]\npipeline=2\n[pipeline]\nschedule=zero_bubble"},
    {"Canonical", "[grid]\ndata=2\n[run]\ncanonical=2x2\ncanonical_leaf=1"},
    {"CanonicalTensor", "[grid]\ntensor=2\n[run]\ncanonical=2x2\ncanonical_leaf=1"},
};

INSTANTIATE_TEST_SUITE_P(Layouts, Allocations, testing::ValuesIn(kLayouts),
                         [](const auto& info) { return std::string(info.param.name); });

// With documents and a mask of the loss: windows hold now more of them, now fewer. Also streamed:
// windows then come from a thread, and go to the other rank of the replica.
class MaskedAllocations : public LayoutTest {
 protected:
  static data::TokenData Masked() {
    data::TokenData data = SyntheticTokens();
    AddDocuments(data);
    AddLossMask(data);
    return data;
  }
  MaskedAllocations() : LayoutTest(Masked()) {
    world_.Together([&] {
      if (world_.IsRoot()) data::WriteTokenFile(path_, Masked(), false);
    });
  }

  void ExpectNone(const data::TokenFile& tokens, const char* keys) {
    RunSettings settings = SettingsOf(DeckOf({"Masked", keys}), tokens, 2, Dtype::kFloat32);
    settings.keep_gradients = false;
    device::ConfigureThreads(1, 1);
    TrainingRun run(world_, tokens, settings);
    run.Train(kEpoch);
    AllocationCount count;
    for (std::int64_t step = kEpoch; step < 2 * kEpoch; ++step) run.Step().Run(step);
    count.Stop();
    EXPECT_EQ(count.Count(), 0) << keys << '\n' << count.Places();
  }

  const SharedFolder folder_{world_};
  const std::string path_ = folder_ / "tokens.h5";
};

TEST_F(MaskedAllocations, NoneInTheStep) {
  const data::TokenFile streamed(world_, world_, path_, data::Staging::kStream);
  for (const char* keys : {"[grid]\ndata=2\n[data]\ndocument_mask=yes",
                           "[grid]\ncontext=2\n[data]\ndocument_mask=yes"}) {
    ExpectNone(tokens_, keys);
    ExpectNone(streamed, keys);
  }
  ExpectNone(streamed, "[grid]\ntensor=2\n[data]\ndocument_mask=yes");
}

// The counter itself: an allocation of this program is seen, with its place; a library's is not.
TEST(AllocationCount, SeesOwnAllocations) {
  AllocationCount count;
  const auto text = std::make_unique<std::string>(100, 'x');  // two, one of them by the library
  device::AllocateZeroed(1);
  count.Stop();
  EXPECT_EQ(count.Count(), 3);
  EXPECT_EQ(text->size(), 100u);
}

TEST(AllocationCount, IgnoresLibraries) {
  MPI_Comm copy = MPI_COMM_NULL;
  AllocationCount count;
  MPI_Comm_dup(MPI_COMM_SELF, &copy);
  count.Stop();
  MPI_Comm_free(&copy);
  EXPECT_EQ(count.Count(), 0);
}

}  // namespace
}  // namespace trireme::test
