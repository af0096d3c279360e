// --calibrate: a machine's description from the ranks at hand, and what it computes of the steps
// that it was made from.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "step_prediction.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/new_file.hpp"
#include "trireme/base/version.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/app/hang_bound.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

void PrintSteps(const predict::Calibration& calibration) {
  std::size_t width = 0;
  for (const predict::Calibration::Step& step : calibration.steps) {
    width = std::max(width, step.text.size());
  }
  fmt::print("{:<{}} {:>11} {:>11} {:>19}\n", "a training step of", width, "measured", "predicted",
             "predicted/measured");
  for (const predict::Calibration::Step& step : calibration.steps) {
    fmt::print("{:<{}} {:>8.2f} ms {:>8.2f} ms {:>19.2f}\n", step.text, width, 1e3 * step.measured,
               1e3 * step.computed, step.computed / step.measured);
  }
}

void CheckTarget(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  throw InputError(path + ": exists already", "Remove it, or name another file.");
}

}  // namespace

ExitCode RunCalibration(const app::Job& job) {
  const comm::Communicator& world = job.World();
  const std::string& path = job.line->calibrate;
  job.signals->Release();
  app::ArmSetUp(*job.runtime, job.options.machine.hang_timeout);
  world.Together([&] {
    if (world.IsRoot()) CheckTarget(path);
  });
  const double start = Seconds();
  const predict::Calibration calibration =
      predict::Calibrate(CalibrationSubject(job), predict::Effort::kWhole);
  job.runtime->Watch().Disarm();
  world.Together([&] {
    if (!world.IsRoot()) return;
    PrintSteps(calibration);
    const std::string heading =
        fmt::format("Written by Trireme {} ({}): trireme --calibrate", Version(), Commit());
    Replacement file(path);
    file.Write(predict::Write(calibration.machine, heading));
    report::Place(file, path);
    for (const std::string& words : calibration.machine.assumptions) {
      fmt::print("assumed  {}\n", words);
    }
    fmt::print("{} in {:.1f} s; its steps to {:.0f}%: plan.machine={}\n", path, Seconds() - start,
               100 * calibration.Worst(), path);
    std::fflush(stdout);
  });
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
