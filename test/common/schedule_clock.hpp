// A clock for schedules: start and end of every task if transfers took no time.
#ifndef TRIREME_TEST_COMMON_SCHEDULE_CLOCK_HPP_
#define TRIREME_TEST_COMMON_SCHEDULE_CLOCK_HPP_

#include <vector>

#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

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

#endif  // TRIREME_TEST_COMMON_SCHEDULE_CLOCK_HPP_
