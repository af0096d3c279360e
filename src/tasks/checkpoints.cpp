// Checkpoints: when and how a Writer is used; LocalCheckpoints: the same for a LocalWriter.
#include "checkpoints.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::tasks {

namespace {

// Speed that checkpoint.auto assumes before a checkpoint was measured: that of one disk.
constexpr double kGuessedBytesPerSecond = 5e8;
// The same for local checkpoints: that of a node's disk.
constexpr double kGuessedNodeBytesPerSecond = 1e9;
// Assumed for the last checkpoint before the job's time ends, if none was measured: speed of a busy
// shared disk, and time of its metadata calls.
constexpr double kSlowBytesPerSecond = 1e8;
constexpr double kSlowSeconds = 1;
constexpr double kGiga = 1e9;

// A timeline slice that spans the time training waits.
device::Scope Traced(const comm::Ledger& traffic) {
  return {traffic.Trace(),
          {.name = device::SliceName::kCheckpoint, .category = device::SliceCategory::kCheckpoint}};
}

// Whether `minutes` have passed since `last`; never if minutes is 0.
bool Passed(double last, double minutes) {
  return minutes > 0 && (Seconds() - last) / 60 >= minutes;
}

}  // namespace

Checkpoints::Checkpoints(const Setup& setup, checkpoint::State state)
    : setup_(setup),
      writer_(setup.runtime.World(), std::move(state),
              {.async = setup.options.async,
               .writers = static_cast<int>(setup.options.writers),
               .io_hints = setup.options.io_hints,
               .cores = setup.cores}),
      sequence_(setup.sequence),
      last_time_(Seconds()) {
  const auto bytes = static_cast<double>(writer_.Bytes());
  setup_.deadline.ExpectCheckpoint(kSlowSeconds + bytes / kSlowBytesPerSecond);
}

double Checkpoints::Interval() const {
  // Local checkpoints survive a share of the failures; the interval follows from the others.
  const double share = setup_.options.local.empty() ? 1 : 1 - setup_.options.local_survival;
  const double mtbf = setup_.options.mtbf_hours * kSecondsPerHour / share;
  const double guess = static_cast<double>(writer_.Bytes()) / kGuessedBytesPerSecond;
  return checkpoint::YoungDaly(
      std::max(checkpoint::kLeastCost, written_ > 0 ? longest_stall_ : guess), mtbf);
}

bool Checkpoints::TimeHasCome() const {
  const checkpoint::Options& options = setup_.options;
  if (options.automatic) return !writer_.UnderWay() && Seconds() - last_time_ >= Interval();
  return Passed(last_time_, options.every_minutes * static_cast<double>(options.Drains()));
}

void Checkpoints::Begin(std::int64_t step, const nlohmann::json& run, const Reason& reason) {
  last_time_ = Seconds();
  stall_ = 0;
  under_way_ = reason;
  const Stopwatch stall(stall_);
  writer_.Begin({.folder = setup_.folder + "/checkpoints",
                 .step = step,
                 .run = run,
                 .best = reason.best,
                 .retention = {.keep = setup_.options.keep,
                               .keep_every_steps = setup_.options.keep_every_steps},
                 .may_publish = setup_.may_publish,
                 .before_publish = [this] { setup_.monitor.SyncRecords(); }});
}

void Checkpoints::Settle() {
  if (!writer_.UnderWay()) return;
  const device::Scope scope = Traced(setup_.traffic);
  const Stopwatch waited(setup_.waited);
  Finish();
}

void Checkpoints::Write(std::int64_t step, const nlohmann::json& run, const Reason& reason) {
  const device::Scope scope = Traced(setup_.traffic);
  const Stopwatch waited(setup_.waited);
  Begin(step, run, reason);
  if (!setup_.options.async) Finish();
}

void Checkpoints::Advance(bool any_busy) {
  if (!writer_.UnderWay() || any_busy) return;
  const device::Scope scope = Traced(setup_.traffic);
  const Stopwatch waited(setup_.waited);
  const std::optional<checkpoint::Outcome> outcome = Stalled([&] { return writer_.Advance(); });
  if (outcome) Account(*outcome);
}

void Checkpoints::WriteLast(std::int64_t step, const nlohmann::json& run, const Reason& reason) {
  const device::Scope scope = Traced(setup_.traffic);
  const Stopwatch waited(setup_.waited);
  failures_ = 0;  // count this checkpoint's own attempts: no later one can make up for it
  do {
    Begin(step, run, reason);
    Finish();
  } while (failures_ > 0);
}

void Checkpoints::Account(const checkpoint::Outcome& outcome) {
  TraceFiles();
  if (under_way_.best) best_written_ = outcome.failure.empty();
  if (!outcome.failure.empty()) return Fail(outcome);
  failures_ = 0;
  sequence_ = outcome.sequence;
  if (!under_way_.stop_only) last_regular_ = outcome.step;
  ++written_;
  longest_stall_ = std::max(longest_stall_, stall_);
  stalls_ += stall_;
  bytes_ += static_cast<double>(outcome.bytes);
  write_seconds_ += outcome.write_seconds;
  verify_seconds_ += outcome.verify_seconds;
  // The time that a last checkpoint takes, when training does not continue beside it.
  setup_.deadline.Checkpoint(setup_.options.async
                                 ? stall_ + outcome.write_seconds + outcome.verify_seconds
                                 : outcome.seconds);
  Report(outcome);
}

// Shows a checkpoint in the timeline, from its beginning until training learns of its end.
void Checkpoints::TraceFiles() const {
  device::Recorder* const recorder = setup_.traffic.Trace();
  if (recorder == nullptr || !setup_.options.async) return;
  recorder->Add({.begin = last_time_,
                 .end = Seconds(),
                 .name = device::SliceName::kCheckpoint,
                 .category = device::SliceCategory::kCheckpoint,
                 .queue = device::SliceQueue::kCheckpointFiles});
}

void Checkpoints::Report(const checkpoint::Outcome& outcome) {
  const double bytes = static_cast<double>(outcome.bytes);
  setup_.monitor.Happened(
      {.name = "checkpoint",
       .step = outcome.step,
       .text = fmt::format("{} in {:.2f} s, training waited {:.2f} s",
                           report::AsBytes(outcome.bytes), outcome.seconds, stall_),
       .numbers = {{"bytes", bytes},
                   {"seconds", outcome.seconds},
                   {"seconds_stalled", stall_},
                   {"seconds_write", outcome.write_seconds},
                   {"seconds_verify", outcome.verify_seconds},
                   {"gigabytes_per_second",
                    outcome.write_seconds > 0 ? bytes / kGiga / outcome.write_seconds : 0}}});
  for (const std::string& warning : outcome.warnings) {
    if (!told_.insert(warning).second) continue;
    setup_.monitor.Warn(
        fmt::format("the checkpoint of step {} is written, but: {}", outcome.step, warning));
    setup_.monitor.Happened({.name = "clean-up failed", .step = outcome.step, .text = warning});
  }
}

void Checkpoints::Fail(const checkpoint::Outcome& outcome) {
  ++failures_;
  setup_.monitor.Happened(
      {.name = "checkpoint failed", .step = outcome.step, .text = outcome.failure});
  const comm::Communicator& world = setup_.runtime.World();
  // Do not write again if another job has taken over the folder.
  world.Together([&] {
    if (world.IsRoot() && setup_.may_go_on) setup_.may_go_on();
  });
  if (failures_ >= setup_.options.max_failures) {
    throw AgreedError(
        ExitCode::kFailed,
        fmt::format("the checkpoint of step {} was not written, {}: {}", outcome.step,
                    failures_ == 1 ? "checkpoint.max_failures = 1"
                                   : fmt::format("the last of {} failures in a row", failures_),
                    outcome.failure));
  }
  setup_.monitor.Warn(
      fmt::format("the checkpoint of step {} was not written: {}", outcome.step, outcome.failure));
}

std::string Checkpoints::Summary() const {
  if (written_ == 0) return {};
  const double count = static_cast<double>(written_);
  const auto speed = [&](double seconds) { return seconds > 0 ? bytes_ / kGiga / seconds : 0; };
  return fmt::format(
      "{} of {}: written at {:.2f} GB/s, read back at {:.2f} GB/s; training waited {:.2f} s for "
      "each",
      report::Counted(written_, "checkpoint"),
      report::AsBytes(static_cast<std::int64_t>(bytes_ / count)), speed(write_seconds_),
      speed(verify_seconds_), stalls_ / count);
}

// LocalCheckpoints: when and how a LocalWriter is used.

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
  const checkpoint::Options& options = setup_.options;
  if (!options.automatic) return Passed(last_time_, options.every_minutes);
  const double guess =
      static_cast<double>(writer_.Bytes()) / writer_.Hosts() / kGuessedNodeBytesPerSecond;
  const double cost = std::max(checkpoint::kLeastCost, written_ > 0 ? longest_ : guess);
  return Seconds() - last_time_ >=
         checkpoint::YoungDaly(cost, options.mtbf_hours * kSecondsPerHour);
}

bool LocalCheckpoints::Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run) {
  const device::Scope scope = Traced(setup_.traffic);
  last_time_ = Seconds();
  // First put the steps' records on the disk: the node that writes them may be lost.
  setup_.monitor.SyncRecords();
  setup_.runtime.World().Broadcast(&sequence, sizeof sequence);
  const checkpoint::LocalOutcome outcome = writer_.Write(step, sequence, run);
  const double seconds = Seconds() - last_time_;
  setup_.waited += seconds;
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

std::string LocalCheckpoints::Summary() const {
  if (written_ == 0) return {};
  const double mean = seconds_ / static_cast<double>(written_);
  return fmt::format("{} of {}: {:.3f} s each, {:.2f} GB/s",
                     report::Counted(written_, "local checkpoint"),
                     report::AsBytes(writer_.Bytes()), mean,
                     mean > 0 ? static_cast<double>(writer_.Bytes()) / kGiga / mean : 0);
}

}  // namespace trireme::tasks
