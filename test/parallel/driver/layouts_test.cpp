// Rule 4: every number of ranks and micro-batches computes the serial run's numbers; the same
// layout the same bits; a stop and a resume, in the same or another layout, change nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "rule_four.hpp"
#include "small_run.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

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
  SmallRun whole(world_, *tokens_, Dtype::kFloat32, 2);
  const std::vector<double> losses = whole.Train(kEnd);
  for (std::int64_t stop = 0; stop < kEnd; ++stop) {
    const std::string folder = folder_ / ("stop" + std::to_string(stop));
    world_.Together([&] {
      if (world_.IsRoot()) std::filesystem::create_directories(folder);
    });
    SmallRun before(world_, *tokens_, Dtype::kFloat32, 2);
    before.Train(stop);
    before.Save(folder);
    SmallRun after(world_, *tokens_, Dtype::kFloat32, 2);
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

}  // namespace
}  // namespace trireme::test
