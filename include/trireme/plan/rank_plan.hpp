// What one rank of a plan needs and does in a training step: memory, transfers, operations.
#ifndef TRIREME_PLAN_RANK_PLAN_HPP_
#define TRIREME_PLAN_RANK_PLAN_HPP_

#include <array>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/machine/memory_terms.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::plan {

struct RankPlan {
  comm::GridShape at;           // coordinates
  machine::MemoryTerms memory;  // bytes
  comm::Ledger traffic;         // of the step: calls, payload and moved bytes per group
  // Floating-point operations of the stage's tasks in the step, [chunks][kinds of task].
  std::vector<std::array<double, parallel::kTaskKinds>> operations;
};

}  // namespace trireme::plan

#endif  // TRIREME_PLAN_RANK_PLAN_HPP_
