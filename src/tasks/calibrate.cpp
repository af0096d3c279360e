// --calibrate: describes the machine by measuring it on the ranks at hand, and compares the steps
// that this description predicts with those measured. Also job.task = preflight.
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

#include "root.hpp"
#include "step_prediction.hpp"
#include "trireme/app/job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/program.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tools/preflight.hpp"

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

constexpr double kBusy = 0.5;  // relative error of a predicted step; above it, the machine was busy

void CheckTarget(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    throw InputError(path + ": exists already", "Remove it, or name another file.");
  }
  if (::access(FolderOf(path).c_str(), W_OK | X_OK) == 0) return;
  throw InputError(fmt::format("{}: cannot be written: {}", path, ErrorText(errno)),
                   "Name a file in a folder where you may write.");
}

}  // namespace

ExitCode RunCalibration(const app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  const std::string& path = request.line.calibrate;
  job.ranks.signals->Release();
  app::ArmSetUp(*job.ranks.runtime, request.machine.hang_timeout);
  AtRoot(world, [&] { CheckTarget(path); });
  const double start = Seconds();
  const predict::Calibration calibration =
      predict::Calibrate(CalibrationSubject(job), predict::Effort::kWhole);
  job.ranks.Watch().Disarm();
  AtRoot(world, [&] {
    PrintSteps(calibration);
    const std::string heading = fmt::format("Written by Trireme {} ({}) on {}: trireme --calibrate",
                                            Version(), Commit(), job.ranks.Hosts().First());
    Replacement file(path);
    file.Write(predict::Write(calibration.machine, heading));
    report::Place(file, path);
    for (const std::string& words : calibration.machine.assumptions) {
      fmt::print("assumed  {}\n", words);
    }
    const double worst = calibration.Worst();
    fmt::print("{} in {:.1f} s; largest error of a step's time {:.0f}%: plan.machine={}\n", path,
               Seconds() - start, 100 * worst, path);
    if (worst > kBusy) {
      fmt::print("largest error {:.0f}%: the machine was busy; remove {} and repeat\n", 100 * worst,
                 path);
    }
    std::fflush(stdout);
  });
  return ExitCode::kDone;
}

// job.task = preflight: inspects all ranks and hosts, then measures the speeds of their nodes.

ExitCode RunPreflight(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  app::ArmSetUp(*job.ranks.runtime, request.machine.hang_timeout);
  tools::Report report{.program = fmt::format("Trireme {} ({})", Version(), Commit()),
                       .ranks = world.Size(),
                       .hosts = job.ranks.Hosts(),
                       .findings = app::LookAround(request, job.ranks, job.device, true)};
  if (!request.line.validate_only) {
    report.measured = tools::Measure(world, job.ranks.Node(), job.device.stream, job.device.dtype);
  }
  job.ranks.Watch().Disarm();
  AtRoot(world, [&] {
    for (const std::string& line : tools::LinesOf(report)) fmt::print("{}\n", line);
    if (request.line.validate_only) {
      fmt::print("valid: nothing was measured or written\n");
    } else {
      report::MakeOutputFolder(request.job.output);
      const std::string path = request.job.output + "/preflight.json";
      report::WriteWhole(path, tools::JsonOf(report));
      fmt::print("report        {}\n", path);
    }
    std::fflush(stdout);
  });
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
