// PlanRank: one step of the real code on a planned grid and a planned device, which transfer and
// compute nothing but keep account.
#include "trireme/train/rank_plan.hpp"

#include <algorithm>
#include <array>

#include "trireme/data/windows.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/blank_batch.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

namespace {

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
  void LogInto(device::WorkLog* log) const {
    count_.log = log;
    grid_.Traffic().LogInto(log);
  }

 private:
  mutable device::OperationCount count_;
  comm::ProcessGrid grid_;
  device::Stream stream_;
};

void CheckShards(const model::ParallelModel& model) {
  parallel::CheckTransfers(model.Parameters().List(), model.Parameters().Owns());
}

// All transfers of a step, which meet the limits on their way.
void PlanStep(TrainingState& state, const StepShape& step) {
  const std::vector<data::Entry> entries = BlankEntries(state, step);
  state.QueueGradients(state.Net().Take(state.Net().Stage(entries)));
  state.QueueSums();
  if (state.Plan().CountsTargets()) {
    std::array<std::int64_t, TrainingState::kCounts> counts{};
    state.SumOfBatch(counts);
  }
  std::array<double, TrainingState::kAgreed> agreed{};
  state.Agree(agreed);
  const double norm = state.GradientNorm(1);
  state.Update(1, 0, norm, 1);
}

}  // namespace

namespace {

// Bytes of a stream's windows on a rank: those in use, read ahead and passed on.
std::int64_t StreamBytes(const TokenFacts& tokens, const comm::ProcessGrid& grid,
                         const model::ModelPlan& model, std::int64_t windows, std::int64_t files) {
  if (tokens.read_ahead == 0) return 0;
  return data::StreamBytes({.read_ahead = tokens.read_ahead,
                            .windows = windows,
                            .tokens = model.length + 1,
                            .files = files,
                            .documents = model.document_mask,
                            .masks = tokens.loss_mask,
                            .reads = grid.Replica().IsRoot(),
                            .passes = grid.Replica().Size() > 1});
}

// Bytes of the tokens on a rank; a stream's windows are those of a step and of a validation.
std::int64_t TokenBytes(const Plan& plan, const comm::ProcessGrid& grid) {
  const model::ModelPlan& model = plan.training.model;
  const std::int64_t share =
      LargestShare(plan.training.batch, plan.grid.data, model.canonical);
  const std::int64_t files = std::max<std::int64_t>(1, std::ssize(plan.tokens.sources));
  return plan.tokens.bytes + StreamBytes(plan.tokens, grid, model, share, files) +
         StreamBytes(plan.tokens, grid, model, model.micro_batch, 1);
}

// Bytes of the communicators between GPUs on a rank.
std::int64_t CommunicatorBytes(const MachineFacts& machine, const comm::ProcessGrid& grid,
                               const model::ModelPlan& model) {
  if (!machine.stream.OnGpu() || machine.gpu_staged) return 0;
  return grid.CommunicatorBytes(model.pipeline.chunks, model.options.kv_heads);
}

}  // namespace

device::MemoryTerms PlanMemory(const Plan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  const TrainingState state(planned.Grid(), plan.training, planned.Stream());
  device::MemoryTerms memory = state.Memory();
  memory.tokens = TokenBytes(plan, planned.Grid());
  memory.communicators = CommunicatorBytes(plan.machine, planned.Grid(), plan.training.model);
  return memory;
}

device::MemoryTerms PlanMemory(const EvaluationPlan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  const model::ParallelModel model(planned.Grid(), plan.model, planned.Stream());
  device::MemoryTerms memory = MemoryOf(model);
  memory.communicators = CommunicatorBytes(plan.machine, planned.Grid(), plan.model);
  memory.tokens = plan.tokens.bytes +
                  StreamBytes(plan.tokens, planned.Grid(), plan.model, plan.model.micro_batch, 1);
  return memory;
}

kernels::Ownership PlanPieces(const Plan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  const model::ParallelModel model(planned.Grid(), plan.training.model, planned.Stream());
  return model.Parameters().Owns();
}

// A micro-batch shows all lengths of transfers.
void CheckTransfers(const Plan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  TrainingState state(planned.Grid(), plan.training, planned.Stream());
  CheckShards(state.Net());
  const model::ModelPlan& model = plan.training.model;
  const std::int64_t one_each = plan.grid.data * model.micro_batch * model.leaves;
  PlanStep(state, {std::min(plan.training.batch, one_each)});
}

void CheckTransfers(const EvaluationPlan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  model::ParallelModel model(planned.Grid(), plan.model, planned.Stream());
  CheckShards(model);
  std::vector<data::Entry> entries(static_cast<std::size_t>(plan.model.leaves));
  for (data::Entry& entry : entries) {
    entry.positions = model.LocalPlan().positions;
    entry.length = entry.positions.Count();
    entry.sequences = plan.model.micro_batch;
    if (plan.model.options.Translates()) entry.source_length = entry.length;
  }
  model.QueueLoss(entries);
}

RankPlan PlanRank(const Plan& plan, int rank) {
  return PlanRank(plan, rank, {plan.training.batch}, nullptr);
}

RankPlan PlanRank(const Plan& plan, int rank, const StepShape& step,
                  device::WorkLog* log) {
  const PlannedRank planned(plan, rank);
  const comm::ProcessGrid& grid = planned.Grid();
  TrainingState state(grid, plan.training, planned.Stream());
  CheckShards(state.Net());
  planned.LogInto(log);
  RankPlan result;
  result.at = grid.Coordinates();
  result.memory = state.Memory();
  result.memory.tokens = TokenBytes(plan, grid);
  PlanStep(state, step);
  result.traffic = grid.Traffic();
  result.operations = state.Net().Stages().Operations();
  return result;
}

}  // namespace trireme::train
