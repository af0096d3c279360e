// Pipeline schedules as pure functions: the tasks of each stage, in order. No MPI.
#ifndef TRIREME_PARALLEL_PIPELINE_SCHEDULE_HPP_
#define TRIREME_PARALLEL_PIPELINE_SCHEDULE_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/partition.hpp"

namespace trireme::parallel {

// kGpipe: Huang et al. 2019. kOneForwardOneBackward: PipeDream-flush (Narayanan et al. 2021, figure
// 4 top). kInterleaved: the same paper, figure 4 bottom. kZeroBubble: ZB-H1 (Qi et al. 2023).
enum class ScheduleKind { kGpipe, kOneForwardOneBackward, kInterleaved, kZeroBubble };
const char* NameOf(ScheduleKind kind);  // as in the deck

// kForward, then kBackward (input and weight gradients in one), or kBackwardInput and some time
// later kBackwardWeight. kEvaluate: a forward pass that saves nothing.
enum class TaskKind { kForward, kBackward, kBackwardInput, kBackwardWeight, kEvaluate };
inline constexpr int kTaskKinds = 5;

struct Task {
  TaskKind kind = TaskKind::kForward;
  int micro_batch = 0;
  int chunk = 0;  // of the stage's chunks of the model: virtual stage chunk * stages + stage
  bool operator==(const Task&) const = default;
};

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int stages = 1;         // P
  int chunks = 1;         // v, runs of blocks that a stage holds; 1 unless interleaved
  int micro_batches = 1;  // M; interleaved: a multiple of P
  int VirtualStages() const { return stages * chunks; }
  bool operator==(const PipelineShape&) const = default;
};

// Micro-batches that a step of `count` runs: a multiple of the stages if interleaved (the caller
// adds empty micro-batches).
int PaddedMicroBatches(const PipelineShape& shape, int count);

// The tasks of one stage, in order: each micro-batch's forward and backward pass once per chunk;
// of any chunk, micro-batches in ascending order. With one stage: forward, backward, forward ...
std::vector<Task> MakeSchedule(const PipelineShape& shape, int stage);
// Forward passes alone; any number of micro-batches, also with several chunks.
std::vector<Task> MakeEvaluation(const PipelineShape& shape, int stage);

// Most micro-batches (times chunks) whose forward pass has begun on `stage` and whose last backward
// task has not ended, as published: gpipe M v; 1f1b min(P - stage, M); interleaved min((P - stage -
// 1) 2 + (v - 1) P + 1, M v); zero_bubble min(P, M).
int MostInFlight(const PipelineShape& shape, int stage);

// Seconds of the tasks of one virtual stage.
struct StageCost {
  double forward = 1, backward_input = 1, backward_weight = 1;
};

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

// The schedule's time for one step as published, in its form for unequal stages; f, b, w: sums over
// a stage's chunks, M micro-batches, v chunks. With equal stages all are exact.
//   gpipe        sum f + (M - 1) max f + sum (b + w) + (M - 1) max (b + w); always exact.
//   1f1b         sum (f + b + w) + (M - 1) max (f + b + w). Also exact if the last stage is the
//                most expensive and its f / (b + w) is the others'; with one such ratio for all
//                stages it is an upper bound.
//   interleaved  M max (f + b + w) + (sum (f + b + w) - max (f + b + w)) / v: an estimate.
//   zero_bubble  no closed form is published for unequal stages: LeastTime.
// doc/parallelism.md derives them, and compares them with Simulate.
double PredictedTime(const PipelineShape& shape, const std::vector<StageCost>& costs);

// Lower bound of a step's time: the largest over the stages of (earliest start of its first task +
// its own work + time that earlier stages need after its last task), with the round trips of its
// first and last forward pass (not if interleaved); gpipe: PredictedTime. Exact for equal stages;
// 1f1b: also if costs differ by no more than a fifth, and if only the last stage is more expensive;
// zero_bubble: the latter too.
double LeastTime(const PipelineShape& shape, const std::vector<StageCost>& costs);

// Blocks [begin, end) of each virtual stage such that the most expensive stage is as cheap as
// possible. Costs are relative to each other. Every virtual stage but the last has at least one
// block; the last has the head. layers + 1 >= virtual stages.
std::vector<Part> BalanceStages(std::int64_t layers, int virtual_stages, double block_cost,
                                double embedding_cost, double head_cost);

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_PIPELINE_SCHEDULE_HPP_
