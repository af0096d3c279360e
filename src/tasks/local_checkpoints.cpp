// Local checkpoints of a run: policy around one LocalWriter.
#include "local_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/interval.hpp"
#include "trireme/device/recorder.hpp"

namespace trireme::tasks {

namespace {

constexpr double kHour = 3600;
// Speed of a first one for checkpoint.auto, before one is measured: of a node's disk.
constexpr double kGuessedNodeBytesPerSecond = 1e9;
constexpr double kGigabyte = 1e9;

}  // namespace

LocalCheckpoints::LocalCheckpoints(const Setup& setup, checkpoint::State state)
    : setup_(setup),
      writer_({setup.runtime.World(), setup.runtime.Hosts()}, std::move(state), setup.run,
              setup.from),
      last_time_(Seconds()) {
  const std::string state_bytes = report::AsBytes(writer_.Bytes());
  if (writer_.Hosts() == 1) {
    setup_.monitor.Line(
        fmt::format("local   {} in {}; there is one host alone: no partner keeps a copy",
                    state_bytes, setup_.run.folder));
  } else {
    setup_.monitor.Line(fmt::format("local   {} on {} hosts in {}, {} of it copied to partners",
                                    state_bytes, writer_.Hosts(), setup_.run.folder,
                                    report::AsBytes(writer_.CopiedBytes())));
  }
  if (writer_.LackOfRoom().empty()) return;
  setup_.monitor.Warn(
      fmt::format("checkpoint.local: {}\n  Make room there or name another folder: a checkpoint "
                  "that does not fit goes to the run folder.",
                  writer_.LackOfRoom()));
}

bool LocalCheckpoints::TimeHasCome() const {
  const double passed = Seconds() - last_time_;
  const checkpoint::Options& options = setup_.options;
  if (!options.automatic) return options.every_minutes > 0 && passed / 60 >= options.every_minutes;
  const double guess =
      static_cast<double>(writer_.Bytes()) / writer_.Hosts() / kGuessedNodeBytesPerSecond;
  const double cost = std::max(checkpoint::kLeastCost, written_ > 0 ? longest_ : guess);
  return passed >= checkpoint::YoungDaly(cost, options.mtbf_hours * kHour);
}

bool LocalCheckpoints::DueAfter(std::int64_t step) const {
  const std::int64_t every = setup_.options.every_steps;
  return every > 0 && step % every == 0;
}

bool LocalCheckpoints::Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run) {
  const device::Scope scope(setup_.traffic.Trace(), {.name = device::SliceName::kCheckpoint,
                                                    .category = device::SliceCategory::kCheckpoint});
  last_time_ = Seconds();
  // The records of its steps first: a node that is lost may be the one that writes them.
  setup_.monitor.SyncRecords();
  setup_.runtime.World().Broadcast(&sequence, sizeof sequence);
  const checkpoint::LocalOutcome outcome = writer_.Write(step, sequence, run);
  const double seconds = Seconds() - last_time_;
  untold_seconds_ += seconds;
  if (outcome.failure.empty()) {
    ++written_;
    seconds_ += seconds;
    longest_ = std::max(longest_, seconds);
  }
  Report(step, outcome);
  return outcome.failure.empty();
}

void LocalCheckpoints::Report(std::int64_t step, const checkpoint::LocalOutcome& outcome) {
  const bool failed = !outcome.failure.empty();
  if (failed) {
    setup_.monitor.Happened(
        {.name = "local checkpoint failed", .step = step, .text = outcome.failure});
    if (!failing_) {
      setup_.monitor.Warn(fmt::format(
          "the local checkpoint of step {} was not written: {}\n  Until one is, all go to the run "
          "folder.",
          step, outcome.failure));
    }
  } else {
    setup_.monitor.Happened({.name = "local checkpoint",
                             .step = step,
                             .text = fmt::format("{} in {:.3f} s, {} of it copied to partners",
                                                 report::AsBytes(outcome.bytes), outcome.seconds,
                                                 report::AsBytes(outcome.copied)),
                             .numbers = {{"bytes", static_cast<double>(outcome.bytes)},
                                         {"bytes_copied", static_cast<double>(outcome.copied)},
                                         {"seconds", outcome.seconds}}});
    if (failing_) setup_.monitor.Line("local checkpoints are written again");
  }
  failing_ = failed;
}

double LocalCheckpoints::TakeSeconds() { return std::exchange(untold_seconds_, 0); }

std::string LocalCheckpoints::Summary() const {
  if (written_ == 0) return {};
  const double mean = seconds_ / static_cast<double>(written_);
  return fmt::format("{} of {}: {:.3f} s each, {:.2f} GB/s",
                     report::Counted(written_, "local checkpoint"),
                     report::AsBytes(writer_.Bytes()), mean,
                     mean > 0 ? static_cast<double>(writer_.Bytes()) / kGigabyte / mean : 0);
}

}  // namespace trireme::tasks
