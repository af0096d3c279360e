// The task preflight: a look at all ranks and hosts, then the speeds of their nodes.
#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/job/hang_bound.hpp"
#include "trireme/monitor/append_file.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/preflight/measure.hpp"
#include "trireme/preflight/report.hpp"

namespace trireme::driver {

namespace {

void WriteReport(const std::string& folder, const preflight::Report& report) {
  monitor::MakeOutputFolder(folder);
  const std::string path = folder + "/preflight.json";
  monitor::WriteWhole(path, preflight::JsonOf(report));
  fmt::print("report        {}\n", path);
}

}  // namespace

ExitCode RunPreflight(job::Job& job) {
  const comm::Communicator& world = job.World();
  job::ArmSetUp(*job.runtime, job.options.machine.hang_timeout);
  preflight::Report report{.program = fmt::format("Trireme {} ({})", Version(), Commit()),
                           .ranks = world.Size(),
                           .hosts = job.runtime->Hosts(),
                           .findings = job::LookAround(job, true)};
  if (!job.line->validate_only) {
    report.measured = preflight::Measure(world, job.runtime->Node(), job.stream, job.dtype);
  }
  job.runtime->Watch().Disarm();
  world.Together([&] {
    if (!world.IsRoot()) return;
    for (const std::string& line : preflight::LinesOf(report)) fmt::print("{}\n", line);
    if (job.line->validate_only) {
      fmt::print("valid: nothing was measured or written\n");
    } else {
      WriteReport(job.options.job.output, report);
    }
    std::fflush(stdout);
  });
  return ExitCode::kDone;
}

}  // namespace trireme::driver
