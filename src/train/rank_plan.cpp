// PlanRank: runs one step of the real code on a planned grid and a planned device, which count
// transfers, operations and memory but neither transfer nor compute.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "trireme/data/windows.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/batch_loader.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

namespace {

// Planned grid and stream of a rank, on which its real objects can be constructed.
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

// Makes all transfers of a step, from one agreement to the next. The update comes first, because
// the forward pass waits for its gathers.
void PlanStep(TrainingState& state, const StepShape& step) {
  const std::vector<data::Entry> entries = BlankEntries(state, step);
  state.Update(1, 0, 1, 1);
  state.QueueGradients(state.Net().Tasks().Batches().Take(entries));
  state.QueueSums(0);
  if (state.Plan().CountsTargets()) {
    std::array<std::int64_t, TrainingState::kCounts> counts{};
    state.SumOfBatch(counts);
  }
  state.GradientNorm(1);
  std::array<double, TrainingState::kAgreed> agreed{};
  state.Agree(agreed);
  state.FinishUpdate();  // on a rank without samples no forward pass has waited for the gathers
}

// Bytes of streamed windows on a rank: in use, read in advance, and on the way to other ranks.
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

// Bytes of the tokens on a rank. If streamed: the windows of a step and of a validation.
std::int64_t TokenBytes(const Plan& plan, const comm::ProcessGrid& grid) {
  const model::ModelPlan& model = plan.training.model;
  const std::int64_t share = LargestShare(plan.training.Batch(), plan.grid.data, model.canonical);
  const std::int64_t files = std::max<std::int64_t>(1, std::ssize(plan.tokens.sources));
  return plan.tokens.bytes + StreamBytes(plan.tokens, grid, model, share, files) +
         StreamBytes(plan.tokens, grid, model, model.micro_batch, 1);
}

// Bytes that communicators between GPUs take on a rank.
std::int64_t CommunicatorBytes(const MachineFacts& machine, const comm::ProcessGrid& grid,
                               const model::ModelPlan& model) {
  if (!machine.stream.OnGpu() || machine.gpu_staged) return 0;
  return grid.CommunicatorBytes(model.pipeline.chunks, model.options.kv_heads);
}

using report::AsBytes, report::Counted, report::WithThousands;

constexpr std::size_t kIndent = 8;  // columns before the text of a line

// By comm::Sharding: which state is sharded.
constexpr const char* kShardedState[] = {"nothing", "moments", "moments and gradients",
                                         "moments, gradients and parameters"};

std::string Line(const char* word, const std::string& text) {
  return fmt::format("{:<{}}{}\n", word, kIndent, text);
}

// The terms of memory and their sum: "parameters 37 MiB + gradients 37 MiB = 74 MiB".
std::string MemoryText(const device::MemoryTerms& memory) {
  std::string text;
  for (const device::MemoryTerm& term : device::kMemoryTerms) {
    const std::int64_t bytes = memory.*term.bytes;
    if (bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", term.name, AsBytes(bytes));
  }
  return fmt::format("{} = {} ({} bytes)", text, AsBytes(memory.Total()),
                     WithThousands(memory.Total()));
}

// Neighbouring stages with equally many blocks, whose largest ranks need the same memory.
struct StageRow {
  int first = 0, last = 0;
  std::int64_t blocks = 0, kept = 0;  // kept: saved micro-batches, summed over chunks
  device::MemoryTerms memory;
};

std::vector<StageRow> StageRows(const Plan& plan, const std::vector<RankKind>& kinds) {
  std::map<int, device::MemoryTerms> largest;  // by stage: memory of its largest rank
  for (const RankKind& kind : kinds) {
    largest.try_emplace(comm::Locate(kind.first, plan.grid).pipeline, kind.memory);
  }
  std::vector<StageRow> rows;
  for (const auto& [stage, memory] : largest) {
    const int rank =
        comm::RankAt({.pipeline = stage, .data = 0, .context = 0, .tensor = 0}, plan.grid);
    const model::StagePlan part =
        model::PlanStage(plan.training.model, plan.grid, plan.sharing, rank);
    StageRow row{stage, stage, 0, 0, memory};
    for (const Part& chunk : part.chunks) row.blocks += chunk.Size();
    for (const parallel::Slots& slots : part.slots) row.kept += slots.weight;
    if (!rows.empty() && rows.back().memory == memory && rows.back().blocks == row.blocks &&
        rows.back().kept == row.kept) {
      rows.back().last = stage;
    } else {
      rows.push_back(row);
    }
  }
  return rows;
}

std::string StageTable(const std::vector<StageRow>& rows) {
  constexpr std::size_t kShown = 12;
  std::string text = fmt::format("{:<{}}{:<9}{:>8}{:>8}{:>14}{:>14}{:>14}\n", "stages", kIndent,
                                 "stage", "blocks", "kept", "parameters", "activations", "all");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows.size() > kShown && i == kShown / 2) {
      text += fmt::format("{:<{}}...\n", "", kIndent);
      i = rows.size() - kShown / 2;
    }
    const StageRow& row = rows[i];
    const std::string name = row.first == row.last ? std::to_string(row.first)
                                                   : fmt::format("{}-{}", row.first, row.last);
    text += fmt::format("{:<{}}{:<9}{:>8}{:>8}{:>14}{:>14}{:>14}\n", "", kIndent, name, row.blocks,
                        row.kept, AsBytes(row.memory.parameters), AsBytes(row.memory.activations),
                        AsBytes(row.memory.Total()));
  }
  return text + fmt::format("{:<{}}kept: micro-batches whose activations a rank keeps at once\n",
                            "", kIndent);
}

// The most traffic of any rank in one kind of transfer of one group.
struct TrafficRow {
  comm::Traffic most;
  int rank = 0;
};
using TrafficTable = std::map<std::pair<comm::Group, comm::Transfer>, TrafficRow>;

void Collect(const RankPlan& rank, int number, TrafficTable& table) {
  for (int group = 0; group < comm::kGroups; ++group) {
    for (int transfer = 0; transfer < comm::kTransfers; ++transfer) {
      const auto key =
          std::make_pair(static_cast<comm::Group>(group), static_cast<comm::Transfer>(transfer));
      const comm::Traffic& mine = rank.traffic.At(key.first, key.second);
      if (mine.calls == 0) continue;
      const auto [at, added] = table.try_emplace(key, TrafficRow{mine, number});
      if (mine.payload > at->second.most.payload) at->second = {mine, number};
    }
  }
}

std::string Text(const TrafficTable& table) {
  if (table.empty()) return Line("traffic", "none: one rank");
  std::string text = fmt::format("{:<{}}{:<11}{:<15}{:>12}{:>12}{:>12}{:>10}\n", "traffic", kIndent,
                                 "group", "transfer", "calls", "payload", "sent", "on rank");
  for (const auto& [key, row] : table) {
    text += fmt::format(
        "{:<{}}{:<11}{:<15}{:>12}{:>12}{:>12}{:>10}\n", "", kIndent, comm::NameOf(key.first),
        comm::NameOf(key.second), WithThousands(row.most.calls), AsBytes(row.most.payload),
        row.most.moved > 0 ? AsBytes(std::llround(row.most.moved)) : "-", WithThousands(row.rank));
  }
  return text + fmt::format("{:<{}}per step, of the rank with the largest payload\n", "", kIndent);
}

double Sum(const std::array<double, parallel::kTaskKinds>& tasks) {
  return std::accumulate(tasks.begin(), tasks.end(), 0.0);
}

double Operations(const RankPlan& rank) {
  double sum = 0;
  for (const auto& chunk : rank.operations) sum += Sum(chunk);
  return sum;
}

// Operations of the busiest rank by kind of task, and the share that the idlest rank has.
std::string OperationsText(const RankPlan& dearest, double least) {
  constexpr std::array<const char*, parallel::kTaskKinds> kNames = {
      "forward", "backward", "input gradient", "weight gradient", "evaluation"};
  std::array<double, parallel::kTaskKinds> kinds{};
  for (const auto& chunk : dearest.operations) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) kinds[kind] += chunk[kind];
  }
  std::string text;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    if (kinds[kind] == 0) continue;
    text += fmt::format("{}{} {}FLOP", text.empty() ? "" : " + ", kNames[kind],
                        report::WithSuffix(kinds[kind]));
  }
  const std::string sum = fmt::format("{}FLOP", report::WithSuffix(Sum(kinds)));
  if (text.find(" + ") != std::string::npos) text += " = " + sum;
  return fmt::format("{} per step on the busiest rank; {:.0f}% of that on the idlest", text,
                     100 * least / Sum(kinds));
}

// Ranks that represent all amounts of work. Work depends on stage, slices and positions, and on the
// share of the batch: the first and the last data rank have the largest and the smallest shares.
std::set<int> WorkingRanks(const Plan& plan, const std::vector<RankKind>& kinds) {
  std::set<int> ranks;
  for (const RankKind& kind : kinds) {
    comm::GridShape at = comm::Locate(kind.first, plan.grid);
    for (const int data : {0, plan.grid.data - 1}) {
      at.data = data;
      ranks.insert(comm::RankAt(at, plan.grid));
    }
  }
  return ranks;
}

std::string StepText(const Plan& plan, const std::vector<RankKind>& kinds) {
  TrafficTable table;
  RankPlan dearest;
  double most = -1, least = 0;
  for (const int rank : WorkingRanks(plan, kinds)) {
    RankPlan of_rank = PlanRank(plan, rank);
    Collect(of_rank, rank, table);
    const double operations = Operations(of_rank);
    least = most < 0 ? operations : std::min(least, operations);
    if (operations > most) {
      most = operations;
      dearest = std::move(of_rank);
    }
  }
  return Line("work", OperationsText(dearest, least)) + Text(table);
}

std::string BatchText(const Plan& plan) {
  const model::ModelPlan& model = plan.training.model;
  const char* what = plan.training.options.pairs ? "pair" : "window";
  return fmt::format("{} of {}{} tokens per step; {} of {} per data rank",
                     Counted(plan.training.Batch(), what),
                     plan.training.options.pairs ? "up to " : "", WithThousands(model.length),
                     Counted(model.pipeline.micro_batches, "micro-batch", "es"),
                     Counted(model.micro_batch * model.leaves, what));
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

// Plans a step of one micro-batch, which has transfers of all lengths.
void CheckTransfers(const Plan& plan, int rank) {
  const PlannedRank planned(plan, rank);
  TrainingState state(planned.Grid(), plan.training, planned.Stream());
  CheckShards(state.Net());
  const model::ModelPlan& model = plan.training.model;
  const std::int64_t one_each = plan.grid.data * model.micro_batch * model.leaves;
  PlanStep(state, {std::min(plan.training.Batch(), one_each)});
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
  model.Tasks().QueueLoss(entries);
}

RankPlan PlanRank(const Plan& plan, int rank) {
  return PlanRank(plan, rank, {plan.training.Batch()}, nullptr);
}

RankPlan PlanRank(const Plan& plan, int rank, const StepShape& step, device::WorkLog* log) {
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
  result.operations = state.Net().Tasks().Stages().Operations();
  return result;
}

std::string DescribeLayout(const comm::GridShape& grid, const comm::GridOptions& sharing,
                           const model::ModelPlan& model) {
  std::string text = comm::Describe(grid);
  if (sharing.sequence_parallel) text += ", sequence parallel";
  const int all = grid.data * grid.context;
  if (sharing.sharding != comm::Sharding::kNone && all > 1) {
    const int ranks = comm::ShardRanks(grid, sharing);
    text += fmt::format("; {} sharded over {} rank{}",
                        kShardedState[static_cast<int>(sharing.sharding)], ranks,
                        ranks == 1 ? "" : "s");
    if (all > ranks) text += fmt::format(", {} copies", all / ranks);
  }
  const parallel::PipelineShape& pipeline = model.pipeline;
  if (grid.pipeline > 1) {
    text += fmt::format("; {}", parallel::NameOf(pipeline.kind));
    if (pipeline.chunks > 1) text += fmt::format(" of {} chunks", pipeline.chunks);
    const int count = parallel::PaddedMicroBatches(pipeline, pipeline.micro_batches);
    text += fmt::format(", {}", Counted(count, "micro-batch", "es"));
  }
  if (model.options.recompute != model::Recompute::kNone) {
    text += fmt::format("; recompute {}", model::NameOf(model.options.recompute));
  }
  if (const parallel::Canonical& canonical = model.canonical; canonical.On()) {
    text += fmt::format("; canonical {}x{}, leaf of {}", canonical.data_groups, canonical.slices,
                        Counted(canonical.leaf, "sequence"));
  }
  return text;
}

std::string DescribeModel(const model::Options& options) {
  std::string heads = Counted(options.heads, "head");
  if (options.kv_heads != options.heads) heads += fmt::format(" ({} kv)", options.kv_heads);
  std::string layers = Counted(options.layers, "layer");
  std::string vocabulary = WithThousands(options.vocabulary);
  if (options.Translates()) {
    layers = fmt::format("encoder of {}, decoder of {}", Counted(options.encoder_layers, "layer"),
                         options.layers);
  }
  if (options.SourceVocabulary() > 0) {
    vocabulary += fmt::format(" (source {})", WithThousands(options.SourceVocabulary()));
  }
  return fmt::format("{}{}, dim {}, {}, vocabulary {}; {} parameters",
                     options.preset == "none" ? "" : options.preset + ": ", layers, options.dim,
                     heads, vocabulary,
                     report::WithSuffix(static_cast<double>(model::ParameterCount(options))));
}

std::string DescribeMasks(bool document_mask, bool loss_mask) {
  return fmt::format("{}{}", document_mask ? "; document masks" : "",
                     loss_mask ? "; loss mask" : "");
}

std::string Describe(const Plan& plan) {
  const std::vector<RankKind> kinds = PlanKinds(plan);
  const RankKind& largest = kinds.front();
  const comm::GridShape at = comm::Locate(largest.first, plan.grid);
  std::string text = Line("grid", DescribeLayout(plan.grid, plan.sharing, plan.training.model));
  text += Line("model", DescribeModel(plan.training.model.options));
  text += Line("data",
               fmt::format("{}; {} training tokens, {} per epoch{}", plan.tokens.source,
                           WithThousands(plan.tokens.train), Counted(plan.StepsPerEpoch(), "step"),
                           DescribeMasks(plan.training.model.document_mask,
                                         plan.training.options.loss_mask)));
  text += Line("batch", BatchText(plan));
  text += Line("memory",
               fmt::format("{}, like rank {} (pipeline {}, data {}, context {}, tensor {}): {}",
                           largest.ranks == plan.grid.Ranks()
                               ? "every rank"
                               : Counted(largest.ranks, "rank") + " with most",
                           largest.first, at.pipeline, at.data, at.context, at.tensor,
                           MemoryText(largest.memory)));
  if (plan.grid.pipeline > 1) text += StageTable(StageRows(plan, kinds));
  return text + StepText(plan, kinds);
}

}  // namespace trireme::train
