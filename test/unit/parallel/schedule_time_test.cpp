// The bubble of every schedule against the published formulas, for equal and unequal stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "schedule_clock.hpp"
#include "shapes.hpp"

namespace trireme::parallel {
namespace {

constexpr double kRounding = 1e-9;  // of sums of some hundred costs near 1

// Forward, input and weight gradient; the first are those of the papers' figures.
constexpr StageCost kRatios[] = {{1, 1, 1}, {1, 1.5, 0.75}, {2, 2.5, 1.5}, {0.8, 1, 1.3}};

double Whole(const StageCost& cost) {
  return cost.forward + cost.backward_input + cost.backward_weight;
}

void ExpectIdle(const PipelineShape& shape, const StageCost& cost, double bubble) {
  const Simulation run = Simulate(shape, Equal(shape, cost));
  for (const double idle : run.idle) EXPECT_NEAR(idle, bubble, kRounding) << Text(shape);
}

TEST(Bubble, OfGpipeAnd1f1b) {
  for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward}) {
    for (const PipelineShape& shape : Shapes(kind)) {
      for (const StageCost& cost : kRatios) {
        ExpectIdle(shape, cost, (shape.stages - 1) * Whole(cost));
      }
    }
  }
}

TEST(Bubble, OfInterleavedIsThatOf1f1bByChunks) {
  for (const PipelineShape& shape : Shapes(ScheduleKind::kInterleaved)) {
    for (const StageCost& stage : kRatios) {
      const int v = shape.chunks;
      const StageCost chunk{stage.forward / v, stage.backward_input / v, stage.backward_weight / v};
      ExpectIdle(shape, chunk, (shape.stages - 1) * Whole(stage) / v);
    }
  }
}

TEST(Bubble, OfZeroBubble) {
  // Published for M >= P. Where a weight gradient takes longer than a forward pass it cannot be
  // split to fit, and the first stage waits for the first input gradient all the same.
  for (const PipelineShape& shape : Shapes(ScheduleKind::kZeroBubble)) {
    if (shape.micro_batches < shape.stages) continue;
    for (const StageCost& cost : kRatios) {
      const double rest = std::max(0.0, cost.forward - cost.backward_weight);
      ExpectIdle(shape, cost, (shape.stages - 1) * (cost.backward_input + rest));
    }
  }
}

TEST(Bubble, FormulasForUnequalStagesAgreeForEqualOnes) {
  for (const PipelineShape& shape : AllShapes()) {
    for (const StageCost& cost : kRatios) {
      const std::vector<StageCost> costs = Equal(shape, cost);
      const double makespan = Simulate(shape, costs).makespan;
      EXPECT_NEAR(PredictedTime(shape, costs), makespan, kRounding) << Text(shape);
      EXPECT_NEAR(LeastTime(shape, costs), makespan, kRounding) << Text(shape);
    }
  }
}

// Random shapes and costs; `spread`: largest relative deviation from 1; proportional: the same
// ratio of forward and backward pass everywhere.
class Cases {
 public:
  Cases(ScheduleKind kind, double spread, bool proportional)
      : kind_(kind), proportional_(proportional), cost_(1 - spread, 1 + spread) {}
  void Draw() {
    const bool interleaved = kind_ == ScheduleKind::kInterleaved;
    shape_.kind = kind_;
    shape_.stages = Whole(2, 8);
    shape_.chunks = interleaved ? Whole(2, 4) : 1;
    shape_.micro_batches = interleaved ? shape_.stages * Whole(1, 4) : Whole(1, 32);
    costs_.assign(static_cast<std::size_t>(shape_.VirtualStages()), {});
    for (StageCost& cost : costs_) {
      const double one = cost_(random_);
      cost = proportional_ ? StageCost{one, 1.2 * one, 0.9 * one}
                           : StageCost{one, cost_(random_), cost_(random_)};
    }
  }
  const PipelineShape& Shape() const { return shape_; }
  std::vector<StageCost>& Costs() { return costs_; }
  double Simulated() const { return Simulate(shape_, costs_).makespan; }
  double Predicted() const { return PredictedTime(shape_, costs_); }
  double Least() const { return LeastTime(shape_, costs_); }

 private:
  int Whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  ScheduleKind kind_;
  bool proportional_;
  std::mt19937 random_{20231201};
  std::uniform_real_distribution<double> cost_;
  PipelineShape shape_;
  std::vector<StageCost> costs_;
};

constexpr int kDraws = 1000;

TEST(UnequalStages, GpipeIsExact) {
  Cases cases(ScheduleKind::kGpipe, 1, false);
  for (int i = 0; i < kDraws; ++i) {
    cases.Draw();
    EXPECT_NEAR(cases.Predicted(), cases.Simulated(), kRounding) << Text(cases.Shape());
  }
}

TEST(UnequalStages, PublishedTimeOf1f1bIsExactWhereLastIsDearest) {
  Cases cases(ScheduleKind::kOneForwardOneBackward, 0.5, true);
  for (int i = 0; i < kDraws; ++i) {
    cases.Draw();
    auto& costs = cases.Costs();
    const auto dearest = std::max_element(
        costs.begin(), costs.end(),
        [](const StageCost& a, const StageCost& b) { return a.forward < b.forward; });
    std::swap(*dearest, costs.back());
    EXPECT_NEAR(cases.Predicted(), cases.Simulated(), kRounding) << Text(cases.Shape());
  }
}

TEST(UnequalStages, PublishedTimeOf1f1bIsAnUpperBoundForProportionalCosts) {
  Cases cases(ScheduleKind::kOneForwardOneBackward, 0.9, true);
  double largest = 0;
  for (int i = 0; i < kDraws; ++i) {
    cases.Draw();
    EXPECT_GE(cases.Predicted(), cases.Simulated() - kRounding) << Text(cases.Shape());
    largest = std::max(largest, cases.Predicted() / cases.Simulated());
  }
  EXPECT_GT(largest, 1.1);  // and not more than that
}

TEST(UnequalStages, LeastTimeOf1f1bIsExactNearBalance) {
  for (const bool proportional : {true, false}) {
    Cases cases(ScheduleKind::kOneForwardOneBackward, 0.1, proportional);
    for (int i = 0; i < kDraws; ++i) {
      cases.Draw();
      EXPECT_NEAR(cases.Least(), cases.Simulated(), kRounding) << Text(cases.Shape());
    }
  }
}

TEST(UnequalStages, LeastTimeIsExactWhereOnlyTheLastIsDearer) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> more(1, 4);
  for (const ScheduleKind kind :
       {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZeroBubble}) {
    for (const PipelineShape& shape : Shapes(kind)) {
      std::vector<StageCost> costs = Equal(shape, {1, 1, 1});
      const double last = more(random);
      costs.back() = {last, last, last};
      EXPECT_NEAR(LeastTime(shape, costs), Simulate(shape, costs).makespan, kRounding)
          << Text(shape) << ", last stage " << last;
    }
  }
}

TEST(UnequalStages, NothingIsFasterThanLeastTime) {
  for (const ScheduleKind kind : kKinds) {
    for (const double spread : {0.1, 0.5, 1.0}) {
      Cases cases(kind, spread, false);
      for (int i = 0; i < kDraws; ++i) {
        cases.Draw();
        EXPECT_LE(cases.Least(), cases.Simulated() + kRounding) << Text(cases.Shape());
      }
    }
  }
}

TEST(UnequalStages, ZeroBubbleIsNear) {
  Cases cases(ScheduleKind::kZeroBubble, 0.1, true);
  double worst = 1, sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    cases.Draw();
    const double ratio = cases.Predicted() / cases.Simulated();
    worst = std::min(worst, ratio);
    sum += ratio;
  }
  EXPECT_GT(worst, 0.94);
  EXPECT_GT(sum / kDraws, 0.998);
}

TEST(Schedules, ZeroBubbleBeats1f1b) {
  for (const PipelineShape& shape : Shapes(ScheduleKind::kZeroBubble)) {
    if (shape.stages == 1) continue;
    PipelineShape other = shape;
    other.kind = ScheduleKind::kOneForwardOneBackward;
    for (const StageCost& cost : kRatios) {
      const auto costs = Equal(shape, cost);
      EXPECT_LT(Simulate(shape, costs).makespan, Simulate(other, costs).makespan - kRounding)
          << Text(shape);
    }
  }
}

TEST(Schedules, ZeroBubbleBeats1f1bOnUnequalStages) {
  Cases cases(ScheduleKind::kZeroBubble, 0.3, false);
  for (int i = 0; i < kDraws; ++i) {
    cases.Draw();
    PipelineShape other = cases.Shape();
    other.kind = ScheduleKind::kOneForwardOneBackward;
    EXPECT_LT(cases.Simulated(), Simulate(other, cases.Costs()).makespan) << Text(other);
  }
}

TEST(Simulate, BusyTimeIsTheWork) {
  const PipelineShape shape{ScheduleKind::kInterleaved, 2, 2, 4};
  const Simulation run = Simulate(shape, {{1, 2, 3}, {2, 2, 2}, {1, 1, 1}, {4, 5, 6}});
  ASSERT_EQ(run.busy.size(), 2u);
  EXPECT_DOUBLE_EQ(run.busy[0], 4 * (6 + 3));
  EXPECT_DOUBLE_EQ(run.busy[1], 4 * (6 + 15));
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_DOUBLE_EQ(run.idle[s], run.makespan - run.busy[s]);
    EXPECT_DOUBLE_EQ(run.tasks[s].front().task.micro_batch, 0);
    EXPECT_EQ(run.tasks[s].size(), 16u);
  }
  EXPECT_DOUBLE_EQ(run.tasks[1].front().begin, 1);  // after stage 0's first forward pass
}

}  // namespace
}  // namespace trireme::parallel
