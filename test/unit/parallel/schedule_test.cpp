// Schedules as lists: every task once, in an order that can run, with no more micro-batches in
// flight than published.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "schedule_clock.hpp"
#include "shapes.hpp"
#include "trireme/base/error.hpp"

namespace trireme::parallel {
namespace {

using enum TaskKind;
using testing::ElementsAre;
using testing::HasSubstr;

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
      for (int stage = 0; stage < 4; ++stage) {
        std::vector<std::pair<int, int>> seen;
        for (const Task& task : MakeEvaluation(shape, stage)) {
          EXPECT_EQ(task.kind, kEvaluate);
          seen.emplace_back(task.chunk, task.micro_batch);
        }
        EXPECT_EQ(static_cast<int>(seen.size()), chunks * count);
        std::sort(seen.begin(), seen.end());
        EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
      }
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

}  // namespace
}  // namespace trireme::parallel
