// Stragglers: the rank that computes longest, among those that have the same to compute.
#ifndef TRIREME_SRC_TASKS_STRAGGLERS_HPP_
#define TRIREME_SRC_TASKS_STRAGGLERS_HPP_

#include "trireme/comm/process_grid.hpp"

namespace trireme::tasks {

struct Slowest {
  int rank = 0;        // of the world
  double seconds = 0;  // of computation
  double mean = 0;     // of the ranks of its pipeline stage
};

// Collective over the grid. seconds: of this rank. The rank whose excess over the mean of its
// pipeline stage is largest relative to it; the lowest of several.
Slowest SlowestRank(const comm::ProcessGrid& grid, double seconds);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_STRAGGLERS_HPP_
