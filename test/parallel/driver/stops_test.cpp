// Requests to stop in an evaluation and in the construction of a model: all ranks are asked equally
// often, all stop together, and a question that is answered with no changes no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "layout_fixture.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

constexpr int kStopsRanks = 4;

// 98 windows: of four data ranks two take 25, in rounds of 8, and two 24, a round less.
data::TokenData UnevenTokens() {
  data::TokenData data = ManyTokens();
  data.tokens[0].resize(98 * kLength - 2);
  return data;
}

struct StopsLayout {
  comm::GridShape grid;
  comm::Sharding sharding = comm::Sharding::kNone;
};
const std::vector<StopsLayout> kStopsLayouts = {
    {{.pipeline = 1, .data = 4, .context = 1, .tensor = 1}},
    {{.pipeline = 1, .data = 4, .context = 1, .tensor = 1}, comm::Sharding::kParameters},
    {{.pipeline = 2, .data = 2, .context = 1, .tensor = 1}},
    {{.pipeline = 1, .data = 2, .context = 2, .tensor = 1}}};

RunSettings StopsSettingsOf(const StopsLayout& layout) {
  RunSettings settings = SmallSettings(Dtype::kFloat32, 1);
  settings.grid = layout.grid;
  settings.options.sharding = layout.sharding;
  return settings;
}

class Stops : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), kStopsRanks); }
  // `count` is the same on all ranks.
  void ExpectSame(std::int64_t count) const {
    EXPECT_EQ(world_.Max(count), world_.Min(count)) << "rank " << world_.Rank();
  }
  const comm::Communicator world_ = World();
  const data::TokenFile tokens_{world_, UnevenTokens()};
};

TEST_F(Stops, AQuestionChangesNoBitOfAnEvaluation) {
  for (const StopsLayout& layout : kStopsLayouts) {
    TrainingRun run(world_, tokens_, StopsSettingsOf(layout));
    const auto wanted = train::Evaluate(run.Net(), tokens_, data::Split::kTrain);
    EXPECT_FALSE(wanted.stopped);
    std::int64_t asked = 0;
    const auto got = train::Evaluate(run.Net(), tokens_, data::Split::kTrain, {.stop = [&] {
                                       ++asked;
                                       return false;
                                     }});
    EXPECT_GT(asked, 2);
    ExpectSame(asked);
    EXPECT_FALSE(got.stopped);
    EXPECT_EQ(got.loss, wanted.loss);
    EXPECT_EQ(got.targets, tokens_.Size(data::Split::kTrain) - 1);
  }
}

TEST_F(Stops, OneRanksWishStopsTheEvaluationOfAll) {
  for (const StopsLayout& layout : kStopsLayouts) {
    TrainingRun run(world_, tokens_, StopsSettingsOf(layout));
    const auto whole = train::Evaluate(run.Net(), tokens_, data::Split::kTrain);
    std::int64_t asked = 0;
    const auto got = train::Evaluate(run.Net(), tokens_, data::Split::kTrain,
                                     {.stop = [&] { return ++asked == 2 && world_.Rank() == 2; }});
    EXPECT_EQ(asked, 2);
    EXPECT_TRUE(got.stopped);
    EXPECT_TRUE(std::isnan(got.loss));
    EXPECT_EQ(got.targets, 0);
    // No rest of the stopped evaluation is left over.
    EXPECT_EQ(train::Evaluate(run.Net(), tokens_, data::Split::kTrain).loss, whole.loss);
  }
}

TEST_F(Stops, AllRanksPauseEquallyOftenInTheConstruction) {
  for (const StopsLayout& layout : kStopsLayouts) {
    const RunSettings settings = StopsSettingsOf(layout);
    const comm::ProcessGrid grid(world_, layout.grid, settings.options);
    const auto plan =
        train::PlanTraining(settings, tokens_.Size(data::Split::kTrain), grid.Shape());
    std::int64_t pauses = 0;
    {
      const train::TrainingState state(grid, plan, {}, [&] { ++pauses; });
    }
    EXPECT_GT(pauses, 2);
    ExpectSame(pauses);
    std::int64_t before = 0;
    const auto stop = [&] {
      if (++before == 2) throw AgreedError(ExitCode::kStopped, "stopped");
    };
    EXPECT_THROW(const train::TrainingState state(grid, plan, {}, stop), AgreedError);
    EXPECT_EQ(before, 2);
  }
}

}  // namespace
}  // namespace trireme::test
