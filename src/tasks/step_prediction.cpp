// StepPrediction: a description, one simulated step, and the means of the session.
#include "step_prediction.hpp"

#include <fmt/format.h>

#include "trireme/base/clock.hpp"
#include "trireme/base/installation.hpp"
#include "trireme/predict/prediction.hpp"

namespace trireme::tasks {

predict::Subject CalibrationSubject(const app::Job& job) {
  return {.world = job.World(),
          .node = job.runtime->Node(),
          .hosts = job.runtime->Hosts(),
          .schema = *job.schema,
          .stream = job.stream,
          .gpu = job.gpu.get(),
          .precision = job.options.machine.precision,
          .use_gpu = [&job](comm::ProcessGrid& grid) { app::UseGpu(job, grid); }};
}

StepPrediction::StepPrediction(const app::Job& job, const train::Plan& plan)
    : job_(job), plan_(plan) {
  job.World().Together([&] {
    if (!job.World().IsRoot()) return;
    predict::Described described =
        predict::DescribeRun(job.options.plan.machine, plan.machine, SharedFolder(ProgramFile()));
    machine_ = std::move(described.machine);
    why_none_ = std::move(described.why_none);
  });
}

void StepPrediction::Calibrate(bool done, double seconds_left) {
  constexpr double kLeastRun = 60, kLeastLeft = 60;  // seconds
  const comm::Communicator& world = job_.World();
  const bool wanted = world.IsRoot() && done && !machine_ && !job_.stream.OnGpu() &&
                      job_.options.plan.machine == predict::kAutoMachine &&
                      Seconds() - job_.start_seconds >= kLeastRun && seconds_left >= kLeastLeft;
  if (world.Max(std::int64_t{wanted}) == 0) return;
  predict::Calibration calibration =
      predict::Calibrate(CalibrationSubject(job_), predict::Effort::kShort);
  if (world.IsRoot()) machine_ = std::move(calibration.machine);
}

report::Comparison StepPrediction::Compare(const report::Record& means, std::int64_t steps,
                                            const comm::GroupSeconds& waited) const {
  report::Comparison comparison;
  if (!machine_) {
    comparison.not_available = why_none_ + "; trireme --calibrate FILE writes one for plan.machine";
    return comparison;
  }
  if (steps == 0) return comparison;
  predict::Prediction predicted;
  try {
    predicted = predict::Predict(plan_, *machine_);
  } catch (const Error& error) {  // costs a run that has ended nothing else
    comparison.not_available = error.what();
    return comparison;
  }
  comm::GroupSeconds a_step = waited;
  for (double& seconds : a_step) seconds /= static_cast<double>(steps);
  const comm::GroupSeconds exposed =
      comm::ExposedByGroup(a_step, means.seconds_bubble, means.seconds_exposed_communication);
  comparison.machine = machine_->name;
  if (!machine_->source.empty()) comparison.machine += fmt::format(" ({})", machine_->source);
  if (!machine_->gpu && machine_->threads != plan_.machine.stream.threads) {
    comparison.machine += fmt::format(", ranks of {} threads here", plan_.machine.stream.threads);
  }
  const auto add = [&](std::string name, double of_plan, double of_run) {
    comparison.terms.push_back({std::move(name), of_plan, of_run});
  };
  add("step", predicted.step, means.step_seconds);
  add("compute", predicted.compute, means.seconds_compute);
  for (std::size_t i = 0; i < exposed.size(); ++i) {
    if (predicted.exposed[i] <= 0 && exposed[i] <= 0) continue;
    add(fmt::format("exposed {}", comm::NameOf(static_cast<comm::Group>(i))), predicted.exposed[i],
        exposed[i]);
  }
  if (plan_.grid.pipeline > 1) add("bubble", predicted.bubble, means.seconds_bubble);
  add("other", predicted.other,
      means.step_seconds - means.seconds_compute - means.seconds_exposed_communication -
          means.seconds_bubble);
  comparison.not_available.clear();
  return comparison;
}

}  // namespace trireme::tasks
