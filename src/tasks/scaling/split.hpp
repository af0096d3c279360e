// Split of a step's time: what a mean rank did in it.
#ifndef TRIREME_SRC_TASKS_SCALING_SPLIT_HPP_
#define TRIREME_SRC_TASKS_SCALING_SPLIT_HPP_

#include <array>
#include <cstddef>

#include "trireme/comm/ledger.hpp"

namespace trireme::tasks {

// Seconds a step, means over ranks and measured steps.
struct Split {
  double compute = 0;
  double data = 0;                             // loading the batch
  double bubble = 0;                           // waiting for another pipeline stage
  std::array<double, comm::kGroups> waited{};  // for transfers of each group, without the bubble
  double other = 0;                            // in none of these
  // Part of the waiting: for the slowest rank of the own stage to finish computing.
  double imbalance = 0;

  double Waited() const {
    double sum = 0;
    for (const double seconds : waited) sum += seconds;
    return sum;
  }
  double Total() const { return compute + data + bubble + Waited() + other; }
  // Adds `weight` times another.
  void Add(const Split& more, double weight) {
    compute += weight * more.compute;
    data += weight * more.data;
    bubble += weight * more.bubble;
    for (std::size_t group = 0; group < waited.size(); ++group) {
      waited[group] += weight * more.waited[group];
    }
    other += weight * more.other;
    imbalance += weight * more.imbalance;
  }
};

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_SPLIT_HPP_
