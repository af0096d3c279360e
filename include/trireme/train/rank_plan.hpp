// Needs and work of one rank of a plan in a training step: memory, transfers, operations.
#ifndef TRIREME_TRAIN_RANK_PLAN_HPP_
#define TRIREME_TRAIN_RANK_PLAN_HPP_

#include <array>
#include <cstdint>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/memory_terms.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/train/step_shape.hpp"

namespace trireme::device {
class WorkLog;
}

namespace trireme::train {

struct Plan;
struct EvaluationPlan;

struct RankPlan {
  comm::GridShape at;           // coordinates
  device::MemoryTerms memory;  // bytes
  comm::Ledger traffic;         // of the step: calls, payload and moved bytes per group
  // Floating-point operations of the stage's tasks in the step, [chunks][kinds of task].
  std::vector<std::array<double, parallel::kTaskKinds>> operations;
};

// Ranks whose memory is alike.
struct RankKind {
  int first = 0;                // world rank of one of them
  std::int64_t ranks = 0;       // how many there are
  device::MemoryTerms memory;  // bytes of each
};

// Memory of one rank. Agrees to the byte with what that rank allocates.
device::MemoryTerms PlanMemory(const Plan& plan, int rank);
device::MemoryTerms PlanMemory(const EvaluationPlan& plan, int rank);

// Pieces in which a rank's state is shared out: their lengths are those of every place of its shard
// group.
kernels::Ownership PlanPieces(const Plan& plan, int rank);

// Throws InputError, which names the deck's key, if a transfer of this rank would be longer than
// MPI can count: of activations, gradients or sharded state, in a step or an evaluation.
void CheckTransfers(const Plan& plan, int rank);
void CheckTransfers(const EvaluationPlan& plan, int rank);

// Memory, and transfers and operations of a step of a whole batch. Agrees to the byte with what the
// rank's ledger counts. Throws as CheckTransfers does.
RankPlan PlanRank(const Plan& plan, int rank);
// The same of a step of at most a batch; log: told of all work and transfers, or null.
RankPlan PlanRank(const Plan& plan, int rank, const StepShape& step,
                  device::WorkLog* log);

// All kinds of ranks, the one that needs most memory first.
std::vector<RankKind> PlanKinds(const Plan& plan);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_RANK_PLAN_HPP_
