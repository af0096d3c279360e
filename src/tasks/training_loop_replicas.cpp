// TrainingLoop: the comparison of what ranks hold alike, and the answer if copies differ.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "checkpoints.hpp"
#include "local_checkpoints.hpp"
#include "safeguards.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/tasks/training_loop.hpp"

namespace trireme::tasks {

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

}  // namespace trireme::tasks
