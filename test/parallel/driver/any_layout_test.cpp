// Any layout, the same numbers (rule 4): every grid that fits 1 to 8 ranks, with every schedule,
// recomputation and sequence parallelism, every kind of sharding and size of its groups, context
// ranks, against the serial run. Nothing divides, everything is on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "layout_fixture.hpp"

namespace trireme::test {
namespace {

constexpr double kAnyLayoutFp64 =
    1e-11;  // relative: losses, norm; gradients and weights in rule 4's norm
constexpr double kAnyLayoutFp32 = 1e-5;  // relative, losses
constexpr std::int64_t kAnyLayoutDeckSteps = 5;

// Architectures with odd sizes: vocabulary 101 (of the tokens), 5 layers, ffn 17.
struct AnyLayoutArchitecture {
  const char* name;
  const char* keys;
};
constexpr std::array kAnyLayoutArchitectures = {
    AnyLayoutArchitecture{"gpt", "heads=4\nkv_heads=2\nhead_dim=3\ndim=12\nlayers=5\nffn=17\n"},
    AnyLayoutArchitecture{
        "jsc",
        "heads=6\nkv_heads=3\nhead_dim=2\ndim=12\nlayers=5\nffn=17\nnorm_position=post\n"
        "activation=relu\nposition=sinusoidal\ntie_embeddings=no\nscale_embedding=yes\n"},
    AnyLayoutArchitecture{
        "llama",
        "heads=8\nkv_heads=1\nhead_dim=4\ndim=13\nlayers=7\nffn=19\nnorm=rmsnorm\n"
        "activation=swiglu\nposition=rope\nrope_theta=500000\nbias=no\n"},
    AnyLayoutArchitecture{"untied",
                          "heads=5\nkv_heads=5\nhead_dim=3\ndim=15\nlayers=3\nffn=11\n"
                          "tie_embeddings=no\nnorm_position=post\nactivation=gelu\n"}};

std::string AnyLayoutDeckOf(const AnyLayoutArchitecture& architecture, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\n[model]\n{}max_positions=7\n"
      "dropout=0.1\nattention_dropout=0.1\nffn_dropout=0.1\ninit_deviation=0.2\n"
      "[optimizer]\nlearning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing=0.05\n"
      "[schedule]\nsteps=20\nwarmup_steps=3\n[grid]\nbucket_mib=0.001\n{}",
      architecture.keys, layout);
}

class AnyLayout : public LayoutTest {
 protected:
  AnyLayout() : LayoutTest(SyntheticTokens()) {}

  const Outcome& Serial(const AnyLayoutArchitecture& architecture, Dtype dtype) {
    const auto key = std::make_pair(std::string(architecture.name), dtype);
    const auto found = serial_.find(key);
    if (found != serial_.end()) return found->second;
    const RunSettings settings = SettingsOf(AnyLayoutDeckOf(architecture, ""), tokens_, 1, dtype);
    return serial_[key] = RunDeck(self_, tokens_, settings, kAnyLayoutDeckSteps);
  }

  // Whether the layout fits; if so, it was compared.
  bool Compare(const comm::Communicator& group, const AnyLayoutArchitecture& architecture,
               const std::string& layout, Dtype dtype) {
    RunSettings settings;
    try {
      settings = SettingsOf(AnyLayoutDeckOf(architecture, layout), tokens_, group.Size(), dtype);
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput) << error.what();
      return false;
    }
    const Outcome& wanted = Serial(architecture, dtype);
    const Outcome got = RunDeck(group, tokens_, settings, kAnyLayoutDeckSteps);
    const std::string what =
        fmt::format("{} on {} ranks\n{}", architecture.name, group.Size(), layout);
    EXPECT_LT(WorstRelative(got.losses, wanted.losses),
              dtype == Dtype::kFloat64 ? kAnyLayoutFp64 : kAnyLayoutFp32)
        << what;
    if (dtype == Dtype::kFloat32) return true;
    EXPECT_LT(WorstRelative({got.norm}, {wanted.norm}), kAnyLayoutFp64) << what;
    EXPECT_LT(RuleFourDifference(got.gradients, wanted.gradients).relative, kAnyLayoutFp64) << what;
    EXPECT_LT(RuleFourDifference(got.weights, wanted.weights).relative, kAnyLayoutFp64) << what;
    return true;
  }

  // Each layout of each number of ranks with one of the architectures that fit it; how many fit.
  template <typename Layouts>
  int CompareAll(const Layouts& layouts_of) {
    int compared = 0;
    for (int ranks = 1; ranks <= world_.Size(); ++ranks) {
      const bool member = world_.Rank() < ranks;
      const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
      if (!member) continue;
      auto next = static_cast<std::size_t>(ranks);  // the same on all members
      for (const std::string& layout : layouts_of(ranks)) {
        // Architectures in turn; where one does not fit the layout, the next.
        for (std::size_t tried = 0; tried < kAnyLayoutArchitectures.size(); ++tried) {
          const AnyLayoutArchitecture& architecture =
              kAnyLayoutArchitectures[next++ % kAnyLayoutArchitectures.size()];
          if (!Compare(group, architecture, layout, Dtype::kFloat64)) continue;
          ++compared;
          break;
        }
      }
    }
    return compared;
  }

  std::map<std::pair<std::string, Dtype>, Outcome> serial_;
};

// The layouts of `ranks` ranks as deck text.
std::vector<std::string> LayoutsOf(int ranks) {
  std::vector<std::string> layouts;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int pipeline = 1; pipeline <= ranks / tensor; ++pipeline) {
      if (ranks % (tensor * pipeline) != 0) continue;
      for (const char* sequence : {"no", "yes"}) {
        if (tensor == 1 && *sequence == 'y') continue;
        for (const char* schedule : {"1f1b", "gpipe", "zero_bubble", "interleaved"}) {
          if (pipeline == 1 && std::string(schedule) != "1f1b") continue;
          for (const char* recompute : {"none", "selective", "full"}) {
            layouts.push_back(fmt::format(
                "tensor={}\npipeline={}\n{}[pipeline]\nschedule={}\n{}[model]\nrecompute={}\n"
                "[data]\nmicro_batch=1\n",
                tensor, pipeline, *sequence == 'y' ? "sequence_parallel=yes\n" : "", schedule,
                std::string(schedule) == "interleaved" ? "chunks=2\n" : "", recompute));
          }
        }
      }
    }
  }
  return layouts;
}

// Every kind of sharding with every size of its groups, where there are data ranks; with context
// ranks one of these, or none, in turn. Of 4 and 8 ranks, and 6 data ranks, whose groups have
// divisors. What else a layout has takes turns.
std::vector<std::string> ShardedLayoutsOf(int ranks) {
  constexpr std::array kKinds = {"optimizer", "gradients", "parameters"};
  constexpr std::array kSchedules = {"1f1b", "zero_bubble", "gpipe", "interleaved"};
  constexpr std::array kRecompute = {"none", "full", "selective"};
  std::vector<std::string> layouts;
  if (ranks % 2 != 0 || ranks == 2) return layouts;
  const auto add = [&](int tensor, int pipeline, int context, const char* kind, int shard_group) {
    const std::size_t turn = layouts.size();
    const char* schedule = kSchedules[turn % kSchedules.size()];
    std::string layout =
        fmt::format("tensor={}\npipeline={}\ncontext={}\n", tensor, pipeline, context);
    if (shard_group > 1) {
      layout += fmt::format("sharding={}\nshard_group={}\nprefetch={}\noverlap={}\n", kind,
                            shard_group, turn % 3, turn % 5 == 0 ? "no" : "yes");
    }
    if (tensor > 1 && turn % 2 == 0) layout += "sequence_parallel=yes\n";
    layouts.push_back(
        layout + fmt::format("[pipeline]\nschedule={}\n{}[model]\nrecompute={}\n[data]\n"
                             "micro_batch=1\n",
                             schedule, std::string(schedule) == "interleaved" ? "chunks=2\n" : "",
                             kRecompute[turn % kRecompute.size()]));
  };
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int pipeline = 1; pipeline <= ranks / tensor; ++pipeline) {
      if (ranks % (tensor * pipeline) != 0 || (ranks == 6 && tensor * pipeline > 1)) continue;
      const int group = ranks / (tensor * pipeline);  // data x context ranks
      for (int shards = 2; shards <= group; ++shards) {
        if (group % shards != 0) continue;
        for (const char* kind : kKinds) add(tensor, pipeline, 1, kind, shards);
        // As many context ranks as there are in a shard group.
        const std::size_t turn = layouts.size();
        add(tensor, pipeline, shards, kKinds[turn % kKinds.size()], turn % 2 == 0 ? group : 1);
      }
    }
  }
  return layouts;
}

TEST_F(AnyLayout, EveryShardingAndContextEqualsTheSerialRun) {
  const int compared = CompareAll(ShardedLayoutsOf);
  if (world_.IsRoot()) {
    EXPECT_GT(compared, 50);
    RecordProperty("compared", compared);
  }
}

TEST_F(AnyLayout, EveryGridScheduleAndRecomputationEqualsTheSerialRun) {
  const int compared = CompareAll(LayoutsOf);
  if (world_.IsRoot()) {
    EXPECT_GT(compared, 250);
    RecordProperty("compared", compared);
  }
}

// fp32, as users run it, on the grids with the most to go wrong.
TEST_F(AnyLayout, LossesInSinglePrecision) {
  int compared = 0;
  for (const char* layout :
       {"tensor=2\npipeline=2\nsequence_parallel=yes\n[pipeline]\nschedule=zero_bubble\n",
        "tensor=4\npipeline=2\n[pipeline]\nschedule=interleaved\nchunks=2\n[data]\nmicro_batch=3\n",
        "tensor=8\nsequence_parallel=yes\n[model]\nrecompute=full\n", "pipeline=4\n", "tensor=2\n",
        "sharding=parameters\n[data]\nmicro_batch=1\n", "context=4\n",
        "context=2\npipeline=2\nsharding=gradients\nshard_group=2\n"}) {
    for (const AnyLayoutArchitecture& architecture : kAnyLayoutArchitectures) {
      compared += Compare(world_, architecture, layout, Dtype::kFloat32) ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 9);
}

// Training clears gradients in the update instead of before the next step: the same bits.
TEST_F(AnyLayout, GradientsClearedOnTheWay) {
  for (const char* sharding : {"none", "optimizer", "gradients", "parameters"}) {
    for (const char* pipeline : {"pipeline=1", "pipeline=2\n[pipeline]\nschedule=zero_bubble"}) {
      const std::string layout = fmt::format("sharding={}\n{}\n", sharding, pipeline);
      RunSettings settings = SettingsOf(AnyLayoutDeckOf(kAnyLayoutArchitectures[0], layout),
                                        tokens_, world_.Size(), Dtype::kFloat32);
      const Tensors kept = RunDeck(world_, tokens_, settings, kAnyLayoutDeckSteps).weights;
      settings.keep_gradients = false;
      EXPECT_EQ(RunDeck(world_, tokens_, settings, kAnyLayoutDeckSteps).weights, kept) << layout;
    }
  }
}

// The comparison itself must be able to fail: known mistakes, each where it matters. Some let the
// copies of a weight go apart, which is said before they are compared with the serial run's.
TEST_F(AnyLayout, KnownMistakesAreSeen) {
  struct Case {
    Defect defect;
    const char* layout;
    bool apart = false;
  };
  constexpr double kVisible = 1e-7;
  for (const Case& mistake :
       {Case{Defect::kNormGradientNotSummed, "tensor=2\nsequence_parallel=yes\n", true},
        Case{Defect::kDataRanksWeighed, "tensor=2\npipeline=1\n"},
        Case{Defect::kTiedGradientNotSummed, "pipeline=2\n", true},
        Case{Defect::kUsedBeforeGather, "sharding=parameters\n"},
        Case{Defect::kRingOffsetWrong, "context=2\n"}}) {
    RunSettings settings = SettingsOf(AnyLayoutDeckOf(kAnyLayoutArchitectures[0], mistake.layout),
                                      tokens_, world_.Size(), Dtype::kFloat64);
    settings.defect = mistake.defect;
    if (mistake.apart) {
      EXPECT_THROW(RunDeck(world_, tokens_, settings, kAnyLayoutDeckSteps), Error)
          << mistake.layout;
      continue;
    }
    const Outcome& wanted = Serial(kAnyLayoutArchitectures[0], Dtype::kFloat64);
    const Outcome got = RunDeck(world_, tokens_, settings, kAnyLayoutDeckSteps);
    EXPECT_GT(RuleFourDifference(got.weights, wanted.weights).relative, kVisible) << mistake.layout;
  }
}

}  // namespace
}  // namespace trireme::test
