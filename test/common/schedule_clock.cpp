// A clock for schedules: start and end of every task if transfers took no time.
#include "schedule_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

namespace {

constexpr double kNotYet = -1;

double CostOf(const StageCost& cost, TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward:
    case TaskKind::kEvaluate:
      return cost.forward;
    case TaskKind::kBackward:
      return cost.backward_input + cost.backward_weight;
    case TaskKind::kBackwardInput:
      return cost.backward_input;
    case TaskKind::kBackwardWeight:
      return cost.backward_weight;
  }
  throw RunError("unknown kind of task");
}

// A stage's order is given, so a task's start follows from the ends of the tasks it waits for:
// sweeping over the stages until nothing moves needs no queue of events.
class Clock {
 public:
  Clock(const PipelineShape& shape, const std::vector<StageCost>& costs)
      : shape_(shape),
        costs_(costs),
        forward_(Results()),
        input_gradient_(Results()),
        free_(static_cast<std::size_t>(shape.stages), 0.0),
        busy_(free_) {}

  // Runs the task if what it waits for has ended.
  bool Try(int stage, const Task& task, TimedTask& timed) {
    const int here = VirtualStage(shape_, stage, task.chunk);
    const double ready = Ready(stage, here, task);
    if (ready == kNotYet) return false;
    double& free = free_[static_cast<std::size_t>(stage)];
    const double cost = CostOf(costs_.at(static_cast<std::size_t>(here)), task.kind);
    timed = {task, std::max(free, ready), std::max(free, ready) + cost};
    free = timed.end;
    busy_[static_cast<std::size_t>(stage)] += cost;
    if (GoesForward(task.kind)) At(forward_, here, task.micro_batch) = free;
    if (GivesInputGradient(task.kind)) At(input_gradient_, here, task.micro_batch) = free;
    return true;
  }

  Simulation Result() const {
    Simulation result;
    result.makespan = *std::max_element(free_.begin(), free_.end());
    result.busy = busy_;
    for (const double busy : busy_) result.idle.push_back(result.makespan - busy);
    return result;
  }

 private:
  std::vector<double> Results() const {
    return std::vector<double>(static_cast<std::size_t>(shape_.VirtualStages()) *
                                   static_cast<std::size_t>(shape_.micro_batches),
                               kNotYet);
  }
  double& At(std::vector<double>& ends, int virtual_stage, int micro_batch) const {
    return ends.at(static_cast<std::size_t>(virtual_stage) *
                       static_cast<std::size_t>(shape_.micro_batches) +
                   static_cast<std::size_t>(micro_batch));
  }
  double Ready(int stage, int here, const Task& task) {
    const int source = SourceOf(shape_, stage, task);
    if (GoesForward(task.kind)) {
      return source == kNoStage ? 0 : At(forward_, source, task.micro_batch);
    }
    if (!GivesInputGradient(task.kind)) return At(input_gradient_, here, task.micro_batch);
    // A gradient that has come back implies that this stage's forward pass is done.
    if (source == kNoStage) return At(forward_, here, task.micro_batch);
    return At(input_gradient_, source, task.micro_batch);
  }

  const PipelineShape& shape_;
  const std::vector<StageCost>& costs_;
  std::vector<double> forward_, input_gradient_;  // [virtual stages, micro-batches]: ends
  std::vector<double> free_, busy_;               // [stages]
};

}  // namespace

Simulation Simulate(const PipelineShape& shape, const std::vector<std::vector<Task>>& schedules,
                    const std::vector<StageCost>& costs) {
  Clock clock(shape, costs);
  std::vector<std::vector<TimedTask>> timed(schedules.size());
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
      TimedTask next;
      while (timed[stage].size() < schedules[stage].size() &&
             clock.Try(static_cast<int>(stage), schedules[stage][timed[stage].size()], next)) {
        timed[stage].push_back(next);
        moved = true;
      }
    }
  }
  for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
    if (timed[stage].size() == schedules[stage].size()) continue;
    throw RunError(fmt::format("pipeline schedule: stage {} waits for ever with its {}", stage,
                               Describe(schedules[stage][timed[stage].size()])));
  }
  Simulation result = clock.Result();
  result.tasks = std::move(timed);
  return result;
}

Simulation Simulate(const PipelineShape& shape, const std::vector<StageCost>& costs) {
  std::vector<std::vector<Task>> schedules;
  for (int stage = 0; stage < shape.stages; ++stage) {
    schedules.push_back(MakeSchedule(shape, stage));
  }
  return Simulate(shape, schedules, costs);
}

// The published times of the schedules, from the costs of unequal stages.

namespace {

// Costs of all chunks of a stage.
std::vector<StageCost> SumChunks(const PipelineShape& shape, const std::vector<StageCost>& costs) {
  std::vector<StageCost> sums(static_cast<std::size_t>(shape.stages), {0, 0, 0});
  for (std::size_t i = 0; i < costs.size(); ++i) {
    StageCost& sum = sums[i % sums.size()];
    sum.forward += costs[i].forward;
    sum.backward_input += costs[i].backward_input;
    sum.backward_weight += costs[i].backward_weight;
  }
  return sums;
}

struct SumAndLargest {
  double sum = 0, largest = 0;
  void Add(double value) {
    sum += value;
    largest = std::max(largest, value);
  }
  // A row of stages that hand on `count` items one by one.
  double Time(int count) const { return sum + (count - 1) * largest; }
};

// Costs of a stage whose weight gradients belong to its backward task.
std::vector<StageCost> Merged(std::vector<StageCost> costs) {
  for (StageCost& cost : costs) {
    cost.backward_input += std::exchange(cost.backward_weight, 0);
  }
  return costs;
}

// 1F1B and zero bubble, seen from stage `at`: between the start of a forward pass and that of its
// input gradient, the stages below need a time `below`; how much of that the stage has work for is
// known from its list of tasks. This holds for the first and for the last micro-batch.
double BoundOf(const PipelineShape& shape, const std::vector<StageCost>& costs, std::size_t at) {
  const int count = shape.micro_batches, stage = static_cast<int>(at);
  const StageCost& own = costs[at];
  double before = 0, below = 0, above = costs[0].backward_weight;
  for (std::size_t s = 0; s < at; ++s) {
    before += costs[s].forward;
    above += costs[s].backward_input;
  }
  for (std::size_t s = at + 1; s < costs.size(); ++s) {
    below += costs[s].forward + costs[s].backward_input;
  }
  const int warm_up = std::min(shape.stages - stage, count);
  const double first = std::max(0.0, below - (warm_up - 1) * own.forward);
  const double last =
      std::max(0.0, below - (warm_up - 1) * (own.backward_input + own.backward_weight));
  // With few micro-batches the two overlap.
  const double wait = warm_up < count ? first + last : std::max(first, last);
  const double work = own.forward + own.backward_input + own.backward_weight;
  const double after = std::max(0.0, above - std::min(stage + 1, count) * own.backward_weight);
  return before + count * work + wait + after;
}

// The first micro-batch must come down to the stage and the last one go up from it.
double InterleavedBound(const PipelineShape& shape, const std::vector<StageCost>& costs,
                        std::size_t at) {
  double around = 0;
  for (std::size_t s = 0; s < at; ++s) {
    around += costs[s].forward + costs[s].backward_input + costs[s].backward_weight;
  }
  const StageCost own = SumChunks(shape, costs)[at];
  return around + shape.micro_batches * (own.forward + own.backward_input + own.backward_weight);
}

}  // namespace

double LeastTime(const PipelineShape& shape, const std::vector<StageCost>& costs) {
  if (shape.kind == ScheduleKind::kGpipe) return PredictedTime(shape, costs);
  const bool interleaved = shape.kind == ScheduleKind::kInterleaved;
  const bool split = shape.kind == ScheduleKind::kZeroBubble;
  const std::vector<StageCost> used = split ? costs : Merged(costs);
  double longest = 0;
  for (std::size_t s = 0; s < static_cast<std::size_t>(shape.stages); ++s) {
    longest =
        std::max(longest, interleaved ? InterleavedBound(shape, used, s) : BoundOf(shape, used, s));
  }
  return longest;
}

double PredictedTime(const PipelineShape& shape, const std::vector<StageCost>& costs) {
  SumAndLargest forward, backward, both;
  for (const StageCost& cost : SumChunks(shape, costs)) {
    forward.Add(cost.forward);
    backward.Add(cost.backward_input + cost.backward_weight);
    both.Add(cost.forward + cost.backward_input + cost.backward_weight);
  }
  const int count = shape.micro_batches;
  switch (shape.kind) {
    case ScheduleKind::kGpipe:
      return forward.Time(count) + backward.Time(count);
    case ScheduleKind::kOneForwardOneBackward:
      return both.Time(count);
    case ScheduleKind::kInterleaved:
      return count * both.largest + (both.sum - both.largest) / shape.chunks;
    case ScheduleKind::kZeroBubble:
      return LeastTime(shape, costs);
  }
  throw RunError("unknown pipeline schedule");
}

}  // namespace trireme::parallel
