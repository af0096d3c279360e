// TrainingLoop: answers to steps that go wrong: bad ones, and spikes of the loss.
#include <fmt/format.h>

#include <filesystem>

#include "checkpoints.hpp"
#include "local_checkpoints.hpp"
#include "safeguards.hpp"
#include "timeline.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/tasks/training_loop.hpp"

namespace trireme::tasks {

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
