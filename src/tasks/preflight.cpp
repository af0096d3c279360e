// The task preflight: a look at all ranks and hosts, then the speeds of their nodes.
#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/app/hang_bound.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tools/measure.hpp"
#include "trireme/tools/report.hpp"

namespace trireme::tasks {

namespace {

void WriteReport(const std::string& folder, const tools::Report& report) {
  report::MakeOutputFolder(folder);
  const std::string path = folder + "/preflight.json";
  report::WriteWhole(path, tools::JsonOf(report));
  fmt::print("report        {}\n", path);
}

}  // namespace

ExitCode RunPreflight(app::Job& job) {
  const comm::Communicator& world = job.World();
  app::ArmSetUp(*job.runtime, job.options.machine.hang_timeout);
  tools::Report report{.program = fmt::format("Trireme {} ({})", Version(), Commit()),
                           .ranks = world.Size(),
                           .hosts = job.runtime->Hosts(),
                           .findings = app::LookAround(job, true)};
  if (!job.line->validate_only) {
    report.measured = tools::Measure(world, job.runtime->Node(), job.stream, job.dtype);
  }
  job.runtime->Watch().Disarm();
  world.Together([&] {
    if (!world.IsRoot()) return;
    for (const std::string& line : tools::LinesOf(report)) fmt::print("{}\n", line);
    if (job.line->validate_only) {
      fmt::print("valid: nothing was measured or written\n");
    } else {
      WriteReport(job.options.job.output, report);
    }
    std::fflush(stdout);
  });
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
