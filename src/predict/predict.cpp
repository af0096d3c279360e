// Predict: simulates a step, whole or extrapolated from two shorter ones; writes its timeline.
#include <fmt/format.h>
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "engine.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/device/trace_file.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/predict/search.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/training_plan.hpp"

namespace trireme::predict {

// DescribeRun: finds the machine description for a run's device.

namespace {

struct Card {
  const char* word;          // part of the card's name
  std::int64_t least_bytes;  // least memory of the card
  const char* description;
};
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
// The first entry that fits is used.
constexpr Card kCards[] = {{"GB200", 0, "gb200"},
                           {"H200", 0, "h200"},
                           {"H100", 0, "h100"},
                           {"A100", 60 * kGiB, "a100_80"},
                           {"A100", 0, "a100_40"}};

std::string NameOfCard(const device::GpuContext& card) {
  for (const Card& each : kCards) {
    if (card.name.find(each.word) != std::string::npos && card.memory_bytes >= each.least_bytes) {
      return each.description;
    }
  }
  return {};
}

}  // namespace

Described DescribeRun(const std::string& name, const train::MachineFacts& facts,
                      const std::string& shared) {
  std::string chosen = name;
  if (name == kAutoMachine) {
    if (facts.stream.gpu == nullptr) return {{}, "no description of these CPUs was named"};
    chosen = NameOfCard(*facts.stream.gpu);
    if (chosen.empty()) return {{}, "there is no description of " + facts.stream.gpu->name};
    // A program copied without its files must still train.
    const std::vector<std::string> names = MachineNames(shared);
    if (std::ranges::find(names, chosen) == names.end()) {
      return {{}, fmt::format("input/machines/{}.in is not beside the program", chosen)};
    }
  }
  Machine machine = ReadMachine(chosen, shared);
  if (machine.gpu != facts.stream.OnGpu()) {
    return {{}, fmt::format("{} describes {}", chosen, machine.gpu ? "GPUs" : "CPUs")};
  }
  if (machine.Of(facts.dtype, facts.stream.fp8).peak <= 0) {
    return {{}, chosen + " states no speed of such products"};
  }
  return {std::move(machine), {}};
}

namespace {

std::int64_t MicroBatches(const train::Plan& plan) {
  const model::ModelPlan& model = plan.training.model;
  const std::int64_t share =
      train::LargestShare(plan.TypicalStep().sequences, plan.grid.data, model.canonical);
  return CeilDivide(share, model.micro_batch * model.leaves);
}

// What a simulated step tells: its makespan, sums over its stages, and seconds per kind of kernel
// on the stage whose kernels take longest.
enum Fact : std::size_t {
  kMakespan,
  kCompute,
  kBubble,
  kTasks,
  kTransfers,
  kProductSeconds,
  kAttentionSeconds,
  kPassSeconds,
  kExposed,  // and the next ones: by group
  kFacts = kExposed + comm::kGroups
};
using Facts = std::array<double, kFacts>;

Facts FactsOf(const PlayedStep& step) {
  Facts facts = {};
  facts[kMakespan] = step.simulated.Makespan();
  for (const StageTimes& stage : step.simulated.stages) {
    facts[kCompute] += stage.compute;
    facts[kBubble] += stage.bubble;
    for (std::size_t i = 0; i < stage.exposed.size(); ++i) facts[kExposed + i] += stage.exposed[i];
  }
  KernelSeconds most;
  for (const Tape& tape : step.tapes) {
    facts[kTasks] += static_cast<double>(tape.tasks.size());
    facts[kTransfers] += static_cast<double>(tape.transfers.size());
    if (tape.kernels.Sum() > most.Sum()) most = tape.kernels;
  }
  facts[kProductSeconds] = most.products;
  facts[kAttentionSeconds] = most.attention;
  facts[kPassSeconds] = most.passes;
  return facts;
}

// A step's target tokens without padding, and its operations, which include padding.
struct Work {
  double tokens = 0, flops = 0;
};
Work WorkOf(const train::Plan& plan) {
  const model::ModelPlan& model = plan.training.model;
  const train::StepShape step = plan.TypicalStep();
  if (step.target_length > 0) {
    return {static_cast<double>(plan.tokens.pairs->typical.target_tokens),
            static_cast<double>(step.sequences) *
                model::PairFlops(model.options, step.source_length, step.target_length)};
  }
  const auto tokens = static_cast<double>(step.sequences * model.length);
  return {tokens, tokens * model::FlopsPerToken(model.options, model.length)};
}

Prediction Summarise(const train::Plan& plan, const Machine& machine, const Facts& facts) {
  const auto stages = static_cast<double>(plan.grid.pipeline);
  Prediction prediction;
  prediction.step = facts[kMakespan] + machine.step_seconds;
  prediction.compute = facts[kCompute] / stages;
  prediction.bubble = facts[kBubble] / stages;
  for (std::size_t i = 0; i < prediction.exposed.size(); ++i) {
    prediction.exposed[i] = facts[kExposed + i] / stages;
  }
  prediction.other =
      prediction.step - prediction.compute - prediction.bubble - prediction.Exposed();
  prediction.products = facts[kProductSeconds];
  prediction.attention = facts[kAttentionSeconds];
  prediction.passes = facts[kPassSeconds];
  prediction.micro_batches = MicroBatches(plan);
  prediction.tasks = static_cast<std::int64_t>(facts[kTasks]);
  prediction.transfers = static_cast<std::int64_t>(facts[kTransfers]);
  const model::ModelPlan& model = plan.training.model;
  const Work work = WorkOf(plan);
  prediction.tokens_per_second = work.tokens / prediction.step;
  const Products& products = machine.Of(model.dtype, plan.machine.stream.fp8);
  prediction.utilisation = work.flops / prediction.step / (products.peak * plan.grid.Ranks());
  return prediction;
}

}  // namespace

double Prediction::Exposed() const { return std::accumulate(exposed.begin(), exposed.end(), 0.0); }

Prediction Predict(const train::Plan& plan, const Machine& machine) {
  const model::ModelPlan& model = plan.training.model;
  const std::int64_t all = MicroBatches(plan), stages = plan.grid.pipeline;
  // Enough micro-batches to keep all stages busy; multiples of `stages` for interleaving.
  const std::int64_t one = 2 * stages, two = one + std::max<std::int64_t>(stages, 2);
  train::StepShape shape = plan.TypicalStep();
  const auto play = [&] { return FactsOf(PlayStep(plan, machine, shape, false)); };
  if (all <= two) return Summarise(plan, machine, play());
  const std::int64_t each = plan.grid.data * model.micro_batch * model.leaves;
  shape.sequences = one * each;
  Facts facts = play();
  shape.sequences = two * each;
  const Facts longer = play();
  const std::int64_t padded = model.pipeline.kind == parallel::ScheduleKind::kInterleaved
                                  ? CeilDivide(all, stages) * stages
                                  : all;
  const double factor = static_cast<double>(padded - one) / static_cast<double>(two - one);
  for (std::size_t i = 0; i < kFacts; ++i) facts[i] += factor * (longer[i] - facts[i]);
  return Summarise(plan, machine, facts);
}

// WriteTimeline: writes a simulated step as a trace.

static device::Phase PhaseOf(int kind) {
  using enum parallel::TaskKind;
  const auto task = static_cast<parallel::TaskKind>(kind);
  return task == kForward          ? device::Phase::kForward
         : task == kBackward       ? device::Phase::kBackward
         : task == kBackwardInput  ? device::Phase::kInputGradient
         : task == kBackwardWeight ? device::Phase::kWeightGradient
                                   : device::Phase::kEvaluate;
}

static device::Slice SliceOf(const SimulatedSlice& from, const Tape& tape) {
  device::Slice slice;
  slice.begin = from.begin;
  slice.end = from.end;
  slice.step = 1;
  const auto at = static_cast<std::size_t>(from.index);
  if (from.kind == SimulatedSlice::Kind::kTask) {
    const TapeTask& task = tape.tasks[at];
    slice.name = device::SliceName::kTask;
    slice.category = device::SliceCategory::kCompute;
    slice.phase = PhaseOf(task.kind);
    slice.micro_batch = task.micro_batch;
    slice.chunk = task.chunk;
    return slice;
  }
  const device::LoggedTransfer& what = tape.transfers[at].what;
  const bool wait = from.kind == SimulatedSlice::Kind::kWait;
  const bool input = static_cast<comm::Group>(what.group) == comm::Group::kPipeline &&
                     static_cast<comm::Transfer>(what.transfer) == comm::Transfer::kReceive;
  slice.name = !wait   ? device::SliceName::kTransfer
               : input ? device::SliceName::kBubble
                       : device::SliceName::kWait;
  slice.category = wait ? device::SliceCategory::kWait : device::SliceCategory::kTransfer;
  slice.queue = wait ? device::SliceQueue::kHost : device::SliceQueue::kTransfers;
  slice.bytes = what.bytes;
  slice.group = what.group;
  slice.transfer = what.transfer;
  return slice;
}

void WriteTimeline(const train::Plan& plan, const Machine& machine, const std::string& path) {
  const PlayedStep step = PlayStep(plan, machine, plan.TypicalStep(), true);
  device::TraceFile file(path);
  for (int stage = 0; stage < plan.grid.pipeline; ++stage) {
    const Tape& tape = step.tapes[static_cast<std::size_t>(stage)];
    std::vector<device::Slice> slices;
    device::Slice whole;
    whole.end = step.simulated.Makespan();
    whole.step = 1;
    slices.push_back(whole);
    for (const SimulatedSlice& slice : step.simulated.slices) {
      if (slice.stage == stage && slice.end > slice.begin) slices.push_back(SliceOf(slice, tape));
    }
    const int rank =
        comm::RankAt({.pipeline = stage, .data = 0, .context = 0, .tensor = 0}, plan.grid);
    file.Add({.rank = rank,
              .host = machine.title + ", simulated",
              .group = [](int group) { return comm::NameOf(static_cast<comm::Group>(group)); },
              .transfer =
                  [](int transfer) { return comm::NameOf(static_cast<comm::Transfer>(transfer)); },
              .peer = [rank](const device::Slice&) { return rank; },
              .aligned = [](double seconds) { return seconds; }},
             std::move(slices));
  }
  if (const std::error_code error = file.Place({{"simulated", true}, {"machine", machine.name}})) {
    throw RunError(path + ": " + error.message(), "Choose another plan.timeline.");
  }
}

}  // namespace trireme::predict
