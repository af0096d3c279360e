// TrainingLoop: answers to steps that go wrong: bad ones, and spikes of the loss.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "checkpoints.hpp"
#include "safeguards.hpp"
#include "timeline.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/tasks/training_loop.hpp"

namespace trireme::tasks {

// TrainingLoop: checkpoints on the nodes' own storage.

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

// TrainingLoop: the comparison of what ranks hold alike, and the answer if copies differ.

namespace {

// On a GPU the state comes through the host: a due comparison takes one part of so many in turn,
// and one before a checkpoint, which reads all of it as well, takes all.
constexpr std::int64_t kPartsOnGpu = 8;

// Serial. Complete checkpoints below a folder, those written last first; none if it cannot be read.
std::vector<std::string> Candidates(const std::string& folder) {
  try {
    return checkpoint::Locate(folder).candidates;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

// whole: everything is compared, unless that was done at this step.
bool TrainingLoop::ReplicasDiffer(bool whole) {
  const std::int64_t every = job_.options.checkpoint.check_replicas_every;
  if (every == 0 || !replicas_->Active() || compared_at_ == step_) return false;
  const std::int64_t parts = whole || !job_.stream.OnGpu() ? 1 : kPartsOnGpu;
  const comm::Ledger steps_alone = grid_.Traffic();
  const double start = Seconds();
  const std::vector<train::Corruption> found = replicas_->Look(step_ / every % parts, parts);
  comparison_seconds_ += Seconds() - start;
  ++comparisons_;
  grid_.Traffic() = steps_alone;
  if (found.empty()) {
    if (parts == 1) compared_at_ = step_;
    return false;
  }
  AnswerCorruption(found);
  return true;
}

// Returns with the state of a checkpoint, or throws: AgreedError (exit code 1).
void TrainingLoop::AnswerCorruption(const std::vector<train::Corruption>& found) {
  const comm::Hosts& hosts = job_.runtime->Hosts();
  const std::string text = Describe(found.front(), hosts);
  const int named = found.front().wrong.front();
  monitor_->Happened({.name = "corruption",
                      .step = step_,
                      .rank = named,
                      .host = hosts.Of(named),
                      .text = text,
                      .numbers = {{"ranks", static_cast<double>(found.front().wrong.size())},
                                  {"copies", static_cast<double>(found.front().holders.size())}}});
  std::set<int> wrong;  // ranks, in whatever tensors
  for (const train::Corruption& one : found) wrong.insert(one.wrong.begin(), one.wrong.end());
  const bool again =
      std::ranges::any_of(wrong, [this](int rank) { return corrupted_.contains(rank); });
  corrupted_.insert(wrong.begin(), wrong.end());
  SettleCheckpoints();  // of a state that was compared before it was written
  const std::vector<std::string> usable = CheckpointsToRestore();
  const std::int64_t at = step_;
  const bool restore =
      job_.options.checkpoint.on_corruption == checkpoint::OnCorruption::kRestore && !again;
  if (restore &&
      std::ranges::any_of(usable, [this](const auto& one) { return RestoreCheckpoint(one); })) {
    monitor_->Warn(fmt::format("step {}: {}: back to the checkpoint of step {}",
                               report::WithThousands(at), text, report::WithThousands(step_)));
    SayEvent("restore", fmt::format("back from step {} to the checkpoint of step {}", at, step_));
    return;
  }
  throw AgreedError(
      ExitCode::kFailed,
      fmt::format("step {}: {}{}", at, text,
                  again ? ", and a rank is named for the second time in this job" : ""),
      usable.empty()
          ? "Nothing was written, and there is no checkpoint of this session. Start again, without "
            "that host if it is named again."
          : fmt::format("Nothing more was written. The last checkpoint, compared before it was "
                        "written, is {}. Continue from it with -r, without that host if it is "
                        "named again.",
                        usable.front()));
}

// Checkpoints of this session's steps, and the one that it continued; the newest first. Earlier
// ones may have other windows.
std::vector<std::string> TrainingLoop::CheckpointsToRestore() const {
  std::vector<std::string> paths;
  if (job_.World().IsRoot()) {
    for (const std::string& path : Candidates(folder_)) {
      try {
        if (checkpoint::ReadRun(path).value("step", std::int64_t{-1}) < first_step_) continue;
        paths.push_back(path);
      } catch (const Error&) {
        continue;  // damaged
      }
    }
    if (Resumes() && std::ranges::find(paths, checkpoint_) == paths.end()) {
      paths.push_back(checkpoint_);
    }
  }
  std::istringstream lines(job_.World().Broadcast(fmt::format("{}", fmt::join(paths, "\n"))));
  std::vector<std::string> all;
  for (std::string path; std::getline(lines, path);) all.push_back(path);
  return all;
}

// Goes back to a checkpoint of this run: weights, moments and position are those of its step. False
// if it is damaged; the state is then neither.
bool TrainingLoop::RestoreCheckpoint(const std::string& checkpoint) {
  try {
    const app::RunRecord record = LoadCheckpoint(checkpoint);
    // Older than the local one that the session began with, it may be of other windows.
    const data::Sampler::Options& now = plan_.training.samples;
    const bool windows = record.length.value_or(now.length) == now.length &&
                         record.stride.value_or(now.stride) == now.stride &&
                         record.batch.value_or(now.batch) == now.batch;
    if (record.step < first_step_ && !windows) return false;
    job_.World().Together([&] { safeguards_->Restore(record); });
    // The checkpoint that the session continued may have other windows than its steps.
    const bool first = record.step == first_step_ || !record.origin;
    ReturnTo(record, first ? plan_.training.samples.origin : *record.origin);
    return true;
  } catch (const checkpoint::DamagedError&) {
    return false;
  }
}

std::string TrainingLoop::ReplicaSummary() const {
  if (comparisons_ == 0) return {};
  return fmt::format("replicas compared {}, in {:.1f} ms each",
                     report::Counted(comparisons_, "time"),
                     1e3 * comparison_seconds_ / static_cast<double>(comparisons_));
}

void TrainingLoop::CheckpointIfDue() {
  const bool best = best_is_new_ && job_.options.checkpoint.best;
  const bool last = Finished() || stop_;
  const bool due = local_ != nullptr ? local_->DueAfter(step_) : checkpoints_->DueAfter(step_);
  const bool regular = due || checkpoint_now_ || best;
  if (!regular && !last) return;
  Watch(comm::Phase::kCheckpoint, step_);  // all of the state is compared
  if (!ReplicasDiffer(true)) {
    WriteCheckpoint(best, !regular);
  } else if (stop_) {  // of what was restored
    WriteCheckpoint(false, true);
  }
}

namespace {

std::string Describe(const train::Spike& spike, std::int64_t step) {
  return fmt::format(
      "step {}: the loss is {:.4f}, {:.1f} standard deviations of {:.4f} above the mean of {:.4f}",
      report::WithThousands(step), spike.loss, spike.score, spike.deviation, spike.mean);
}

std::vector<std::pair<std::string, double>> Numbers(const train::Spike& spike) {
  return {{"loss", spike.loss},
          {"score", spike.score},
          {"mean", spike.mean},
          {"deviation", spike.deviation}};
}

// A checkpoint of the folder that was written after `step`; empty: there is none. Serial.
std::string FindIn(const std::string& folder, std::int64_t step) {
  try {
    for (const std::string& candidate : checkpoint::Locate(folder).candidates) {
      if (checkpoint::ReadRun(candidate).value("step", std::int64_t{-1}) == step) return candidate;
    }
  } catch (const Error&) {
    return {};  // no such folder, or files that are damaged
  }
  return {};
}

}  // namespace

// The step counts as done: its samples are used up, and the learning rate goes on.
void TrainingLoop::AnswerFault(const train::Fault& fault) {
  const bool too_many = safeguards_->TakeBadStep();
  const std::string& host = job_.runtime->Hosts().Of(fault.rank);
  const std::string text = fault.Text(host);
  monitor_->Happened(
      {.name = "bad step",
       .step = step_,
       .rank = fault.rank,
       .host = host,
       .text = text,
       .numbers = {{"in_a_row", static_cast<double>(safeguards_->BadStepsInARow())}}});
  if (!too_many) {
    monitor_->Warn(fmt::format("step {}: {}: its update is left out, {} of at most {} in a row",
                               report::WithThousands(step_), text, safeguards_->BadStepsInARow(),
                               safeguards_->MaxBadSteps()));
    return;
  }
  const std::string row = fmt::format("; bad step {} in a row, with run.max_bad_steps = {}",
                                      safeguards_->BadStepsInARow(), safeguards_->MaxBadSteps());
  throw AgreedError(
      ExitCode::kFailed,
      fmt::format("step {}: {}{}", step_, text, safeguards_->MaxBadSteps() > 0 ? row : ""),
      fault.Advice());
}

bool TrainingLoop::AnswerSpike(double loss) {
  const std::optional<train::Spike> spike = safeguards_->TakeLoss(loss);
  if (!spike) return false;
  const std::int64_t at = step_;
  const std::string text = Describe(*spike, at);
  if (job_.options.training.on_spike == train::OnSpike::kRollback) NoteCheckpoint();
  std::string why_not = safeguards_->WhyNot(), checkpoint;
  if (why_not.empty()) {
    checkpoint = CheckpointToGoBackTo();
    if (checkpoint.empty()) {
      why_not = fmt::format("the checkpoint of step {} is not there any more",
                            report::WithThousands(*safeguards_->GoesBackTo()));
    }
  }
  monitor_->Warn(text);
  if (!checkpoint.empty()) GoBack(checkpoint);
  // Records of the steps gone back over are cut; these two stay.
  monitor_->Happened({.name = "spike",
                      .step = at,
                      .text = why_not.empty() ? text : text + "; not gone back: " + why_not,
                      .numbers = Numbers(*spike)});
  if (checkpoint.empty()) return false;
  const std::string back =
      fmt::format("back from step {} to {} of step {}, and on from there with sample {}",
                  report::WithThousands(at), checkpoint, report::WithThousands(step_),
                  report::WithThousands(order_.NextSample(step_)));
  monitor_->Line(back);
  monitor_->Happened({.name = "rollback",
                      .step = step_,
                      .text = back,
                      .numbers = {{"from_step", static_cast<double>(at)},
                                  {"next_sample", static_cast<double>(order_.NextSample(step_))}}});
  return true;
}

// A checkpoint's time for this and for what follows, which writes or reads one.
void TrainingLoop::SettleCheckpoints() {
  Watch(comm::Phase::kCheckpoint, step_);
  checkpoints_->Settle();
  AccountForCheckpoints();
}

// The last checkpoint is known for certain only once it is written.
void TrainingLoop::NoteCheckpoint() {
  SettleCheckpoints();
  if (checkpoints_->LastRegular()) safeguards_->HaveWritten(*checkpoints_->LastRegular());
}

// Rank 0. In this run's folder, or in the one that this run branched off from; if it was removed,
// the checkpoint that this session continued. Empty: none of these.
std::string TrainingLoop::FindCheckpoint(std::int64_t step) const {
  if (std::string found = FindIn(folder_, step); !found.empty()) return found;
  if (!Resumes()) return {};
  const std::string beside = std::filesystem::path(checkpoint_).parent_path().string();
  if (std::string found = FindIn(beside, step); !found.empty()) return found;
  return FindIn(checkpoint_, job_.start.record->step);
}

std::string TrainingLoop::CheckpointToGoBackTo() {
  std::string found;
  job_.World().Together([&] {
    if (job_.World().IsRoot()) found = FindCheckpoint(*safeguards_->GoesBackTo());
  });
  return job_.World().Broadcast(found);
}

app::RunRecord TrainingLoop::LoadCheckpoint(const std::string& checkpoint) {
  Watch(comm::Phase::kCheckpoint, step_);
  const comm::Communicator& world = job_.World();
  const comm::Ledger steps_alone = grid_.Traffic();
  const nlohmann::json run = checkpoint::ReadRun(world, checkpoint);
  app::RunRecord record;
  world.Together([&] { record = app::ParseRunRecord(run, checkpoint + "/run.json"); });
  state_.Load(checkpoint);
  grid_.Traffic() = steps_alone;
  return record;
}

void TrainingLoop::ReturnTo(const app::RunRecord& record, const data::Origin& origin) {
  if (local_ != nullptr) local_->Forget(record.step);
  timeline_->Interrupt();
  if (job_.libraries != nullptr) job_.libraries->SetScales(job_.stream, record.fp8_scales);
  training_step_.Move(origin);
  step_ = record.step;
  compared_at_ = -1;
  TakeBest(record);
  best_is_new_ = validation_due_ = checkpoint_now_ = false;
  monitor_->GoBack(step_, decider_.since);
}

void TrainingLoop::GoBack(const std::string& checkpoint) {
  const std::int64_t next_sample = order_.NextSample(step_);
  const std::vector<data::SourcePlace> reached = training_step_.Samples().Places(step_);
  try {
    const app::RunRecord record = LoadCheckpoint(checkpoint);
    job_.World().Together([&] { safeguards_->GoBack(record, next_sample); });
    ReturnTo(record, OriginAfterGoingBack(record, reached, next_sample));
  } catch (const checkpoint::DamagedError& damage) {
    throw AgreedError(ExitCode::kFailed, damage.what(),
                      "It was to be gone back to after a spike of the loss. -r goes on from the "
                      "checkpoint before it.");
  }
}

}  // namespace trireme::tasks
