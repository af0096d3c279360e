// A clock for schedules: start and end of every task if transfers took no time.
#include "schedule_clock.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "../../src/parallel/pipeline_links.hpp"
#include "trireme/base/error.hpp"

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

}  // namespace trireme::parallel
