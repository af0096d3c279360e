// Times training steps of a model in the layouts of a job's ranks, on random tokens: tokens a
// second, where the time went, and for pipelines the schedule's own prediction from the stages'
// measured costs. usage: mpirun -n RANKS trireme_layouts_benchmark jsc|gpt12 [STEPS] threads:
// OMP_NUM_THREADS; test/benchmark/layouts.sh alternates it with one process.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "models.hpp"
#include "schedule_clock.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/runtime.hpp"

namespace {

using namespace trireme;
using namespace trireme::benchmark;

struct Layout {
  const char* name;
  comm::GridShape grid;
  parallel::ScheduleKind schedule = parallel::ScheduleKind::kOneForwardOneBackward;
  int chunks = 1;
  comm::GridOptions options = {};
};

std::vector<Layout> LayoutsOf(int ranks) {
  using parallel::ScheduleKind;
  if (ranks == 1) return {{"one process", {}}};
  return {{"data", {.data = ranks}},
          {"tensor", {.tensor = ranks}},
          {"tensor, sequence parallel",
           {.tensor = ranks},
           ScheduleKind::kOneForwardOneBackward,
           1,
           {.sequence_parallel = true}},
          {"pipeline, gpipe", {.pipeline = ranks}, ScheduleKind::kGpipe},
          {"pipeline, 1f1b", {.pipeline = ranks}},
          {"pipeline, interleaved", {.pipeline = ranks}, ScheduleKind::kInterleaved, 2},
          {"pipeline, zero_bubble", {.pipeline = ranks}, ScheduleKind::kZeroBubble}};
}

// Seconds of a task of each virtual stage, means over the step's micro-batches, on every rank.
std::vector<parallel::StageCost> MeasuredCosts(const comm::ProcessGrid& grid,
                                               const parallel::Pipeline& pipeline) {
  using parallel::TaskKind;
  const parallel::PipelineShape& shape = pipeline.Shape();
  std::vector<double> sums(static_cast<std::size_t>(3 * shape.VirtualStages()));
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const auto at = static_cast<std::size_t>(3 * (chunk * shape.stages + pipeline.Stage()));
    const double count = shape.micro_batches;
    sums[at] = pipeline.SecondsOf(TaskKind::kForward, chunk) / count;
    sums[at + 1] = (pipeline.SecondsOf(TaskKind::kBackward, chunk) +
                    pipeline.SecondsOf(TaskKind::kBackwardInput, chunk)) /
                   count;
    sums[at + 2] = pipeline.SecondsOf(TaskKind::kBackwardWeight, chunk) / count;
  }
  grid.Pipeline().Sum(sums);
  std::vector<parallel::StageCost> costs;
  for (std::size_t i = 0; i < sums.size(); i += 3) {
    costs.push_back({sums[i], sums[i + 1], sums[i + 2]});
  }
  return costs;
}

void Measure(const comm::Communicator& world, const data::TokenFile& tokens, Setup setup,
             const Layout& layout, const std::string& model, int steps) {
  const comm::ProcessGrid grid(world, layout.grid, layout.options);
  setup.model.pipeline.kind = layout.schedule;
  setup.model.pipeline.chunks = layout.chunks;
  if (layout.grid.data > 1 || world.Size() == 1) setup.model.micro_batch *= 2;
  Trial trial(grid, tokens, setup);
  std::vector<double> seconds, predicted, simulated;
  train::StepTimes times;
  for (int step = 0; step <= steps; ++step) {
    world.Barrier();
    const double start = Seconds();
    times = trial.step.Run(step).times;
    const double own = Seconds() - start;
    const double longest = world.Max(own);
    if (step == 0) continue;  // memory is touched for the first time
    seconds.push_back(longest);
    if (layout.grid.pipeline == 1) continue;
    // The pipeline's part of the step against what its schedule predicts.
    const parallel::Pipeline& pipeline = trial.state.Net().Tasks().Stages();
    const auto costs = MeasuredCosts(grid, pipeline);
    double inside = pipeline.SecondsWaitedForInput() + pipeline.SecondsWaitedForOutput();
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
      for (int kind = 0; kind < parallel::kTaskKinds; ++kind) {
        inside += pipeline.SecondsOf(static_cast<parallel::TaskKind>(kind), chunk);
      }
    }
    inside = world.Max(inside);
    predicted.push_back(inside / parallel::PredictedTime(pipeline.Shape(), costs));
    simulated.push_back(inside / parallel::Simulate(pipeline.Shape(), costs).makespan);
  }
  if (!world.IsRoot()) return;
  const double tokens_a_step = static_cast<double>(setup.samples.batch * setup.model.length);
  std::string line = fmt::format("{:<6} {:<26} {:8.3f} s/step {:8.0f} tokens/s", model, layout.name,
                                 Median(seconds), tokens_a_step / Median(seconds));
  line += fmt::format("  comm {:4.1f}%  bubble {:4.1f}%",
                      100 * times.exposed_communication / times.total,
                      100 * times.bubble / times.total);
  if (!predicted.empty()) {
    line += fmt::format("  measured/formula {:.3f}  measured/simulated {:.3f}", Median(predicted),
                        Median(simulated));
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] {
    const auto [model, steps] = ReadArguments(argc, argv, "trireme_layouts_benchmark");
    const Setup setup = SetupOf(model);
    const data::TokenFile tokens(runtime.World(), TokensFor(setup));
    for (const Layout& layout : LayoutsOf(runtime.World().Size())) {
      if (layout.chunks > 1 && model == "jsc") continue;  // two blocks
      Measure(runtime.World(), tokens, setup, layout, model, steps);
    }
    return ExitCode::kDone;
  });
}
