// Points of a scaling study: numbers of ranks with their batches and plans.
#ifndef TRIREME_SRC_TASKS_SCALING_POINTS_HPP_
#define TRIREME_SRC_TASKS_SCALING_POINTS_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "measure.hpp"
#include "rooms.hpp"
#include "trireme/tasks/scaling_options.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::tasks {

// Ranks and batch of a point, before there is a plan.
struct Size {
  int ranks = 1;
  std::int64_t batch = 1;  // windows a step, over all ranks
  bool operator==(const Size&) const = default;
};

// Numbers of ranks to compare if the deck names none: `unit` times 1, 2, 4 ... up to `world`, and
// `world` itself. Pure.
std::vector<int> DefaultCounts(int unit, int world);

// Batch of `ranks` ranks in a kind of scaling. Pure. base: ranks for which `batch` stands. 0 if it
// is no whole number of windows.
std::int64_t BatchOf(ScalingKind kind, std::int64_t batch, int ranks, int base);

// One number of ranks with one batch, and what was measured there.
struct Point {
  Size size;
  Room room;
  train::Plan plan;
  std::vector<Round> rounds;  // on the point's ranks
};

// One line of the study: a point, in one kind of scaling. A point may serve both kinds.
struct Line {
  ScalingKind kind = ScalingKind::kStrong;
  std::size_t point = 0;
};

struct Study {
  ScalingOptions options;
  std::vector<int> counts;           // rising
  std::vector<Point> points;         // fewest ranks first
  std::vector<Line> lines;           // by kind, then fewest ranks first
  predict::Described machine = {};  // on world rank 0: for predictions
};

// Collective. AgreedError (exit code 2) that names the number of ranks which cannot be measured:
// more than the job has, a layout that does not fit, less data than the steps take.
Study PlanStudy(const app::Job& job, const ScalingOptions& options);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_POINTS_HPP_
