// The order of a run's page: which runs get one, and how long that may take.
#include <algorithm>
#include <optional>

#include "trireme/base/clock.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/app/batch_job.hpp"

namespace trireme::tasks {

std::optional<report::PageOrder> OrderPage(const app::Job& job) {
  constexpr double kMostSeconds = 60;
  constexpr double kMargin = 20;  // seconds before the job's end, in which the program is gone
  constexpr double kLeast = 5;    // seconds; with less it is not begun
  if (job.ended_run.empty() || !job.World().IsRoot() || !job.options.monitor.report) return {};
  double seconds = kMostSeconds;
  if (const auto end = app::ReadBatchJob().end_unix_seconds) {
    seconds = std::min(seconds, *end - UnixSeconds() - kMargin);
  }
  return report::PageOrder{.folder = job.ended_run, .seconds = seconds < kLeast ? 0 : seconds};
}

}  // namespace trireme::tasks
