// Checkpoints uses a checkpoint::Writer, LocalCheckpoints a LocalWriter; CheckpointPolicy decides
// when each of them writes.
#include "checkpoint_policy.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <utility>

#include "root.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/deck/json_text.hpp"

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
device::Scope Traced(const LoopParts& loop) {
  return {loop.state.Grid().Traffic().Trace(),
          {.name = device::SliceName::kCheckpoint, .category = device::SliceCategory::kCheckpoint}};
}

// Whether `minutes` have passed since `last`; never if minutes is 0.
bool Passed(double last, double minutes) {
  return minutes > 0 && (Seconds() - last) / 60 >= minutes;
}

// Members of a local checkpoint's run.json. kDue: the run folder is to get one of this step, too.
constexpr const char* kDue = "run_folder_due";
constexpr const char* kKept = "kept_best_loss";  // loss of the best checkpoint until now
}  // namespace

Checkpoints::Checkpoints(LoopParts& loop, std::int64_t sequence, double& waited,
                         checkpoint::State state)
    : loop_(loop),
      waited_(waited),
      writer_(loop.job.ranks.World(), std::move(state),
              {.async = Options().async,
               .writers = static_cast<int>(Options().writers),
               .io_hints = Options().io_hints,
               .cores = loop.job.ranks.signals->UsableCores()}),
      sequence_(sequence),
      last_time_(Seconds()) {
  const auto bytes = static_cast<double>(writer_.Bytes());
  loop.progress.deadline.ExpectCheckpoint(kSlowSeconds + bytes / kSlowBytesPerSecond);
}

double Checkpoints::Interval() const {
  // Local checkpoints survive a share of the failures; the interval follows from the others.
  const double share = Options().local.empty() ? 1 : 1 - Options().local_survival;
  const double mtbf = Options().mtbf_hours * kSecondsPerHour / share;
  const double guess = static_cast<double>(writer_.Bytes()) / kGuessedBytesPerSecond;
  return checkpoint::YoungDaly(
      std::max(checkpoint::kLeastCost, written_ > 0 ? longest_stall_ : guess), mtbf);
}

bool Checkpoints::TimeHasCome() const {
  const checkpoint::Options& options = Options();
  if (options.automatic) return !writer_.UnderWay() && Seconds() - last_time_ >= Interval();
  return Passed(last_time_, options.every_minutes * static_cast<double>(options.Drains()));
}

void Checkpoints::Begin(std::int64_t step, const nlohmann::json& run, const Reason& reason) {
  last_time_ = Seconds();
  stall_ = 0;
  under_way_ = reason;
  const Stopwatch stall(stall_);
  writer_.Begin(
      {.folder = loop_.session->Folder() + "/checkpoints",
       .step = step,
       .run = run,
       .best = reason.best,
       .retention = {.keep = Options().keep, .keep_every_steps = Options().keep_every_steps},
       .may_publish = [this] { loop_.session->HoldLock(true); },
       .before_publish = [this] { loop_.monitor->SyncRecords(); }});
}

void Checkpoints::Settle() {
  if (!writer_.UnderWay()) return;
  const device::Scope scope = Traced(loop_);
  const Stopwatch stopwatch(waited_);
  Finish();
}

void Checkpoints::Write(std::int64_t step, const nlohmann::json& run, const Reason& reason) {
  const device::Scope scope = Traced(loop_);
  const Stopwatch stopwatch(waited_);
  Begin(step, run, reason);
  if (!Options().async) Finish();
}

void Checkpoints::Advance(bool any_busy) {
  if (!writer_.UnderWay() || any_busy) return;
  const device::Scope scope = Traced(loop_);
  const Stopwatch stopwatch(waited_);
  const std::optional<checkpoint::Outcome> outcome = Stalled([&] { return writer_.Advance(); });
  if (outcome) Account(*outcome);
}

void Checkpoints::WriteLast(std::int64_t step, const nlohmann::json& run, const Reason& reason) {
  const device::Scope scope = Traced(loop_);
  const Stopwatch stopwatch(waited_);
  failures_ = 0;  // count the attempts at this checkpoint alone: no later one follows
  do {
    Begin(step, run, reason);
    Finish();
  } while (failures_ > 0);
}

void Checkpoints::Account(const checkpoint::Outcome& outcome) {
  // Show it in the timeline, from its beginning until training learns of its end.
  device::Recorder* const recorder = loop_.state.Grid().Traffic().Trace();
  if (recorder != nullptr && Options().async) {
    recorder->Add({.begin = last_time_,
                   .end = Seconds(),
                   .name = device::SliceName::kCheckpoint,
                   .category = device::SliceCategory::kCheckpoint,
                   .queue = device::SliceQueue::kCheckpointFiles});
  }
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
  loop_.progress.deadline.Checkpoint(
      Options().async ? stall_ + outcome.write_seconds + outcome.verify_seconds : outcome.seconds);
  Report(outcome);
}

void Checkpoints::Report(const checkpoint::Outcome& outcome) {
  const double bytes = static_cast<double>(outcome.bytes);
  loop_.monitor->Happened(
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
    loop_.monitor->Warn(
        fmt::format("the checkpoint of step {} is written, but: {}", outcome.step, warning));
    loop_.monitor->Happened({.name = "clean-up failed", .step = outcome.step, .text = warning});
  }
}

void Checkpoints::Fail(const checkpoint::Outcome& outcome) {
  ++failures_;
  loop_.monitor->Happened(
      {.name = "checkpoint failed", .step = outcome.step, .text = outcome.failure});
  const comm::Communicator& world = loop_.job.ranks.World();
  // Do not write again if another job has taken over the folder.
  AtRoot(world, [&] { loop_.session->HoldLock(false); });
  if (failures_ >= Options().max_failures) {
    throw AgreedError(
        ExitCode::kFailed,
        fmt::format("the checkpoint of step {} was not written, {}: {}", outcome.step,
                    failures_ == 1 ? "checkpoint.max_failures = 1"
                                   : fmt::format("the last of {} failures in a row", failures_),
                    outcome.failure));
  }
  loop_.monitor->Warn(
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

LocalCheckpoints::LocalCheckpoints(LoopParts& loop, checkpoint::LocalRun run,
                                   std::optional<std::int64_t> from, double& waited)
    : loop_(loop),
      run_(std::move(run)),
      waited_(waited),
      writer_({loop.job.ranks.World(), loop.job.ranks.Hosts()}, loop.state.CheckpointState(), run_,
              from),
      last_time_(Seconds()) {
  const std::string state_bytes = report::AsBytes(writer_.Bytes());
  if (writer_.Hosts() == 1) {
    loop_.monitor->Line(
        fmt::format("local   {} in {}; there is one host alone: no partner keeps a copy",
                    state_bytes, run_.folder));
  } else {
    loop_.monitor->Line(fmt::format("local   {} on {} hosts in {}, {} of it copied to partners",
                                    state_bytes, writer_.Hosts(), run_.folder,
                                    report::AsBytes(writer_.CopiedBytes())));
  }
  if (writer_.LackOfRoom().empty()) return;
  loop_.monitor->Warn(
      fmt::format("checkpoint.local: {}\n  Make room there or name another folder: a checkpoint "
                  "that does not fit goes to the run folder.",
                  writer_.LackOfRoom()));
}

bool LocalCheckpoints::TimeHasCome() const {
  const checkpoint::Options& options = Options();
  if (!options.automatic) return Passed(last_time_, options.every_minutes);
  const double guess =
      static_cast<double>(writer_.Bytes()) / writer_.Hosts() / kGuessedNodeBytesPerSecond;
  const double cost = std::max(checkpoint::kLeastCost, written_ > 0 ? longest_ : guess);
  return Seconds() - last_time_ >=
         checkpoint::YoungDaly(cost, options.mtbf_hours * kSecondsPerHour);
}

bool LocalCheckpoints::Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run) {
  const device::Scope scope = Traced(loop_);
  last_time_ = Seconds();
  // First put the steps' records on the disk: the node that writes them may be lost.
  loop_.monitor->SyncRecords();
  loop_.job.ranks.World().Broadcast(&sequence, sizeof sequence);
  const checkpoint::LocalOutcome outcome = writer_.Write(step, sequence, run);
  const double seconds = Seconds() - last_time_;
  waited_ += seconds;
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
    loop_.monitor->Happened(
        {.name = "local checkpoint failed", .step = step, .text = outcome.failure});
    if (!failing_) {
      loop_.monitor->Warn(fmt::format(
          "the local checkpoint of step {} was not written: {}\n  Until one is, all go to the run "
          "folder.",
          step, outcome.failure));
    }
  } else {
    loop_.monitor->Happened({.name = "local checkpoint",
                             .step = step,
                             .text = fmt::format("{} in {:.3f} s, {} of it copied to partners",
                                                 report::AsBytes(outcome.bytes), outcome.seconds,
                                                 report::AsBytes(outcome.copied)),
                             .numbers = {{"bytes", static_cast<double>(outcome.bytes)},
                                         {"bytes_copied", static_cast<double>(outcome.copied)},
                                         {"seconds", outcome.seconds}}});
    if (failing_) loop_.monitor->Line("local checkpoints are written again");
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

void BestLoss::Take(const app::RunRecord& record) {
  const bool another = record.decider && !app::SameSet(*record.decider, decider_);
  best_ = kept_ = another ? kNone : record.best_loss.value_or(kNone);
  if (another) {
    // A validation that is due after this step is the first one that counts.
    decider_.since = record.step - (record.validation_due ? 1 : 0);
  } else {
    decider_.since = record.decider ? record.decider->since : 0;
  }
  is_new_ = false;
}

void BestLoss::Note(double loss) {
  if (!(loss < best_)) return;
  best_ = loss;
  is_new_ = true;
}

void BestLoss::Begin(bool as_best) {
  if (as_best) under_way_ = best_;
  is_new_ = false;
}

// If the new best checkpoint was not written, the one before it stays the best, unless a validation
// has found a better state meanwhile.
void BestLoss::Written(bool written) {
  if (written) {
    kept_ = under_way_;
  } else if (best_ == under_way_) {
    best_ = kept_;
  }
}

void BestLoss::AddTo(nlohmann::json& run) const {
  run["validation"] = app::DeciderJson(decider_);
  if (std::isfinite(best_)) run["best_loss"] = best_;
}

CheckpointPolicy::CheckpointPolicy(LoopParts& loop, const BestLoss& best, MakeRun run,
                                   Written written)
    : loop_(loop), run_(std::move(run)), written_(std::move(written)), best_(best) {
  checkpoint::State whole = loop.state.CheckpointState();
  std::int64_t sequence = 0;  // on rank 0, which numbers the checkpoints
  if (!Options().local.empty()) {
    AtRoot(loop.job.ranks.World(),
           [&] { sequence = checkpoint::LastSequence(loop.session->Folder() + "/checkpoints"); });
  }
  if (Options().async && loop.state.Stream().OnGpu()) CheckCopyMemory(whole);
  checkpoints_ = std::make_unique<Checkpoints>(loop, sequence, waited_, std::move(whole));
  MakeLocal();
}

// On GPUs the memory plan covers the cards; the copies lie in host memory, which is checked here.
void CheckpointPolicy::CheckCopyMemory(const checkpoint::State& state) const {
  const std::int64_t needed = loop_.job.ranks.Node().Sum(checkpoint::CopyBytes(state.model) +
                                                         checkpoint::CopyBytes(state.optimizer));
  loop_.job.ranks.World().Together([&] {
    const comm::Available available = comm::AvailableMemory();
    if (needed <= available.bytes) return;
    throw InputError(
        fmt::format("memory: copies for checkpoint.async take {} of this node, but {} "
                    "are {}",
                    report::AsBytes(needed), report::AsBytes(available.bytes), available.source),
        "Use more nodes, or checkpoint.async = no.");
  });
}

// A continued run keeps its name for local checkpoints; a branch gets a new one.
void CheckpointPolicy::MakeLocal() {
  if (Options().local.empty()) return;
  const comm::Communicator& world = loop_.job.ranks.World();
  const RunSession& session = *loop_.session;
  checkpoint::LocalRun run{.folder = Options().local, .id = {}, .session = {}};
  if (session.Continues() && session.Resumes()) {
    run.id = deck::TextOf(session.Record().json, app::kRunName);
  }
  run_folder_has_one_ = !run.id.empty();
  if (run.id.empty()) run.id = FromRoot(world, checkpoint::NewLocalName);
  run.session = FromRoot(world, checkpoint::NewLocalName);
  std::optional<std::int64_t> from;
  if (session.Continues() && session.StartsFromLocal()) from = loop_.progress.step;
  local_ = std::make_unique<LocalCheckpoints>(loop_, run, from, waited_);
}

bool CheckpointPolicy::TimeHasCome() const {
  return local_ != nullptr ? local_->TimeHasCome() : checkpoints_->TimeHasCome();
}

std::optional<CheckpointPolicy::Reason> CheckpointPolicy::Due() const {
  const Progress& progress = loop_.progress;
  const bool best = best_.IsNew() && Options().best;
  const bool due =
      local_ != nullptr ? local_->DueAfter(progress.step) : checkpoints_->DueAfter(progress.step);
  const bool regular = due || progress.checkpoint_now || best;
  if (!regular && !progress.Ends()) return std::nullopt;
  return Reason{.best = best, .stop_only = !regular};
}

void CheckpointPolicy::Write(const Reason& reason) {
  loop_.monitor->FlushRecords();
  loop_.state.FinishUpdate();
  Reason of_folder = reason;
  if (local_ != nullptr) {
    const Drain drain = WriteLocal(reason);
    if (drain == Drain::kNone) return;
    of_folder.stop_only = drain == Drain::kIrregular;
  }
  WriteRunFolder(of_folder);
}

// Collective. Writes a local checkpoint. Returns whether the run folder gets one as well: kNone,
// kRegular, or kIrregular (only because of a failure or a stop). The local one records that a
// regular one is due; a session that continues from it writes it if this session cannot.
CheckpointPolicy::Drain CheckpointPolicy::WriteLocal(const Reason& reason) {
  const comm::Communicator& world = loop_.job.ranks.World();
  const Progress& progress = loop_.progress;
  // A continued run must decide alike, so decisions may not depend on a write still under way.
  if (loop_.job.request.training.on_spike == train::OnSpike::kRollback) Note();
  if (checkpoints_->BestUnderWay()) Settle();
  std::int64_t time_has_come = progress.checkpoint_now && checkpoints_->TimeHasCome() ? 1 : 0;
  if (progress.checkpoint_now) world.Broadcast(&time_has_come, sizeof time_has_come);
  run_folder_has_one_ = run_folder_has_one_ || checkpoints_->Written();
  const bool first = !run_folder_has_one_ && !checkpoints_->UnderWay();
  const bool regular =
      !reason.stop_only &&
      (reason.best || first || checkpoints_->DueAfter(progress.step) || time_has_come == 1);
  nlohmann::json run = run_(true);
  if (regular) {
    nlohmann::json& due = run[kDue];
    due["best"] = reason.best;
    if (reason.best && std::isfinite(best_.Kept())) due[kKept] = best_.Kept();
  }
  const bool whole = local_->Write(progress.step, checkpoints_->Sequence(), run);
  if (regular) return Drain::kRegular;
  return whole && !progress.Ends() ? Drain::kNone : Drain::kIrregular;
}

void CheckpointPolicy::WriteRunFolder(const Reason& reason) {
  // The outcome of the previous checkpoint decides what this one records about the best.
  Settle();
  best_.Begin(reason.best);
  if (reason.stop_only) Note();
  const nlohmann::json run = run_(reason.stop_only);
  if (loop_.progress.Ends()) {
    checkpoints_->WriteLast(loop_.progress.step, run, reason);
  } else {
    checkpoints_->Write(loop_.progress.step, run, reason);
  }
  NoteBest();
}

bool CheckpointPolicy::CompleteRunFolder() {
  const RunSession& session = *loop_.session;
  if (local_ == nullptr || !session.Continues() || !session.StartsFromLocal()) return false;
  const nlohmann::json due = session.Record().json.value(kDue, nlohmann::json());
  if (!due.is_object()) return false;
  const bool best = due.value("best", false);
  if (best) best_.SetKept(due.value(kKept, std::numeric_limits<double>::infinity()));
  loop_.progress.watch(comm::Phase::kCheckpoint);
  WriteRunFolder({.best = best, .stop_only = false});
  return true;
}

// Also sets the watchdog's bound for checkpoints; it stays for the write or read that follows.
void CheckpointPolicy::Settle() {
  loop_.progress.watch(comm::Phase::kCheckpoint);
  checkpoints_->Settle();
  NoteBest();
}

// Settles first: whether a regular checkpoint is the last is known only once it is written.
void CheckpointPolicy::Note() {
  Settle();
  if (checkpoints_->LastRegular()) written_(*checkpoints_->LastRegular());
}

void CheckpointPolicy::ReturnTo(const app::RunRecord& record) {
  if (local_ != nullptr) local_->Forget(record.step);
  best_.Take(record);
  loop_.progress.checkpoint_now = false;
}

void CheckpointPolicy::AddTo(nlohmann::json& run) const {
  if (local_ != nullptr) {
    run[app::kRunName] = local_->Run().id;
    run[app::kSessionName] = local_->Run().session;
  }
  best_.AddTo(run);
}

std::vector<std::string> CheckpointPolicy::Summary() const {
  return {checkpoints_->Summary(), local_ != nullptr ? local_->Summary() : ""};
}

}  // namespace trireme::tasks
