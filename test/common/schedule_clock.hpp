// A clock for schedules: start and end of every task if transfers took no time; and the published
// times.
#pragma once

#include <vector>

#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

// Seconds of the tasks of one virtual stage.
struct StageCost {
  double forward = 1, backward_input = 1, backward_weight = 1;
};

// The schedule's time for one step as published, in its form for unequal stages; f, b, w: sums over
// a stage's chunks, M micro-batches, v chunks. With equal stages all are exact.
//   gpipe        sum f + (M - 1) max f + sum (b + w) + (M - 1) max (b + w); always exact.
//   1f1b         sum (f + b + w) + (M - 1) max (f + b + w). Also exact if the last stage is the
//                most expensive and its f / (b + w) is the others'; with one such ratio for all
//                stages it is an upper bound.
//   interleaved  M max (f + b + w) + (sum (f + b + w) - max (f + b + w)) / v: an estimate.
//   zero_bubble  no closed form is published for unequal stages: LeastTime.
// Tests compare them with Simulate (doc/reference/parallelism.md).
double PredictedTime(const PipelineShape& shape, const std::vector<StageCost>& costs);

// Lower bound of a step's time: the largest over the stages of (earliest start of its first task +
// its own work + time that earlier stages need after its last task), with the round trips of its
// first and last forward pass (not if interleaved); gpipe: PredictedTime. Exact for equal stages;
// 1f1b: also if costs differ by no more than a fifth, and if only the last stage is more expensive;
// zero_bubble: the latter too.
double LeastTime(const PipelineShape& shape, const std::vector<StageCost>& costs);

struct TimedTask {
  Task task;
  double begin = 0, end = 0;  // s
};

struct Simulation {
  double makespan = 0;                        // from the first task's start to the last one's end
  std::vector<double> busy;                   // [stages]
  std::vector<double> idle;                   // [stages]: makespan - busy, the bubble
  std::vector<std::vector<TimedTask>> tasks;  // [stages], in order
};
// Runs all stages' schedules with free, instant transfers. costs: [virtual stages].
Simulation Simulate(const PipelineShape& shape, const std::vector<StageCost>& costs);
// Runs any lists of tasks, one per stage. RunError naming a task that would wait for ever.
Simulation Simulate(const PipelineShape& shape, const std::vector<std::vector<Task>>& schedules,
                    const std::vector<StageCost>& costs);

}  // namespace trireme::parallel
