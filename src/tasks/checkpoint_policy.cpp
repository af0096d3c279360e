// CheckpointPolicy: decides when Checkpoints and LocalCheckpoints write.
#include "checkpoint_policy.hpp"

#include <fmt/format.h>
#include <cmath>

#include "root.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tasks {

namespace {
// Members of a local checkpoint's run.json. kDue: the run folder is due a checkpoint of this step.
constexpr const char* kDue = "run_folder_due";
constexpr const char* kKept = "kept_best_loss";  // loss of the best one that it replaces
}  // namespace

void BestLoss::Take(const app::RunRecord& record) {
  const bool another = record.decider && !app::SameSet(*record.decider, decider_);
  best_ = kept_ = another ? kNone : record.best_loss.value_or(kNone);
  if (another) {
    decider_.since = record.step - (record.validation_due ? 1 : 0);  // with the one due, if any
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

CheckpointPolicy::CheckpointPolicy(const Setup& setup, const BestLoss& best)
    : setup_(setup), best_(best) {
  const comm::Communicator& world = setup_.runtime.World();
  const std::string& folder = setup_.session.Folder();
  checkpoint::State whole = setup_.state.CheckpointState();
  const bool asks = world.IsRoot() && !setup_.options.local.empty();
  const std::int64_t sequence = asks ? checkpoint::LastSequence(folder + "/checkpoints") : 0;
  if (setup_.options.async && setup_.state.Stream().OnGpu()) CheckCopyMemory(whole);
  const RunSession* const session = &setup_.session;
  checkpoints_ = std::make_unique<Checkpoints>(
      Checkpoints::Setup{.runtime = setup_.runtime,
                         .options = setup_.options,
                         .monitor = setup_.monitor,
                         .deadline = setup_.progress.deadline,
                         .folder = folder,
                         .sequence = sequence,
                         .cores = setup_.cores,
                         .traffic = setup_.state.Grid().Traffic(),
                         .may_publish = [session] { session->HoldLock(true); },
                         .may_go_on = [session] { session->HoldLock(false); },
                         .waited = waited_},
      std::move(whole));
  MakeLocal();
}

// On GPUs the memory plan covers the cards; the copies lie in host memory, which is checked here.
void CheckpointPolicy::CheckCopyMemory(const checkpoint::State& state) const {
  const std::int64_t needed = setup_.runtime.Node().Sum(checkpoint::CopyBytes(state.model) +
                                                        checkpoint::CopyBytes(state.optimizer));
  setup_.runtime.World().Together([&] {
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
  if (setup_.options.local.empty()) return;
  const comm::Communicator& world = setup_.runtime.World();
  const RunSession& session = setup_.session;
  checkpoint::LocalRun run{.folder = setup_.options.local, .id = {}, .session = {}};
  if (session.Continues() && session.Resumes()) {
    run.id = deck::TextOf(session.Record().json, app::kRunName);
  }
  run_folder_has_one_ = !run.id.empty();
  AtRoot(world, [&] {
    if (run.id.empty()) run.id = checkpoint::NewLocalName();
    run.session = checkpoint::NewLocalName();
  });
  run.id = world.Broadcast(run.id);
  run.session = world.Broadcast(run.session);
  std::optional<std::int64_t> from;
  if (session.Continues() && session.StartsFromLocal()) from = setup_.progress.step;
  local_ = std::make_unique<LocalCheckpoints>(
      LocalCheckpoints::Setup{.runtime = setup_.runtime,
                              .options = setup_.options,
                              .monitor = setup_.monitor,
                              .traffic = setup_.state.Grid().Traffic(),
                              .waited = waited_,
                              .run = run,
                              .from = from},
      setup_.state.CheckpointState());
}

bool CheckpointPolicy::TimeHasCome() const {
  return local_ != nullptr ? local_->TimeHasCome() : checkpoints_->TimeHasCome();
}

std::optional<CheckpointPolicy::Reason> CheckpointPolicy::Due() const {
  const Progress& progress = setup_.progress;
  const bool best = best_.IsNew() && setup_.options.best;
  const bool due =
      local_ != nullptr ? local_->DueAfter(progress.step) : checkpoints_->DueAfter(progress.step);
  const bool regular = due || progress.checkpoint_now || best;
  if (!regular && !progress.Ends()) return std::nullopt;
  return Reason{.best = best, .stop_only = !regular};
}

void CheckpointPolicy::Write(const Reason& reason) {
  setup_.monitor.FlushRecords();
  setup_.state.FinishUpdate();
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
  const comm::Communicator& world = setup_.runtime.World();
  const Progress& progress = setup_.progress;
  // A continued run must decide alike, so decisions may not depend on a write still under way.
  if (setup_.goes_back) Note();
  if (checkpoints_->BestUnderWay()) Settle();
  std::int64_t time_has_come = progress.checkpoint_now && checkpoints_->TimeHasCome() ? 1 : 0;
  if (progress.checkpoint_now) world.Broadcast(&time_has_come, sizeof time_has_come);
  run_folder_has_one_ = run_folder_has_one_ || checkpoints_->Written();
  const bool first = !run_folder_has_one_ && !checkpoints_->UnderWay();
  const bool regular =
      !reason.stop_only &&
      (reason.best || first || checkpoints_->DueAfter(progress.step) || time_has_come == 1);
  nlohmann::json run = setup_.run(true);
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
  const nlohmann::json run = setup_.run(reason.stop_only);
  if (setup_.progress.Ends()) {
    checkpoints_->WriteLast(setup_.progress.step, run, reason);
  } else {
    checkpoints_->Write(setup_.progress.step, run, reason);
  }
  NoteBest();
}

bool CheckpointPolicy::CompleteRunFolder() {
  const RunSession& session = setup_.session;
  if (local_ == nullptr || !session.Continues() || !session.StartsFromLocal()) return false;
  const nlohmann::json due = session.Record().json.value(kDue, nlohmann::json());
  if (!due.is_object()) return false;
  const bool best = due.value("best", false);
  if (best) best_.SetKept(due.value(kKept, std::numeric_limits<double>::infinity()));
  setup_.progress.watch(comm::Phase::kCheckpoint);
  WriteRunFolder({.best = best, .stop_only = false});
  return true;
}

// Sets the watchdog's bound for checkpoints, for this and for the write or read that follows.
void CheckpointPolicy::Settle() {
  setup_.progress.watch(comm::Phase::kCheckpoint);
  checkpoints_->Settle();
  NoteBest();
}

// Only once it is written is it certain which regular checkpoint is the last.
void CheckpointPolicy::Note() {
  Settle();
  if (checkpoints_->LastRegular()) setup_.written(*checkpoints_->LastRegular());
}

void CheckpointPolicy::ReturnTo(const app::RunRecord& record) {
  if (local_ != nullptr) local_->Forget(record.step);
  best_.Take(record);
  setup_.progress.checkpoint_now = false;
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
