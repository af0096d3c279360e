// TrainingLoop: checkpoints on the nodes' own storage.
#include <fmt/format.h>

#include <cmath>

#include "checkpoints.hpp"
#include "local_checkpoints.hpp"
#include "safeguards.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/tasks/training_loop.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tasks {

namespace {
// Of a local checkpoint's run.json alone: the run folder gets a regular one of this step.
constexpr const char* kDue = "run_folder_due";
constexpr const char* kKept = "kept_best_loss";  // of the best one that it is to replace
}  // namespace

// A run keeps its name; a branch gets one of its own.
void TrainingLoop::MakeLocal() {
  const std::string& folder = job_.options.checkpoint.local;
  if (folder.empty()) return;
  const comm::Communicator& world = job_.World();
  checkpoint::LocalRun run{.folder = folder, .id = {}, .session = {}};
  if (continues_ && Resumes()) run.id = deck::TextOf(job_.start.record->json, app::kRunName);
  run_folder_has_one_ = !run.id.empty();
  world.Together([&] {
    if (!world.IsRoot()) return;
    if (run.id.empty()) run.id = checkpoint::NewLocalName();
    run.session = checkpoint::NewLocalName();
  });
  run.id = world.Broadcast(run.id);
  run.session = world.Broadcast(run.session);
  std::optional<std::int64_t> from;
  if (continues_ && job_.start.local != nullptr) from = step_;
  local_ =
      std::make_unique<LocalCheckpoints>(LocalCheckpoints::Setup{.runtime = *job_.runtime,
                                                                 .options = job_.options.checkpoint,
                                                                 .monitor = *monitor_,
                                                                 .traffic = grid_.Traffic(),
                                                                 .run = run,
                                                                 .from = from},
                                         state_.CheckpointState());
}

// The state of the local checkpoint that the job starts from.
void TrainingLoop::ResumeLocal() {
  CheckCanonical();
  ResumeProducts();
  try {
    state_.Load([this](const char* file, const std::vector<kernels::StateBlock>& blocks) {
      bytes_from_afar_ +=
          job_.start.local->Read({job_.World(), job_.runtime->Hosts()}, file, blocks);
      app::StopIfAsked(job_);
    });
  } catch (const checkpoint::DamagedError& error) {
    const std::string layout =
        app::LayoutChange(*job_.start.record, {{"ranks", job_.World().Size()},
                                               {"grid", comm::Describe(grid_.Shape())},
                                               {"sharding", comm::NameOf(grid_.Shards())}});
    throw checkpoint::DamagedError(
        error.Code(), layout.empty() ? error.what() : fmt::format("{} ({})", error.what(), layout));
  }
}

std::string TrainingLoop::DescribeStart() const {
  if (job_.start.local == nullptr) return checkpoint_;
  return fmt::format("the local checkpoint on the hosts, {} of it from other hosts,",
                     report::AsBytes(bytes_from_afar_));
}

// Collective. Writes one to the nodes. Returns how the run folder is to have one as well: not at
// all, for a regular reason, or because of a failure or a stop alone. A regular one is told of in
// the local one: a session that continues from that writes what this one could not.
TrainingLoop::Drain TrainingLoop::WriteLocal(bool best, bool stop_only) {
  const comm::Communicator& world = job_.World();
  // Decisions of a continued run must not depend on the outcome of what is under way.
  const bool back = job_.options.training.on_spike == train::OnSpike::kRollback;
  if (back) NoteCheckpoint();
  if (checkpoints_->BestUnderWay()) SettleCheckpoints();
  std::int64_t time_has_come = checkpoint_now_ && checkpoints_->TimeHasCome() ? 1 : 0;
  if (checkpoint_now_) world.Broadcast(&time_has_come, sizeof time_has_come);
  run_folder_has_one_ = run_folder_has_one_ || checkpoints_->Written();
  const bool first = !run_folder_has_one_ && !checkpoints_->UnderWay();
  const bool regular =
      !stop_only && (best || first || checkpoints_->DueAfter(step_) || time_has_come == 1);
  nlohmann::json run = RunJson();
  run["safeguards"] = safeguards_->Json(true);
  run["date"] = app::DateNow(world);
  if (regular) {
    nlohmann::json& due = run[kDue];
    due["best"] = best;
    if (best && std::isfinite(kept_best_loss_)) due[kKept] = kept_best_loss_;
  }
  const bool whole = local_->Write(step_, checkpoints_->Sequence(), run);
  checkpoint_seconds_ += local_->TakeSeconds();
  if (regular) return Drain::kRegular;
  return whole && !Finished() && !stop_ ? Drain::kNone : Drain::kIrregular;
}

// Collective. The regular checkpoint that the run folder was to have with the local one that the
// session began with, and has not: the job died in between. False: there is none.
bool TrainingLoop::CompleteRunFolder() {
  if (local_ == nullptr || !continues_ || job_.start.local == nullptr) return false;
  const nlohmann::json due = job_.start.record->json.value(kDue, nlohmann::json());
  if (!due.is_object()) return false;
  const bool best = due.value("best", false);
  if (best) {
    kept_best_loss_ = due.value(kKept, std::numeric_limits<double>::infinity());
  }
  Watch(comm::Phase::kCheckpoint, step_);
  WriteRunFolder(best, false);
  return true;
}

}  // namespace trireme::tasks
