// Evaluations with overlapping windows, of samples of windows and of given windows: each target
// once, with the context that was promised, and the serial run's numbers in every layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "layout_fixture.hpp"
#include "masked_tokens.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

constexpr int kEvaluationRanks = 4;
constexpr double kEvaluationFp64 = 1e-11;  // relative
constexpr data::Split kSplit = data::Split::kValid;

constexpr std::array kGrids = {comm::GridShape{1, 4, 1, 1}, comm::GridShape{1, 1, 4, 1},
                               comm::GridShape{2, 1, 2, 1}, comm::GridShape{2, 2, 1, 1}};

data::TokenData Masked() {
  data::TokenData data = SyntheticTokens();
  AddLossMask(data);
  data.documents[1] = {0, 5, 6, 20, 41};
  return data;
}

class EvaluationLayouts : public LayoutTest {
 protected:
  EvaluationLayouts() : LayoutTest(Masked()) {}
  void SetUp() override { ASSERT_EQ(world_.Size(), kEvaluationRanks); }

  static RunSettings Settings(const comm::GridShape& grid, bool sharded = false,
                              bool document_mask = false) {
    RunSettings settings = SmallSettings(Dtype::kFloat64, 3);
    model::Options& options = settings.model.options;
    options.dropout = options.attention_dropout = options.ffn_dropout = 0;
    settings.model.label_smoothing = 0;
    settings.model.document_mask = document_mask;
    settings.grid = grid;
    if (sharded) settings.options.sharding = comm::Sharding::kParameters;
    return settings;
  }
  static RunSettings Serial(bool document_mask = false) {
    return Settings({1, 1, 1, 1}, false, document_mask);
  }

  // Losses by offset of the target, of all ranks; each must be visited once.
  struct Outcome {
    train::Evaluation result;
    std::map<std::int64_t, double> losses;
  };
  static Outcome Collect(
      const comm::Communicator& group, std::int64_t tokens,
      const std::function<train::Evaluation(const std::function<void(std::int64_t, double)>&)>&
          evaluate) {
    std::vector<double> losses(static_cast<std::size_t>(tokens)), visits(losses.size());
    Outcome outcome;
    outcome.result = evaluate([&](std::int64_t token, double loss) {
      losses.at(static_cast<std::size_t>(token)) += loss;
      visits.at(static_cast<std::size_t>(token)) += 1;
    });
    group.Sum(losses);
    group.Sum(visits);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_LE(visits[i], 1) << "target " << i << " counts more than once";
      if (visits[i] > 0) outcome.losses[static_cast<std::int64_t>(i)] = losses[i];
    }
    return outcome;
  }
  Outcome Evaluated(const comm::Communicator& group, TrainingRun& run,
                    train::EvaluationOptions options) const {
    return Collect(group, tokens_.Size(kSplit), [&](const auto& visit) {
      options.visit = visit;
      return train::Evaluate(run.Net(), tokens_, kSplit, options);
    });
  }

  // Loss of a target by the serial model, in a window of its own that begins at `start`.
  double LossIn(TrainingRun& run, std::int64_t start, std::int64_t target) const {
    const data::Sample window{.ordinal = 0,
                              .start = start,
                              .targets = std::min(kLength, tokens_.Size(kSplit) - 1 - start),
                              .source = 0};
    std::vector<data::Window> windows(1);
    tokens_.Read(kSplit, window.start, window.targets + 1, windows[0]);
    data::Entry entry;
    data::FillEntry(windows, {&window, 1}, kLength, entry, {}, run.Net().Plan().document_mask);
    std::vector<double> losses(static_cast<std::size_t>(kLength));
    static_cast<void>(run.Net().Loss({&entry, 1}, losses.data()));
    return losses.at(static_cast<std::size_t>(target - start - 1));
  }

  static void ExpectSame(const Outcome& got, const Outcome& wanted, const std::string& where) {
    EXPECT_EQ(got.result.targets, wanted.result.targets) << where;
    EXPECT_EQ(got.result.windows, wanted.result.windows) << where;
    EXPECT_NEAR(got.result.loss, wanted.result.loss, kEvaluationFp64 * wanted.result.loss) << where;
    ASSERT_EQ(got.losses.size(), wanted.losses.size()) << where;
    for (const auto& [target, loss] : wanted.losses) {
      ASSERT_TRUE(got.losses.contains(target)) << where << ", target " << target;
      EXPECT_NEAR(got.losses.at(target), loss, kEvaluationFp64 * std::max(1.0, loss)) << where;
    }
  }
};

TEST_F(EvaluationLayouts, OverlappingWindowsCountEachTargetOnceWithItsContext) {
  for (const bool documents : {false, true}) {
    TrainingRun serial(self_, tokens_, Serial(documents));
    const auto plain = Evaluated(self_, serial, {});
    for (const std::int64_t stride : {1, 3, 5, 7}) {
      const Outcome wanted = Evaluated(self_, serial, {.stride = stride});
      ASSERT_EQ(wanted.losses.size(), plain.losses.size());
      EXPECT_EQ(wanted.result.targets, std::ssize(wanted.losses));
      ExactSum sum;
      for (const auto& [target, loss] : wanted.losses) {
        sum.Add(loss);
        // The first window that holds it.
        const std::int64_t late = std::max<std::int64_t>(0, target - kLength);
        const std::int64_t start = (late + stride - 1) / stride * stride;
        EXPECT_TRUE(start == 0 || target - start >= kLength - stride) << target;
        EXPECT_NEAR(loss, LossIn(serial, start, target), kEvaluationFp64 * loss) << target;
      }
      EXPECT_EQ(sum.Value(), wanted.result.nats);
      for (const comm::GridShape& grid : kGrids) {
        TrainingRun run(world_, tokens_, Settings(grid, false, documents));
        ExpectSame(Evaluated(world_, run, {.stride = stride}), wanted, comm::Describe(grid));
      }
    }
  }
}

TEST_F(EvaluationLayouts, StrideOfALengthIsTheDefaultToTheBit) {
  TrainingRun run(self_, tokens_, Serial());
  const auto plain = train::Evaluate(run.Net(), tokens_, kSplit);
  EXPECT_EQ(plain.loss, train::Evaluate(run.Net(), tokens_, kSplit, {.stride = kLength}).loss);
  EXPECT_NE(plain.loss, train::Evaluate(run.Net(), tokens_, kSplit, {.stride = 3}).loss);
  EXPECT_EQ(plain.loss, plain.nats / static_cast<double>(plain.targets));
  EXPECT_EQ(plain.windows, plain.all_windows);
}

TEST_F(EvaluationLayouts, ASampleOfWindowsIsTheSameInEveryLayout) {
  TrainingRun serial(self_, tokens_, Serial());
  const Outcome all = Evaluated(self_, serial, {});
  const Outcome wanted = Evaluated(self_, serial, {.windows = 3, .seed = 5});
  EXPECT_EQ(wanted.result.windows, 3);
  EXPECT_EQ(wanted.result.all_windows, all.result.windows);
  EXPECT_LT(wanted.losses.size(), all.losses.size());
  for (const auto& [target, loss] : wanted.losses) EXPECT_EQ(loss, all.losses.at(target));
  for (const bool sharded : {false, true}) {
    for (const comm::GridShape& grid : kGrids) {
      if (sharded && grid.data == 1) continue;
      TrainingRun run(world_, tokens_, Settings(grid, sharded));
      ExpectSame(Evaluated(world_, run, {.windows = 3, .seed = 5}), wanted, comm::Describe(grid));
    }
  }
  // Again the same; another seed, another sample; more than there are, all.
  EXPECT_EQ(Evaluated(self_, serial, {.windows = 3, .seed = 5}).losses, wanted.losses);
  EXPECT_NE(Evaluated(self_, serial, {.windows = 3, .seed = 6}).losses, wanted.losses);
  EXPECT_EQ(Evaluated(self_, serial, {.windows = 100, .seed = 5}).losses, all.losses);
}

TEST_F(EvaluationLayouts, GivenWindowsMayLieAnywhere) {
  const std::vector<data::Sample> windows = {
      {.ordinal = 0, .start = 2, .targets = 5, .source = 0},
      {.ordinal = 1, .start = 30, .targets = 7, .source = 0},
      {.ordinal = 2, .start = 10, .targets = 1, .source = 0}};
  const auto of = [&](const comm::Communicator& group, TrainingRun& run) {
    return Collect(group, tokens_.Size(kSplit), [&](const auto& visit) {
      return train::EvaluateWindows(run.Net(), tokens_, kSplit, windows, {.visit = visit});
    });
  };
  TrainingRun serial(self_, tokens_, Serial());
  const Outcome wanted = of(self_, serial);
  EXPECT_GT(wanted.losses.size(), 5U);
  for (const auto& [target, loss] : wanted.losses) {
    const std::int64_t start = target > 30 ? 30 : target > 10 ? 10 : 2;
    EXPECT_NEAR(loss, LossIn(serial, start, target), kEvaluationFp64 * loss);
  }
  for (const comm::GridShape& grid : kGrids) {
    TrainingRun run(world_, tokens_, Settings(grid));
    ExpectSame(of(world_, run), wanted, comm::Describe(grid));
  }
}

}  // namespace
}  // namespace trireme::test
