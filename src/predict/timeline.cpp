// WriteTimeline: a simulated step as a trace.
#include <algorithm>
#include <string>
#include <vector>

#include "steps.hpp"
#include "trireme/base/error.hpp"
#include "trireme/predict/prediction.hpp"
#include "trireme/device/trace_file.hpp"

namespace trireme::predict {

namespace {

device::Phase PhaseOf(int kind) {
  switch (static_cast<parallel::TaskKind>(kind)) {
    case parallel::TaskKind::kForward:
      return device::Phase::kForward;
    case parallel::TaskKind::kBackward:
      return device::Phase::kBackward;
    case parallel::TaskKind::kBackwardInput:
      return device::Phase::kInputGradient;
    case parallel::TaskKind::kBackwardWeight:
      return device::Phase::kWeightGradient;
    case parallel::TaskKind::kEvaluate:
      break;
  }
  return device::Phase::kEvaluate;
}

device::Slice SliceOf(const SimulatedSlice& from, const Tape& tape) {
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
  slice.name = !wait ? device::SliceName::kTransfer : input ? device::SliceName::kBubble : device::SliceName::kWait;
  slice.category = wait ? device::SliceCategory::kWait : device::SliceCategory::kTransfer;
  slice.queue = wait ? device::SliceQueue::kHost : device::SliceQueue::kTransfers;
  slice.bytes = what.bytes;
  slice.group = what.group;
  slice.transfer = what.transfer;
  return slice;
}

}  // namespace

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
