// Steps with a value that is not finite, in every kind of layout: all ranks leave the update out
// together, the next steps are those of the serial run that left out the same one, and rank, tensor
// and layer are named.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "forwarding_channel.hpp"
#include "layout_fixture.hpp"

namespace trireme::test {
namespace {

constexpr int kBadStepsRanks = 2;
constexpr int kGuilty = 1;                              // rank
constexpr std::int64_t kSpoiled = 2, kBadStepsEnd = 6;  // steps, from 0
constexpr double kBadStepsFp64 = 1e-11;  // relative, losses; weights in rule 4's norm
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct BadStepsLayout {
  const char* name;
  comm::GridShape grid;
  comm::Sharding sharding;
  comm::Group spoiled;  // group of the transfers that a test spoils
};
const comm::GridShape kData{.pipeline = 1, .data = kBadStepsRanks, .context = 1, .tensor = 1};
const std::vector<BadStepsLayout> kBadStepsLayouts = {
    {"data", kData, comm::Sharding::kNone, comm::Group::kData},
    {"ZeRO-1", kData, comm::Sharding::kOptimizer, comm::Group::kShard},
    {"ZeRO-3", kData, comm::Sharding::kParameters, comm::Group::kShard},
    {"tensor", {1, 1, 1, kBadStepsRanks}, comm::Sharding::kNone, comm::Group::kTensor},
    {"pipeline", {kBadStepsRanks, 1, 1, 1}, comm::Sharding::kNone, comm::Group::kPipeline},
    {"context", {1, 1, kBadStepsRanks, 1}, comm::Sharding::kNone, comm::Group::kContext}};

// The first transfer that arrives while *armed holds is spoiled.
class NanChannel final : public ForwardingChannel {
 public:
  NanChannel(const comm::Collectives& plain, std::shared_ptr<bool> armed)
      : ForwardingChannel(plain), armed_(std::move(armed)) {}

 protected:
  void After(const comm::Operation& o, std::int64_t arrived) override {
    if (!*armed_ || arrived == 0) return;
    *armed_ = false;
    DispatchDtype(o.dtype, [&](auto zero) {
      std::fill_n(static_cast<decltype(zero)*>(o.to), arrived, static_cast<decltype(zero)>(kNan));
    });
  }

 private:
  std::shared_ptr<bool> armed_;
};

// A run with a channel of its own in front of one group.
class SpoiledRun {
 public:
  SpoiledRun(const comm::Communicator& group, const data::TokenFile& tokens,
             const RunSettings& settings, comm::Group spoiled = comm::Group::kWorld)
      : grid_(group, *settings.grid, settings.options),
        state_(Armed(spoiled),
               train::PlanTraining(settings, tokens.Size(data::Split::kTrain), grid_.Shape()), {}),
        step_(state_, tokens),
        group_(group) {}

  // Losses up to kBadStepsEnd; in step kSpoiled something is spoiled on this rank, if it is guilty,
  // while the step runs.
  std::vector<double> Train(bool guilty, bool transfer) {
    std::vector<double> losses;
    for (std::int64_t step = 0; step < kBadStepsEnd; ++step) {
      if (step == kSpoiled && transfer) *armed_ = guilty;
      double* const value = step == kSpoiled && !transfer && guilty ? Victim() : nullptr;
      const double kept = value == nullptr ? 0 : std::exchange(*value, kNan);
      const auto result = step_.Run(step, {}, train::OnFault::kSkip);
      if (value != nullptr) *value = kept;
      EXPECT_EQ(result.fault.has_value(), step == kSpoiled) << step;
      EXPECT_EQ(std::isnan(result.loss), step == kSpoiled);
      EXPECT_EQ(std::isnan(result.gradient_norm), step == kSpoiled);
      EXPECT_GT(result.learning_rate, 0);
      losses.push_back(result.loss);
      if (result.fault) fault_ = *result.fault;
    }
    return losses;
  }
  // Name of the parameter that was spoiled on this rank.
  const std::string& Name() const { return name_; }
  const train::Fault& Fault() const { return fault_; }
  bool Spent() const { return !*armed_; }
  Tensors Weights() { return WholeTensors(group_, state_.Net().Blocks()); }

 private:
  const comm::ProcessGrid& Armed(comm::Group spoiled) {
    if (spoiled == comm::Group::kWorld) return grid_;
    grid_.Decorate(spoiled, [this](const comm::Collectives& plain) {
      return std::make_unique<NanChannel>(plain, armed_);
    });
    return grid_;
  }
  // An element of the last block's first parameter that this rank holds.
  double* Victim() {
    for (const kernels::StateBlock& block : state_.Net().Blocks()) {
      if (!block.name.starts_with("blocks.1.") || block.begin == block.end) continue;
      name_ = block.name;
      return static_cast<double*>(block.data);
    }
    ADD_FAILURE() << "this rank holds nothing of the last block";
    return nullptr;
  }

  const std::shared_ptr<bool> armed_ = std::make_shared<bool>(false);
  comm::ProcessGrid grid_;
  train::TrainingState state_;
  train::TrainingStep step_;
  const comm::Communicator& group_;
  std::string name_;
  train::Fault fault_;
};

class BadSteps : public LayoutTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), kBadStepsRanks); }
  RunSettings SettingsOf(const BadStepsLayout& layout) const {
    RunSettings settings = SmallSettings(Dtype::kFloat64, 2);
    settings.grid = layout.grid;
    settings.options.sharding = layout.sharding;
    settings.model.options.kv_heads = 3;
    settings.keep_gradients = GetParam();
    return settings;
  }
  // The serial run that leaves out the same step.
  SpoiledRun Serial() {
    return {self_, tokens_, SettingsOf({"serial", {1, 1, 1, 1}, comm::Sharding::kNone, {}})};
  }
  void Compare(SpoiledRun& run, const std::vector<double>& losses, SpoiledRun& serial,
               const std::vector<double>& wanted, const char* name) {
    for (std::int64_t step = 0; step < kBadStepsEnd; ++step) {
      if (step == kSpoiled) continue;
      const auto i = static_cast<std::size_t>(step);
      EXPECT_NEAR(losses[i] / wanted[i], 1, kBadStepsFp64) << name << ", step " << step;
    }
    EXPECT_LT(RuleFourDifference(run.Weights(), serial.Weights()).relative, kBadStepsFp64) << name;
  }
};

TEST_P(BadSteps, AParameterOfOneRankIsNamedAndNothingLeaks) {
  SpoiledRun serial = Serial();
  const std::vector<double> wanted = serial.Train(true, false);
  for (const BadStepsLayout& layout : kBadStepsLayouts) {
    SpoiledRun run(world_, tokens_, SettingsOf(layout));
    const std::vector<double> losses = run.Train(world_.Rank() == kGuilty, false);
    Compare(run, losses, serial, wanted, layout.name);
    const std::string name = world_.Broadcast(run.Name(), kGuilty);
    EXPECT_EQ(run.Fault().rank, kGuilty) << layout.name;
    const std::string text = run.Fault().Text("node07");
    EXPECT_THAT(text, testing::HasSubstr("not finite on rank 1 (node07)")) << layout.name;
    EXPECT_THAT(text, testing::HasSubstr("nor is the parameter " + name + " (layer 2 of 2)"));
  }
}

TEST_P(BadSteps, ATransferThatArrivesSpoiledOnOneRankIsLeftOutByAll) {
  SpoiledRun serial = Serial();
  const std::vector<double> wanted = serial.Train(true, false);
  for (const BadStepsLayout& layout : kBadStepsLayouts) {
    SpoiledRun run(world_, tokens_, SettingsOf(layout), layout.spoiled);
    const std::vector<double> losses = run.Train(world_.Rank() == kGuilty, true);
    EXPECT_TRUE(run.Spent()) << layout.name << ": no transfer was spoiled";
    Compare(run, losses, serial, wanted, layout.name);
    EXPECT_THAT(run.Fault().Text(), testing::HasSubstr("is not finite")) << layout.name;
  }
}

TEST_P(BadSteps, TheSameStepLeftOutGivesTheSameBits) {
  for (const BadStepsLayout& layout : kBadStepsLayouts) {
    std::vector<std::vector<double>> losses;
    std::vector<Tensors> weights;
    for (int time = 0; time < 2; ++time) {
      SpoiledRun run(world_, tokens_, SettingsOf(layout), layout.spoiled);
      losses.push_back(run.Train(world_.Rank() == kGuilty, true));
      losses.back()[kSpoiled] = 0;  // not a number
      weights.push_back(run.Weights());
    }
    EXPECT_EQ(losses[0], losses[1]) << layout.name;
    EXPECT_EQ(weights[0], weights[1]) << layout.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Gradients, BadSteps, testing::Bool(), [](const auto& info) {
  return info.param ? "Kept" : "ClearedByTheUpdate";
});

}  // namespace
}  // namespace trireme::test
