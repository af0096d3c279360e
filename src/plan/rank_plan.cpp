// PlanRank: one step of the real code on a planned grid and a planned device, which transfer and
// compute nothing but keep account.
#include "trireme/plan/rank_plan.hpp"

#include <array>

#include "trireme/parallel/sharding.hpp"
#include "trireme/plan/plan.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::plan {

namespace {

// Entries of this rank's share of a whole batch, without tokens.
std::vector<data::Entry> BlankEntries(const training::TrainingState& state) {
  const training::BatchShare share = state.Share();
  const std::int64_t windows = state.Plan().batch;
  std::vector<data::Entry> entries(static_cast<std::size_t>(share.Entries(windows)));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    data::Entry& entry = entries[i];
    entry.positions = state.Net().LocalPlan().positions;
    entry.length = entry.positions.Count();
    entry.sequences = share.Entry(windows, static_cast<std::int64_t>(i)).Size();
    entry.group = share.GroupOf(static_cast<std::int64_t>(i));
  }
  return entries;
}

// Grid and stream of a rank that is not there, on which its real parts are constructed.
class PlannedRank {
 public:
  template <typename AnyPlan>
  PlannedRank(const AnyPlan& plan, int rank)
      : grid_(comm::ProcessGrid::Planned(plan.grid, plan.sharing, rank)),
        stream_(plan.machine.stream) {
    stream_.planned = &count_;
    stream_.libraries = nullptr;
  }
  PlannedRank(const PlannedRank&) = delete;
  PlannedRank& operator=(const PlannedRank&) = delete;

  const comm::ProcessGrid& Grid() const { return grid_; }
  const device::Stream& Stream() const { return stream_; }

 private:
  device::OperationCount count_;
  comm::ProcessGrid grid_;
  device::Stream stream_;
};

template <typename AnyPlan>
void CheckTransfers(const AnyPlan& plan, const model::ModelPlan& of_model, int rank) {
  if (plan.sharing.sharding == comm::Sharding::kNone) return;
  const PlannedRank planned(plan, rank);
  const model::ParallelModel model(planned.Grid(), of_model, planned.Stream());
  parallel::CheckTransfers(model.Parameters().List(), model.Parameters().Owns());
}

}  // namespace

machine::MemoryTerms PlanMemory(const Plan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  const training::TrainingState state(planned.Grid(), plan.training, planned.Stream());
  machine::MemoryTerms memory = state.Memory();
  memory.tokens = plan.tokens.bytes;
  return memory;
}

machine::MemoryTerms PlanMemory(const EvaluationPlan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  const model::ParallelModel model(planned.Grid(), plan.model, planned.Stream());
  machine::MemoryTerms memory = training::MemoryOf(model);
  memory.tokens = plan.tokens.bytes;
  return memory;
}

tensor::Ownership PlanPieces(const Plan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  const model::ParallelModel model(planned.Grid(), plan.training.model, planned.Stream());
  return model.Parameters().Owns();
}

void CheckTransfers(const Plan& plan, int rank) { CheckTransfers(plan, plan.training.model, rank); }

void CheckTransfers(const EvaluationPlan& plan, int rank) {
  CheckTransfers(plan, plan.model, rank);
}

RankPlan PlanRank(const Plan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  const comm::ProcessGrid& grid = planned.Grid();
  training::TrainingState state(grid, plan.training, planned.Stream());
  const tensor::Registry& parameters = state.Net().Parameters();
  parallel::CheckTransfers(parameters.List(), parameters.Owns());
  RankPlan result;
  result.at = grid.Coordinates();
  result.memory = state.Memory();
  result.memory.tokens = plan.tokens.bytes;

  const std::vector<data::Entry> entries = BlankEntries(state);
  state.QueueGradients(state.Net().Take(state.Net().Stage(entries)));
  state.QueueSums();
  std::array<double, training::TrainingState::kAgreed> agreed{};
  state.Agree(agreed);
  const double norm = state.GradientNorm(1);
  state.Update(1, 0, norm, 1);
  result.traffic = grid.Traffic();
  result.operations = state.Net().Stages().Operations();
  return result;
}

}  // namespace trireme::plan
