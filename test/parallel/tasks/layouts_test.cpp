// Layouts: losses and weights are those of the serial run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rule_four.hpp"
#include "small_run.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

// Rule 4: every number of ranks and micro-batches computes the serial run's numbers; the same
// layout the same bits; a stop and a resume, in the same or another layout, change nothing.

constexpr double kLayoutsFp64 = 1e-11;  // relative, losses; weights in rule 4's norm
constexpr double kLayoutsFp32 = 1e-5;   // relative, losses over 20 steps
constexpr int kRankCounts[] = {1, 2, 3, 4, 8};

class Layouts : public testing::Test {
 protected:
  Layouts()
      : world_(World()),
        node_(world_.SplitNode()),
        self_(comm::Communicator::Adopt(MPI_COMM_SELF)),
        folder_(world_) {
    const std::string path = folder_ / "tokens.h5";
    world_.Together([&] {
      if (world_.IsRoot()) data::WriteTokenFile(path, SyntheticTokens(), false);
    });
    tokens_ = std::make_unique<data::TokenFile>(world_, node_, path, data::Staging::kSharedMemory);
  }

  // Runs `body(group)` on the first `ranks` ranks.
  template <typename Body>
  void OnRanks(int ranks, Body body) {
    const bool member = world_.Rank() < ranks;
    const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
    if (member) body(group);
  }

  comm::Communicator world_, node_, self_;
  SharedFolder folder_;
  std::unique_ptr<data::TokenFile> tokens_;
};

double LayoutsWorstLoss(const std::vector<double>& got, const std::vector<double>& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::abs(got[i] - wanted[i]) / std::abs(wanted[i]);
    if (std::isnan(difference)) return difference;  // below no tolerance
    worst = std::max(worst, difference);
  }
  return worst;
}

double WorstWeight(const TrainingRun& got, const TrainingRun& wanted) {
  return RuleFourDifference(got.Weights(), wanted.Weights()).relative;
}

TEST_F(Layouts, LossesAndWeightsEqualTheSerialRuns) {
  for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    SmallRun serial(self_, *tokens_, dtype, kBatch);
    const std::vector<double> losses = serial.Train(kSteps);
    ASSERT_LT(losses.back(), losses.front());  // learns: the comparison is about something
    EXPECT_GE(serial.Buckets(), 3U);
    for (const int ranks : kRankCounts) {
      for (const std::int64_t parts : {1, 2, 4}) {
        OnRanks(ranks, [&](const comm::Communicator& group) {
          const std::int64_t share = (kBatch + ranks - 1) / ranks;
          SmallRun run(group, *tokens_, dtype, std::max<std::int64_t>(1, share / parts));
          const std::vector<double> got = run.Train(kSteps);
          const bool fp64 = dtype == Dtype::kFloat64;
          EXPECT_LT(LayoutsWorstLoss(got, losses), fp64 ? kLayoutsFp64 : kLayoutsFp32)
              << ranks << " ranks, " << parts << " parts, " << trireme::NameOf(dtype);
          if (fp64) {
            EXPECT_LT(WorstWeight(run, serial), kLayoutsFp64)
                << ranks << " ranks, " << parts << " parts";
          }
        });
      }
    }
  }
}

TEST_F(Layouts, RanksWithoutSamplesTakePart) {
  constexpr std::int64_t kSmallBatch = 3;
  SmallRun serial(self_, *tokens_, Dtype::kFloat64, kSmallBatch, kSmallBatch);
  SmallRun run(world_, *tokens_, Dtype::kFloat64, 1, kSmallBatch);
  EXPECT_LT(LayoutsWorstLoss(run.Train(kSteps), serial.Train(kSteps)), kLayoutsFp64);
  EXPECT_LT(WorstWeight(run, serial), kLayoutsFp64);
}

TEST_F(Layouts, TheSameLayoutGivesTheSameBits) {
  SmallRun first(world_, *tokens_, Dtype::kFloat32, 1);
  SmallRun second(world_, *tokens_, Dtype::kFloat32, 1);
  EXPECT_EQ(first.Train(kSteps), second.Train(kSteps));
  EXPECT_EQ(first.Weights(), second.Weights());
}

// Eight copies; four of embedding and head, and norms on every tensor rank; copies of shards.
RunSettings WithCopies(const comm::GridShape& shape, const comm::GridOptions& options = {}) {
  RunSettings settings = SmallSettings(Dtype::kFloat32, 1);
  settings.model.options.kv_heads = 3;
  settings.grid = shape;
  settings.options = options;
  return settings;
}

std::vector<RunSettings> LayoutsWithCopies() {
  const comm::GridShape data{1, 8, 1, 1}, cube{2, 2, 1, 2}, ring{1, 2, 2, 2};
  return {WithCopies(data),
          WithCopies(cube),
          WithCopies(ring, {.sequence_parallel = true}),
          WithCopies(data, {.sharding = comm::Sharding::kOptimizer, .shard_group = 4}),
          WithCopies(data, {.sharding = comm::Sharding::kGradients}),
          WithCopies(data, {.sharding = comm::Sharding::kParameters, .shard_group = 2})};
}

TEST_F(Layouts, EveryRankHoldsTheSameWeights) {
  for (const RunSettings& settings : LayoutsWithCopies()) {
    TrainingRun run(world_, *tokens_, settings);
    run.Train(kSteps);
    const std::string layout = comm::Describe(*settings.grid);
    EXPECT_NO_THROW(run.Weights()) << layout;
    EXPECT_NO_THROW(run.Gradients()) << layout;
  }
}

// The last bit of one element of one copy, on the last rank.
TEST_F(Layouts, ACopyThatDiffersIsNamed) {
  const int last = world_.Size() - 1;
  for (const RunSettings& settings : LayoutsWithCopies()) {
    TrainingRun run(world_, *tokens_, settings);
    run.Train(1);
    const std::vector<kernels::StateBlock> blocks = run.Net().Blocks();
    const auto held = std::find_if(blocks.rbegin(), blocks.rend(),
                                   [](const auto& block) { return block.end > block.begin; });
    const std::int64_t place = (held->begin + held->end) / 2;
    const std::string element =
        world_.Broadcast(fmt::format("{}: element {} is ", held->name, place), last);
    if (world_.Rank() == last) {
      float& value = static_cast<float*>(held->data)[place - held->begin];
      value = std::nextafter(value, 1.0F);
    }
    try {
      run.Weights();
      ADD_FAILURE() << comm::Describe(*settings.grid) << ": no copy was found to differ";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(element), std::string::npos) << what << " instead of " << element;
      EXPECT_NE(what.find(fmt::format(" on rank {}", last)), std::string::npos) << what;
    }
  }
}

TEST_F(Layouts, ResumeAfterAnyStepEqualsNoStop) {
  constexpr std::int64_t kEnd = 6;
  RunSettings settings = SmallSettings(Dtype::kFloat32, 2);
  model::Options& model = settings.model.options;
  model.word_dropout = model.layer_dropout = model.weight_dropout = 0.2;
  TrainingRun whole(world_, *tokens_, settings);
  const std::vector<double> losses = whole.Train(kEnd);
  for (std::int64_t stop = 0; stop < kEnd; ++stop) {
    const std::string folder = folder_ / ("stop" + std::to_string(stop));
    world_.Together([&] {
      if (world_.IsRoot()) std::filesystem::create_directories(folder);
    });
    TrainingRun before(world_, *tokens_, settings);
    before.Train(stop);
    before.Save(folder);
    TrainingRun after(world_, *tokens_, settings);
    after.Load(folder);
    const std::vector<double> rest = after.Train(kEnd);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), losses.begin() + stop)) << "stop " << stop;
    EXPECT_EQ(after.Weights(), whole.Weights()) << "stop " << stop;
  }
}

TEST_F(Layouts, ResumeOnAnotherNumberOfRanks) {
  constexpr std::int64_t kStop = 5;
  SmallRun serial(self_, *tokens_, Dtype::kFloat64, kBatch);
  const std::vector<double> losses = serial.Train(kSteps);
  const std::string folder = folder_ / "moved";
  world_.Together([&] {
    if (world_.IsRoot()) std::filesystem::create_directories(folder);
  });
  SmallRun before(world_, *tokens_, Dtype::kFloat64, 1);
  before.Train(kStop);
  before.Save(folder);
  for (const int ranks : {1, 3}) {
    OnRanks(ranks, [&](const comm::Communicator& group) {
      SmallRun after(group, *tokens_, Dtype::kFloat64, 2);
      after.Load(folder);
      const std::vector<double> rest = after.Train(kSteps);
      EXPECT_LT(LayoutsWorstLoss(rest, {losses.begin() + kStop, losses.end()}), kLayoutsFp64)
          << ranks;
      EXPECT_LT(WorstWeight(after, serial), kLayoutsFp64) << ranks;
    });
  }
}

TEST_F(Layouts, EvaluationIsTheSameOnAnyNumberOfRanks) {
  SmallRun serial(self_, *tokens_, Dtype::kFloat64, 2);
  const auto wanted = train::Evaluate(serial.Net(), *tokens_, data::Split::kValid);
  EXPECT_EQ(wanted.targets, tokens_->Size(data::Split::kValid) - 1);
  for (const int ranks : kRankCounts) {
    OnRanks(ranks, [&](const comm::Communicator& group) {
      SmallRun run(group, *tokens_, Dtype::kFloat64, 2);
      const auto got = train::Evaluate(run.Net(), *tokens_, data::Split::kValid);
      EXPECT_EQ(got.targets, wanted.targets);
      EXPECT_NEAR(got.loss, wanted.loss, kLayoutsFp64 * wanted.loss) << ranks << " ranks";
    });
  }
}

// Weights of this rank, widened: not collective.
Tensors LayoutsHeld(TrainingRun& run) {
  Tensors tensors;
  for (const kernels::StateBlock& block : run.Net().Blocks()) {
    const auto* data = static_cast<const float*>(block.data);
    tensors.emplace_back(data, data + (block.end - block.begin));
  }
  return tensors;
}

// One rank's weights are poisoned: all ranks stop with its name, before the weights change.
TEST_F(Layouts, AValueThatIsNotFiniteStopsAllRanksByName) {
  SmallRun run(world_, *tokens_, Dtype::kFloat32, 1);
  run.Train(2);
  const int guilty = world_.Size() - 1;
  if (world_.Rank() == guilty) {
    run.Net().Parameters().Value(0).As<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t i = 0; i < run.Net().Parameters().Value(0).Size(); ++i) {
      run.Net().Parameters().Value(0).As<float>()[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  const Tensors before = LayoutsHeld(run);
  try {
    run.Train(3);
    FAIL() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    const std::string text = error.what();
    EXPECT_NE(text.find("step 3: the loss is not finite on rank " + std::to_string(guilty)),
              std::string::npos)
        << text;
  }
  if (world_.Rank() != guilty) {
    EXPECT_EQ(LayoutsHeld(run), before);
  }
}

// A gradient alone: a norm's weight so large that its gradient overflows while the loss stays
// finite.
TEST_F(Layouts, AGradientThatIsNotFiniteIsNamed) {
  SmallRun run(world_, *tokens_, Dtype::kFloat32, 2);
  const kernels::Registry& registry = run.Net().Parameters();
  const auto& parameters = registry.Parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name != "blocks.1.ffn.down.weight") continue;
    const kernels::Matrix weight = registry.Value(static_cast<int>(i));
    for (std::int64_t j = 0; j < weight.Size(); ++j) {
      weight.As<float>()[j] = j % 2 == 0 ? 3e38F : -3e38F;
    }
  }
  try {
    run.Train(1);
    FAIL() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_NE(std::string(error.what()).find("is not finite"), std::string::npos) << error.what();
  }
}

// Any layout, the same numbers (rule 4): every grid that fits 1 to 8 ranks, with every schedule,
// recomputation and sequence parallelism, every kind of sharding and size of its groups, context
// ranks, against the serial run. Nothing divides, everything is on.

constexpr double kAnyLayoutFp64 =
    1e-11;  // relative: losses, norm; gradients and weights in rule 4's norm
constexpr double kAnyLayoutFp32 = 1e-5;  // relative, losses
constexpr std::int64_t kAnyLayoutDeckSteps = 5;

// Architectures with odd sizes: vocabulary 101 (of the tokens), 5 layers, ffn 17.
struct AnyLayoutArchitecture {
  const char* name;
  const char* keys;
  double label_smoothing = 0.05;
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
                          "tie_embeddings=no\nnorm_position=post\nactivation=gelu\n"},
    AnyLayoutArchitecture{"sampled",
                          "heads=4\nkv_heads=2\nhead_dim=3\ndim=12\nlayers=5\nffn=17\n"
                          "sampled_softmax=31\n",
                          0},
    AnyLayoutArchitecture{"dropped",
                          "heads=4\nkv_heads=2\nhead_dim=3\ndim=12\nlayers=5\nffn=17\n"
                          "word_dropout=0.3\nlayer_dropout=0.5\nweight_dropout=0.2\n"},
    AnyLayoutArchitecture{"dropped_post",
                          "heads=8\nkv_heads=4\nhead_dim=2\ndim=11\nlayers=4\nffn=13\n"
                          "norm_position=post\nposition=sinusoidal\nword_dropout=0.3\n"
                          "layer_dropout=0.5\n"},
    AnyLayoutArchitecture{"z_loss",
                          "heads=6\nkv_heads=2\nhead_dim=2\ndim=12\nlayers=5\nffn=17\n"
                          "norm=rmsnorm\n[optimizer]\nz_loss=0.1\n[model]\n"},
    AnyLayoutArchitecture{"mup",
                          "heads=8\nkv_heads=4\nhead_dim=4\ndim=20\nlayers=5\nffn=19\n"
                          "norm=rmsnorm\nactivation=swiglu\nposition=rope\nbias=no\n"
                          "parametrization=mup\nmup_base=6\nmup_base_head_dim=2\n"},
    AnyLayoutArchitecture{"mup_post",
                          "heads=4\nkv_heads=4\nhead_dim=3\ndim=12\nlayers=5\nffn=17\n"
                          "tie_embeddings=no\nnorm_position=post\nparametrization=mup\n"
                          "mup_base=5\n[optimizer]\nz_loss=0.1\n[model]\n",
                          0}};

std::string AnyLayoutDeckOf(const AnyLayoutArchitecture& architecture, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\n[model]\n{}max_positions=7\n"
      "dropout=0.1\nattention_dropout=0.1\nffn_dropout=0.1\ninit_deviation=0.2\n"
      "[optimizer]\nlearning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing={}\n"
      "[schedule]\nsteps=20\nwarmup_steps=3\n[grid]\nbucket_mib=0.001\n{}",
      architecture.keys, architecture.label_smoothing, layout);
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

// Muon's matrices whole on the ranks of a stage or of a shard group, or in slices on tensor ranks,
// where several may hold the same keys and values; Lion and momentum are by element.
TEST_F(AnyLayout, EachOptimizerEqualsTheSerialRun) {
  for (const std::string kind : {"muon\nmuon_momentum=0.9\ngroups=embedding:0.5,matrices:2:0.2",
                                 "lion", "sgd\nmomentum=0.5"}) {
    const std::string optimizer = "[optimizer]\nkind=" + kind + "\n";
    for (const std::size_t which : {0U, 2U, 8U}) {
      if (which == 8 && kind.starts_with("sgd")) continue;  // which muP refuses
      const AnyLayoutArchitecture& architecture = kAnyLayoutArchitectures[which];
      const auto settings = [&](const std::string& layout, int ranks) {
        const char* const average =
            kind == "lion" ? "average=1\n" : "average=0.7\naverage_from=2\n";
        return SettingsOf(AnyLayoutDeckOf(architecture, layout + optimizer + average), tokens_,
                          ranks, Dtype::kFloat64);
      };
      const Outcome wanted = RunDeck(self_, tokens_, settings("", 1), kAnyLayoutDeckSteps);
      for (const char* layout :
           {"", "pipeline=4\n", "sharding=optimizer\n", "sharding=gradients\nshard_group=4\n",
            "sharding=parameters\n", "pipeline=2\nsharding=optimizer\n", "context=2\n",
            "tensor=2\n", "tensor=4\nsequence_parallel=yes\nsharding=optimizer\n",
            "tensor=2\nsharding=parameters\n", "tensor=2\npipeline=2\nsharding=gradients\n"}) {
        const Outcome got =
            RunDeck(world_, tokens_, settings(layout, world_.Size()), kAnyLayoutDeckSteps);
        EXPECT_LT(WorstRelative(got.losses, wanted.losses), kAnyLayoutFp64) << kind << "\n"
                                                                            << layout;
        EXPECT_LT(RuleFourDifference(got.weights, wanted.weights).relative, kAnyLayoutFp64)
            << kind << "\n"
            << layout;
        EXPECT_NE(got.averages, got.weights);
        EXPECT_LT(RuleFourDifference(got.averages, wanted.averages).relative, kAnyLayoutFp64)
            << kind << "\n"
            << layout;
      }
    }
  }
}

// Batches of 3, 5, 7, 10 and 10 windows, which leave ranks and micro-batches empty; and a run that
// goes on in the middle of the growth from its place in the data, to the bit.
TEST_F(AnyLayout, ABatchThatGrowsEqualsTheSerialRun) {
  const auto settings = [&](std::size_t which, const std::string& layout, int ranks) {
    return SettingsOf(AnyLayoutDeckOf(kAnyLayoutArchitectures[which],
                                      layout + "[schedule]\nbatch_ramp=3\nbatch_start=3\n"),
                      tokens_, ranks, Dtype::kFloat64);
  };
  for (const std::size_t which : {0U, 2U}) {
    const RunSettings serial = settings(which, "", 1);
    const Outcome wanted = RunDeck(self_, tokens_, serial, kAnyLayoutDeckSteps);
    for (const char* layout :
         {"", "pipeline=4\n[data]\nmicro_batch=1\n", "sharding=optimizer\n",
          "sharding=parameters\n[data]\nmicro_batch=1\n", "context=2\n",
          "tensor=2\nsequence_parallel=yes\n",
          "tensor=2\npipeline=2\nsharding=gradients\n[pipeline]\nschedule=zero_bubble\n",
          "tensor=4\npipeline=2\n[pipeline]\nschedule=interleaved\nchunks=2\n[data]\n"
          "micro_batch=3\n"}) {
      const Outcome got =
          RunDeck(world_, tokens_, settings(which, layout, world_.Size()), kAnyLayoutDeckSteps);
      EXPECT_LT(WorstRelative(got.losses, wanted.losses), kAnyLayoutFp64) << layout;
      EXPECT_LT(RuleFourDifference(got.weights, wanted.weights).relative, kAnyLayoutFp64) << layout;
    }
    constexpr std::int64_t kStop = 2;
    const data::Sampler sampler(
        train::PlanTraining(serial, tokens_.Size(data::Split::kTrain), {}).options.samples);
    EXPECT_EQ(sampler.BatchSize(kStop), 7);
    RunSettings rest = serial;
    rest.samples.origin = {kStop, sampler.NextSample(kStop), sampler.TargetsBefore(kStop)};
    const SharedFolder folder(self_);
    TrainingRun before(self_, tokens_, serial), after(self_, tokens_, rest);
    before.Train(kStop);
    before.Save(folder / "stopped");
    after.Load(folder / "stopped");
    EXPECT_EQ(after.Train(kAnyLayoutDeckSteps),
              std::vector<double>(wanted.losses.begin() + kStop, wanted.losses.end()));
    EXPECT_EQ(after.Weights(), wanted.weights);
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

// bf16 by fp32 products of rounded operands: near the serial run's losses in every layout, and not
// those of fp32.
TEST_F(AnyLayout, LossesInBf16ByFp32Products) {
  constexpr double kBf16 = 1e-3, kRounded = 1e-8;  // relative; the least difference from fp32
  for (const std::size_t which : {0U, 2U}) {
    const AnyLayoutArchitecture& architecture = kAnyLayoutArchitectures[which];
    const auto losses = [&](const comm::Communicator& group, const std::string& layout) {
      RunSettings settings =
          SettingsOf(AnyLayoutDeckOf(architecture, layout), tokens_, group.Size(), Dtype::kFloat32);
      settings.stream.bf16 = settings.stream.bf16_by_fp32 = true;
      return RunDeck(group, tokens_, settings, kAnyLayoutDeckSteps).losses;
    };
    const std::vector<double> wanted = losses(self_, "");
    EXPECT_GT(WorstRelative(wanted, Serial(architecture, Dtype::kFloat32).losses), kRounded);
    for (const char* layout : {"", "tensor=2\nsequence_parallel=yes\n", "pipeline=4\n",
                               "sharding=parameters\n", "context=2\ntensor=2\n"}) {
      EXPECT_LT(WorstRelative(losses(world_, layout), wanted), kBf16) << layout;
    }
  }
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

// A mixture of two token files: any layout computes what one rank computes, also with masks of
// documents and of the loss or streamed, and a run that stops goes on in another layout, also with
// other weights.

constexpr double kMixtureLayoutsFp64 = 1e-11;  // relative: losses; weights in rule 4's norm
constexpr std::int64_t kMixtureLayoutsMoved = 4,
                       kMixtureLayoutsEnd = 8;  // steps: when a run moves, when it ends

struct MixtureLayout {
  int ranks;
  const char* keys;
};
constexpr std::array kMixtureLayouts = {
    MixtureLayout{1, "[data]\nmicro_batch=3\n"},
    MixtureLayout{4, "data=2\ntensor=2\n[data]\nmicro_batch=2\n"},
    MixtureLayout{8,
                  "data=2\ntensor=2\npipeline=2\nsequence_parallel=yes\n[data]\nmicro_batch=1\n"},
    MixtureLayout{3, "data=3\nsharding=parameters\n[data]\nmicro_batch=2\n"},
    MixtureLayout{8, "data=2\ncontext=2\ntensor=2\nsharding=optimizer\n[data]\nmicro_batch=3\n"}};

std::string MixtureLayoutsDeckOf(const char* keys, bool masks) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\ndocument_mask={}\n"
      "[model]\nheads=8\nkv_heads=4\n"
      "head_dim=3\ndim=12\nlayers=2\nffn=17\nmax_positions=7\ndropout=0.1\ninit_deviation=0.2\n"
      "[optimizer]\nlearning_rate=1e-2\n[schedule]\nsteps=20\nwarmup_steps=3\n[grid]\n{}",
      masks ? "yes" : "no", keys);
}

// Tokens of another text of the same language, fewer: 12 windows, the last one short.
data::TokenData OtherTokens() {
  data::TokenData data = SyntheticTokens();
  data.tokens[0].resize(80);
  for (std::int32_t& id : data.tokens[0]) id = (id * 3 + 1) % kVocabulary;
  data.source_sha256 = std::string(64, '1');
  return data;
}

class MixtureLayouts : public testing::Test {
 protected:
  // masks: both files know their documents, the second one alone has a mask of the loss.
  explicit MixtureLayouts(bool masks = false)
      : world_(World()), self_(comm::Communicator::Adopt(MPI_COMM_SELF)), masks_(masks) {
    data::TokenData first = SyntheticTokens(), second = OtherTokens();
    if (masks) {
      AddDocuments(first);
      AddDocuments(second);
      AddLossMask(second);
    }
    for (const data::TokenData& data : {first, second}) {
      files_.emplace_back(world_, data);
      const std::string path = folder_ / fmt::format("{}.h5", files_.size());
      world_.Together([&] {
        if (world_.IsRoot()) data::WriteTokenFile(path, data, false);
      });
      streamed_.emplace_back(world_, world_, path, data::Staging::kStream);
    }
  }

  data::Corpus Corpus() const { return data::Corpus(std::span(files_)); }

  // The deck's run on a mixture of the two files, from an origin.
  RunSettings Settings(const MixtureLayout& layout, const std::array<double, 2>& weights,
                       const data::Origin& origin = {}) const {
    train::TokenFacts facts{
        .vocabulary = kVocabulary, .train = 0, .source = "tokens in memory", .loss_mask = masks_};
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::int64_t tokens = files_[i].Size(data::Split::kTrain);
      facts.train += tokens;
      facts.sources.push_back({tokens, {.weight = weights[i]}});
    }
    RunSettings settings = SettingsOf(
        PlanOf(MixtureLayoutsDeckOf(layout.keys, masks_), facts, layout.ranks, Dtype::kFloat64));
    settings.samples.origin = origin;
    return settings;
  }

  // The body on the layout's ranks alone; the others wait.
  template <typename Body>
  void In(const MixtureLayout& layout, const RunSettings& settings, const Body& body) {
    In(layout, settings, files_, body);
  }
  template <typename Body>
  void In(const MixtureLayout& layout, const RunSettings& settings,
          const std::vector<data::TokenFile>& files, const Body& body) {
    SCOPED_TRACE(fmt::format("{} ranks\n{}", layout.ranks, layout.keys));
    const bool member = world_.Rank() < layout.ranks;
    const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
    if (member) {
      TrainingRun run(group, data::Corpus(std::span(files)), settings);
      body(run);
    }
    world_.Barrier();
  }

  Outcome Serial(std::int64_t steps) const {
    return RunDeck(self_, Corpus(), Settings(kMixtureLayouts.front(), {3, 1}), steps);
  }

  comm::Communicator world_, self_;
  const SharedFolder folder_{world_};
  // Losses and weights of every layout against one rank's; returns that rank's.
  Outcome CompareLayouts() {
    const Outcome wanted = Serial(kMixtureLayoutsEnd);
    for (const MixtureLayout& layout : kMixtureLayouts) {
      In(layout, Settings(layout, {3, 1}), [&](TrainingRun& run) {
        EXPECT_LT(WorstRelative(run.Train(kMixtureLayoutsEnd), wanted.losses), kMixtureLayoutsFp64);
        EXPECT_LT(RuleFourDifference(run.Weights(), wanted.weights).relative, kMixtureLayoutsFp64);
      });
    }
    return wanted;
  }

  // Bit by bit: training, validation, and steps that are repeated, from files that are streamed.
  void CompareStreams() {
    struct Numbers {
      std::vector<double> losses, again;
      double valid = 0;
      Tensors weights;
    };
    const auto train = [](TrainingRun& run, const data::TokenFile& tokens) {
      Numbers numbers;
      numbers.losses = run.Train(kMixtureLayoutsEnd);
      numbers.valid = train::Evaluate(run.Net(), tokens, data::Split::kValid).loss;
      numbers.again = run.Train(kMixtureLayoutsEnd + 3);
      numbers.weights = run.Weights();
      return numbers;
    };
    for (const MixtureLayout& layout : kMixtureLayouts) {
      const RunSettings settings = Settings(layout, {3, 1});
      Numbers wanted;
      In(layout, settings, [&](TrainingRun& run) { wanted = train(run, files_.front()); });
      In(layout, settings, streamed_, [&](TrainingRun& run) {
        const Numbers found = train(run, streamed_.front());
        EXPECT_EQ(found.losses, wanted.losses);
        EXPECT_EQ(found.valid, wanted.valid);
        EXPECT_EQ(found.again, wanted.again);
        EXPECT_EQ(found.weights, wanted.weights);
      });
    }
  }

  bool masks_ = false;
  std::vector<data::TokenFile> files_, streamed_;  // in memory; the same, read as needed
};

class MaskedMixtureLayouts : public MixtureLayouts {
 protected:
  MaskedMixtureLayouts() : MixtureLayouts(true) {}
};

TEST_F(MixtureLayouts, ComputeWhatOneRankComputes) {
  const Outcome wanted = CompareLayouts();
  // The second file counts: the first one alone gives other losses.
  TrainingRun alone(self_, files_.front(), [&] {
    RunSettings settings = Settings(kMixtureLayouts.front(), {3, 1});
    settings.samples.sources.clear();
    return settings;
  }());
  EXPECT_GT(WorstRelative(alone.Train(kMixtureLayoutsEnd), wanted.losses), 1e-3);
}

TEST_F(MaskedMixtureLayouts, ComputeWhatOneRankComputes) {
  const Outcome wanted = CompareLayouts();
  // Each mask counts.
  RunSettings settings = Settings(kMixtureLayouts.front(), {3, 1});
  settings.model.document_mask = false;
  TrainingRun crossing(self_, Corpus(), settings);
  EXPECT_GT(WorstRelative(crossing.Train(kMixtureLayoutsEnd), wanted.losses), 1e-3);
  data::TokenData unmasked = OtherTokens();
  AddDocuments(unmasked);
  files_.pop_back();
  files_.emplace_back(world_, unmasked);
  EXPECT_GT(WorstRelative(Serial(kMixtureLayoutsEnd).losses, wanted.losses), 1e-3);
}

TEST_F(MixtureLayouts, StreamsHaveTheSameBits) { CompareStreams(); }
TEST_F(MaskedMixtureLayouts, StreamsHaveTheSameBits) { CompareStreams(); }

data::Origin OriginOf(const data::Sampler& sampler, std::int64_t step) {
  return {step, sampler.NextSample(step), sampler.TargetsBefore(step), sampler.Places(step)};
}

// With the same weights as if it had never stopped; with others alike in all layouts.
TEST_F(MixtureLayouts, GoOnWhereAnyOtherStopped) {
  constexpr std::array<double, 2> kBefore = {3, 1};
  const std::string stopped = folder_ / "stopped";
  In(kMixtureLayouts[1], Settings(kMixtureLayouts[1], kBefore), [&](TrainingRun& run) {
    run.Train(kMixtureLayoutsMoved);
    run.Save(stopped);
  });
  const auto samples = [&](const std::array<double, 2>& weights) {
    return train::PlanTraining(Settings(kMixtureLayouts.front(), weights), 0, {}).options.samples;
  };
  const data::Origin origin = OriginOf(data::Sampler(samples(kBefore)), kMixtureLayoutsMoved);
  const Outcome whole = Serial(kMixtureLayoutsEnd);
  const std::vector<double> rest(whole.losses.begin() + kMixtureLayoutsMoved, whole.losses.end());
  for (const std::array<double, 2>& weights : {kBefore, std::array{1.0, 2.0}}) {
    const data::Origin moved = data::MoveOrigin(origin, samples(kBefore), samples(weights));
    TrainingRun serial(self_, Corpus(), Settings(kMixtureLayouts.front(), weights, moved));
    serial.Load(stopped);
    const std::vector<double> wanted = serial.Train(kMixtureLayoutsEnd);
    const Tensors wanted_weights = serial.Weights();
    if (weights == kBefore) {
      EXPECT_LT(WorstRelative(wanted, rest), kMixtureLayoutsFp64);
    } else {
      EXPECT_GT(WorstRelative(wanted, rest), 1e-3);
    }
    for (const MixtureLayout& layout : kMixtureLayouts) {
      In(layout, Settings(layout, weights, moved), [&](TrainingRun& run) {
        run.Load(stopped);
        EXPECT_LT(WorstRelative(run.Train(kMixtureLayoutsEnd), wanted), kMixtureLayoutsFp64);
        EXPECT_LT(RuleFourDifference(run.Weights(), wanted_weights).relative, kMixtureLayoutsFp64);
      });
    }
  }
}

}  // namespace
}  // namespace trireme::test
