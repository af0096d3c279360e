// Schedules of pipelines: their order, pictures and times, the balance of stages, and the deck's
// section.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "schedule_clock.hpp"
#include "shapes.hpp"
#include "trireme/base/error.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {
namespace {

using enum TaskKind;
using testing::ElementsAre;
using testing::HasSubstr;

// The bubble of every schedule against the published formulas, for equal and unequal stages.

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

// Schedules as lists: every task once, in an order that can run, with no more micro-batches in
// flight than published.

constexpr Task F(int m, int chunk = 0) { return {kForward, m, chunk}; }
constexpr Task B(int m, int chunk = 0) { return {kBackward, m, chunk}; }
constexpr Task I(int m) { return {kBackwardInput, m, 0}; }
constexpr Task W(int m) { return {kBackwardWeight, m, 0}; }

TEST(Schedule, EveryTaskOnce) {
  for (const PipelineShape& shape : AllShapes()) {
    SCOPED_TRACE(Text(shape));
    for (const auto& tasks : Schedules(shape)) {
      std::map<std::pair<int, int>, std::array<int, 3>> times;  // forward, input, weight gradient
      for (const Task& task : tasks) {
        auto& here = times[{task.chunk, task.micro_batch}];
        here[0] += task.kind == kForward;
        here[1] += task.kind == kBackward || task.kind == kBackwardInput;
        here[2] += task.kind == kBackward || task.kind == kBackwardWeight;
        EXPECT_NE(task.kind, kEvaluate);
        EXPECT_TRUE(0 <= task.chunk && task.chunk < shape.chunks);
        EXPECT_TRUE(0 <= task.micro_batch && task.micro_batch < shape.micro_batches);
      }
      EXPECT_EQ(static_cast<int>(times.size()), shape.chunks * shape.micro_batches);
      for (const auto& [which, here] : times) EXPECT_THAT(here, ElementsAre(1, 1, 1));
    }
  }
}

TEST(Schedule, OfTwoStagesAsDrawnInThePapers) {
  EXPECT_THAT(MakeSchedule({ScheduleKind::kGpipe, 2, 1, 2}, 0),
              ElementsAre(F(0), F(1), B(0), B(1)));
  const PipelineShape alternating{ScheduleKind::kOneForwardOneBackward, 2, 1, 3};
  EXPECT_THAT(MakeSchedule(alternating, 0), ElementsAre(F(0), F(1), B(0), F(2), B(1), B(2)));
  EXPECT_THAT(MakeSchedule(alternating, 1), ElementsAre(F(0), B(0), F(1), B(1), F(2), B(2)));
  const PipelineShape interleaved{ScheduleKind::kInterleaved, 2, 2, 2};
  EXPECT_THAT(MakeSchedule(interleaved, 1),
              ElementsAre(F(0), F(1), F(0, 1), B(0, 1), F(1, 1), B(1, 1), B(0), B(1)));
  const PipelineShape zero{ScheduleKind::kZeroBubble, 2, 1, 3};
  EXPECT_THAT(MakeSchedule(zero, 0), ElementsAre(F(0), F(1), B(0), F(2), B(1), B(2)));
  EXPECT_THAT(MakeSchedule(zero, 1),
              ElementsAre(F(0), I(0), F(1), I(1), W(0), F(2), I(2), W(1), W(2)));
}

TEST(Schedule, OneStageAlternates) {
  for (const ScheduleKind kind : kKinds) {
    const PipelineShape shape{kind, 1, 1, 3};
    EXPECT_THAT(MakeSchedule(shape, 0), ElementsAre(F(0), B(0), F(1), B(1), F(2), B(2)))
        << NameOf(kind);
    EXPECT_EQ(MostInFlight(shape, 0), 1);
  }
}

int InFlight(const std::vector<Task>& tasks) {
  int now = 0, most = 0;
  for (const Task& task : tasks) {
    if (task.kind == kForward) most = std::max(most, ++now);
    if (task.kind == kBackward || task.kind == kBackwardWeight) --now;
  }
  EXPECT_EQ(now, 0);
  return most;
}

TEST(Schedule, MicroBatchesInFlightArePublishedBound) {
  for (const PipelineShape& shape : AllShapes()) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      EXPECT_EQ(InFlight(MakeSchedule(shape, stage)), MostInFlight(shape, stage))
          << Text(shape) << ", stage " << stage;
    }
  }
}

TEST(Schedule, ZeroBubbleHoldsNoMoreThanFirstStageOf1f1b) {
  for (const PipelineShape& shape : Shapes(ScheduleKind::kZeroBubble)) {
    PipelineShape other = shape;
    other.kind = ScheduleKind::kOneForwardOneBackward;
    for (int stage = 0; stage < shape.stages; ++stage) {
      EXPECT_LE(InFlight(MakeSchedule(shape, stage)), InFlight(MakeSchedule(other, 0)))
          << Text(shape);
    }
  }
}

TEST(Schedule, MicroBatchesOfAChunkAscend) {
  // Messages of one tag are matched in the order in which they are sent.
  for (const PipelineShape& shape : AllShapes()) {
    for (const auto& tasks : Schedules(shape)) {
      std::map<std::pair<TaskKind, int>, int> last;
      for (const Task& task : tasks) {
        const auto found = last.find({task.kind, task.chunk});
        const int expected = found == last.end() ? 0 : found->second + 1;
        EXPECT_EQ(task.micro_batch, expected) << Text(shape);
        last[{task.kind, task.chunk}] = task.micro_batch;
      }
    }
  }
}

TEST(Schedule, EvaluationRunsEveryForwardPassOnce) {
  for (const ScheduleKind kind : kKinds) {
    for (const int count : {1, 3, 5, 8}) {
      const int chunks = kind == ScheduleKind::kInterleaved ? 3 : 1;
      const PipelineShape shape{kind, 4, chunks, count};
      std::vector<std::pair<int, int>> seen;
      for (const Task& task : MakeEvaluation(shape)) {
        EXPECT_EQ(task.kind, kEvaluate);
        seen.emplace_back(task.chunk, task.micro_batch);
      }
      EXPECT_EQ(static_cast<int>(seen.size()), chunks * count);
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
    }
  }
}

std::string Complaint(const PipelineShape& shape, const std::vector<std::vector<Task>>& schedules) {
  try {
    Simulate(shape, schedules, Equal(shape, {}));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Simulate, FindsOrdersThatCannotRun) {
  const PipelineShape shape{ScheduleKind::kOneForwardOneBackward, 3, 1, 6};
  const auto good = Schedules(shape);
  EXPECT_EQ(Complaint(shape, good), "");

  auto swapped = good;  // the last stage wants a gradient before its forward pass
  std::swap(swapped[2][0], swapped[2][1]);
  EXPECT_THAT(Complaint(shape, swapped),
              HasSubstr("waits for ever with its backward pass of micro-batch 0"));

  auto dropped = good;  // and everybody waits for a forward pass that nobody runs
  dropped[0].erase(dropped[0].begin() + 1);
  EXPECT_THAT(Complaint(shape, dropped), HasSubstr("waits for ever"));

  auto late = good;  // stage 0's last forward pass of the warm-up after its first backward pass
  std::swap(late[0][2], late[0][3]);
  EXPECT_EQ(Complaint(shape, late), "");
  EXPECT_GT(Simulate(shape, late, Equal(shape, {})).makespan,
            Simulate(shape, good, Equal(shape, {})).makespan);
}

TEST(Schedule, RefusesShapesThatItDoesNotKnow) {
  EXPECT_THROW(MakeSchedule({ScheduleKind::kInterleaved, 4, 2, 6}, 0), Error);
  EXPECT_THROW(MakeSchedule({ScheduleKind::kGpipe, 4, 2, 8}, 0), Error);
}

// The schedules drawn as in the papers' figures, from the simulator's own times: what a reader of
// the papers would compare.

// A line for each chunk of each stage, a column a unit of time: digits are forward passes, small
// letters input gradients, capitals weight gradients of micro-batch 0, 1, ...; dots are idle times.
std::string Draw(const PipelineShape& shape) {
  const Simulation run = Simulate(shape, Equal(shape, {1, 1, 1}));
  const auto width = static_cast<std::size_t>(std::lround(run.makespan));
  std::string picture = "\n";
  for (std::size_t stage = 0; stage < run.tasks.size(); ++stage) {
    // Idle is what no chunk fills.
    std::vector<std::string> lines(static_cast<std::size_t>(shape.chunks), std::string(width, ' '));
    std::string idle(width, '.');
    for (const TimedTask& timed : run.tasks[stage]) {
      const Task& task = timed.task;
      const auto begin = static_cast<std::size_t>(std::lround(timed.begin));
      const auto letter = [&](char first) { return static_cast<char>(first + task.micro_batch); };
      std::string text;
      if (task.kind == TaskKind::kForward) text = {letter('0')};
      if (task.kind == TaskKind::kBackward) text = {letter('a'), letter('A')};
      if (task.kind == TaskKind::kBackwardInput) text = {letter('a')};
      if (task.kind == TaskKind::kBackwardWeight) text = {letter('A')};
      lines[static_cast<std::size_t>(task.chunk)].replace(begin, text.size(), text);
      idle.replace(begin, text.size(), text.size(), ' ');
    }
    for (std::size_t i = 0; i < width; ++i) {
      if (idle[i] == '.') lines[0][i] = '.';
    }
    for (const std::string& line : lines) picture += line + "|\n";
  }
  return picture;
}

TEST(Picture, Gpipe) {
  EXPECT_EQ(Draw({ScheduleKind::kGpipe, 4, 1, 8}), R"(
01234567.........aAbBcCdDeEfFgGhH|
.01234567......aAbBcCdDeEfFgGhH..|
..01234567...aAbBcCdDeEfFgGhH....|
...01234567aAbBcCdDeEfFgGhH......|
)");
}
TEST(Picture, OneForwardOneBackward) {
  EXPECT_EQ(Draw({ScheduleKind::kOneForwardOneBackward, 4, 1, 8}), R"(
0123......aA4bB5cC6dD7eE.fF.gG.hH|
.012....aA3bB4cC5dD6eE7fF.gG.hH..|
..01..aA2bB3cC4dD5eE6fF7gG.hH....|
...0aA1bB2cC3dD4eE5fF6gG7hH......|
)");
}
TEST(Picture, Interleaved) {
  EXPECT_EQ(Draw({ScheduleKind::kInterleaved, 4, 2, 8}), R"(
0123    456...  7  .       aA bBcC.dD.  .  .  .  eEfFgGhH|
    0123      aA bB 4cC5dD6  7        eE fF gG hH        |
.0123    4..  5  6  7   aA bB cC dD.  .  .  .  eEfFgGhH..|
     0123   aA bB cC dD4  5  6  7   eE fF gG hH          |
..0123   .     4  5  6aA7bB cC dD      .  .  eEfFgGhH....|
      012 aA3bB cC dD      4  5  6eE7fF gG hH            |
...0123            4aA5bB6cC7dD            eEfFgGhH......|
       0aA1bB2cC3dD            4eE5fF6gG7hH              |
)");
}
TEST(Picture, ZeroBubble) {
  EXPECT_EQ(Draw({ScheduleKind::kZeroBubble, 4, 1, 8}), R"(
0123...aA4bB5cC6dD7eEfFgGhH|
.012..a3bA4cB5dC6eD7fEgFhGH|
..01.a2b3cA4dB5eC6fD7gEhFGH|
...0a1b2c3dA4eB5fC6gD7hEFGH|
)");
}

// Sharing out blocks over stages: never worse than the best of all ways.

std::vector<std::int64_t> Counts(const std::vector<Part>& parts) {
  std::vector<std::int64_t> counts;
  for (const Part& part : parts) counts.push_back(part.Size());
  return counts;
}

std::vector<std::int64_t> Balanced(std::int64_t layers, int stages, double embedding, double head) {
  return Counts(BalanceStages(layers, stages, 1, embedding, head));
}

double Dearest(const std::vector<std::int64_t>& counts, double block, double embedding,
               double head) {
  double dearest = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    dearest = std::max(dearest, (s == 0 ? embedding : 0) + (s + 1 == counts.size() ? head : 0) +
                                    static_cast<double>(counts[s]) * block);
  }
  return dearest;
}

// Every way to share out the layers.
double BruteForce(std::int64_t layers, int stages, double block, double embedding, double head) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages), 0);
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(std::size_t, std::int64_t)> fill = [&](std::size_t stage,
                                                                  std::int64_t left) {
    if (stage + 1 == counts.size()) {
      counts[stage] = left;
      best = std::min(best, Dearest(counts, block, embedding, head));
      return;
    }
    for (counts[stage] = 1; counts[stage] <= left; ++counts[stage]) {
      fill(stage + 1, left - counts[stage]);
    }
  };
  fill(0, layers);
  return best;
}

TEST(BalanceStages, IsAsGoodAsTheBestOfAllWays) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> cost(0, 4);
  for (int stages = 1; stages <= 6; ++stages) {
    for (std::int64_t layers = std::max(stages - 1, 1); layers <= 12; ++layers) {
      for (int draw = 0; draw < 10; ++draw) {
        const double block = draw == 0 ? 0 : cost(random), embedding = cost(random);
        const double head = cost(random);
        const auto parts = BalanceStages(layers, stages, block, embedding, head);
        const auto counts = Counts(parts);
        ASSERT_EQ(static_cast<int>(counts.size()), stages);
        std::int64_t end = 0;
        for (const Part& part : parts) {
          EXPECT_EQ(part.begin, end);
          end = part.end;
        }
        EXPECT_EQ(end, layers);
        for (int s = 0; s + 1 < stages; ++s) EXPECT_GE(counts[static_cast<std::size_t>(s)], 1);
        EXPECT_DOUBLE_EQ(Dearest(counts, block, embedding, head),
                         BruteForce(layers, stages, block, embedding, head))
            << layers << " layers, " << stages << " stages, " << block << " " << embedding << " "
            << head;
      }
    }
  }
}

TEST(BalanceStages, TiesAreEvenAndLeaveTheLastStageSmaller) {
  EXPECT_THAT(Balanced(8, 4, 0, 0), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(Balanced(7, 4, 0, 0), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(Balanced(9, 4, 0, 0), ElementsAre(3, 2, 2, 2));
  EXPECT_THAT(Balanced(9, 4, 0.5, 0), ElementsAre(2, 3, 2, 2));  // 3.5 on the first otherwise
  EXPECT_THAT(Balanced(6, 4, 0, 0.5), ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(Balanced(12, 4, 0, 3), ElementsAre(4, 4, 3, 1));
  EXPECT_THAT(Balanced(3, 4, 0, 10), ElementsAre(1, 1, 1, 0));  // the head alone
  EXPECT_THAT(Balanced(6, 3, 0, 2), ElementsAre(3, 2, 1));
  EXPECT_THAT(Balanced(5, 1, 1, 1), ElementsAre(5));
}

TEST(BalanceStages, RefusesMoreStagesThanParts) {
  EXPECT_THROW(BalanceStages(2, 4, 1, 0, 0), Error);
}

// The [pipeline] section: defaults, names, and what does not go together.

PipelineShape Read(const std::string& text, int stages) {
  deck::Schema schema;
  Declare(schema);
  const deck::Deck deck = deck::Deck::Parse(schema, text, "a.in", {});
  return MakePipelineShape(parallel::Read(deck), deck, stages);
}

std::string Complaint(const std::string& text, int stages) {
  try {
    Read(text, stages);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST(PipelineOptions, Defaults) {
  const PipelineShape shape = Read("", 4);
  EXPECT_EQ(shape.kind, ScheduleKind::kOneForwardOneBackward);
  EXPECT_EQ(shape.stages, 4);
  EXPECT_EQ(shape.chunks, 1);
}

TEST(PipelineOptions, EveryScheduleHasItsName) {
  for (const ScheduleKind kind : kKinds) {
    const bool interleaved = kind == ScheduleKind::kInterleaved;
    const std::string text = std::string("[pipeline]\nschedule = ") + NameOf(kind) +
                             (interleaved ? "\nchunks = 3\n" : "\n");
    EXPECT_EQ(Read(text, 2).kind, kind) << text;
    EXPECT_EQ(Read(text, 2).chunks, interleaved ? 3 : 1);
    if (!interleaved) {
      EXPECT_EQ(Read(text, 1).stages, 1);
    }
  }
}

TEST(PipelineOptions, WhatDoesNotGoTogether) {
  EXPECT_THAT(Complaint("[pipeline]\nschedule = interleaved\nchunks = 1\n", 4),
              testing::StartsWith("a.in:3: pipeline.chunks = 1: interleaved needs several parts of "
                                  "the model per stage\n  Choose 2 or more."));
  EXPECT_THAT(Complaint("[pipeline]\nschedule = interleaved\n", 4),
              HasSubstr("pipeline.chunks = 1 (default): interleaved needs several parts"));
  EXPECT_THAT(Complaint("[pipeline]\nschedule = gpipe\nchunks = 2\n", 4),
              testing::StartsWith("a.in:3: pipeline.chunks = 2: schedule gpipe has one part of the "
                                  "model per stage\n  Choose pipeline.schedule = interleaved"));
  EXPECT_THAT(Complaint("[pipeline]\nchunks = 2\n", 4),
              HasSubstr("schedule 1f1b has one part of the model per stage"));
  EXPECT_THAT(
      Complaint("[pipeline]\nschedule = interleaved\nchunks = 2\n", 1),
      testing::StartsWith("a.in:2: pipeline.schedule = interleaved: one stage has nothing to "
                          "interleave with\n  Set grid.pipeline to 2 or more"));
  EXPECT_THAT(Complaint("[pipeline]\nschedule = zerobubble\n", 4), HasSubstr("zero_bubble"));
  EXPECT_THAT(Complaint("[pipeline]\nchunks = 0\n", 4), HasSubstr("pipeline.chunks = 0"));
}

}  // namespace
}  // namespace trireme::parallel
