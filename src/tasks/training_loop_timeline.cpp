// TrainingLoop: its timeline, with the facts that a reader of the file wants.
#include "timeline.hpp"
#include "trireme/base/version.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/training_loop.hpp"

namespace trireme::tasks {

void TrainingLoop::MakeTimeline() {
  const parallel::PipelineShape& stages = state_.Net().Stages().Shape();
  nlohmann::json facts = {{"program", "Trireme " + Version()},
                          {"grid", comm::Describe(grid_.Shape())},
                          {"stages", stages.stages},
                          {"schedule", parallel::NameOf(stages.kind)},
                          {"chunks", stages.chunks},
                          {"micro_batches", stages.micro_batches},
                          {"device", device::NameOf(job_.stream.Where())}};
  if (job_.stream.OnGpu()) {
    facts["gpu"] =
        "slices of the thread GPU are times between events in its queue; the steps of a recorded "
        "graph (run.graphs) are one slice each";
  }
  timeline_ = std::make_unique<Timeline>(
      Timeline::Setup{.runtime = *job_.runtime,
                      .grid = grid_,
                      .monitor = *monitor_,
                      .stream = job_.stream,
                      .window = job_.options.monitor.trace_steps,
                      .kernels = job_.options.monitor.trace_kernels,
                      .step = step_,
                      .total = schedule_.Last(),
                      .path = folder_ + "/trace.json.gz",
                      .facts = facts,
                      .watch = [this] { Watch(comm::Phase::kCheckpoint, step_); }});
}

}  // namespace trireme::tasks
