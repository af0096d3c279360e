// Recovery: answers to bad steps, loss spikes and differing replicas; the way back to a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint_policy.hpp"
#include "training.hpp"
#include "trireme/app/run_record.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/options.hpp"
#include "trireme/train/replica_check.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

// A run's record of steps that went wrong, and which answers it allows. It is the same on every
// rank, because all decisions follow from agreed numbers.
class Safeguards {
 public:
  explicit Safeguards(const train::SafeguardOptions& options);

  // Counts a step with a fault. Returns whether it is one too many in a row.
  bool TakeBadStep();
  // Takes the loss of a good step; returns the spike if it is one.
  std::optional<train::Spike> TakeLoss(double loss);

  std::int64_t BadSteps() const { return bad_steps_; }           // in the run so far
  std::int64_t BadStepsInARow() const { return bad_in_a_row_; }  // up to the last step
  std::int64_t MaxBadSteps() const { return options_.max_bad_steps; }

  // Step of the checkpoint to go back to: the last one that an uninterrupted run would have, too,
  // so none that was written only because of a stop. nullopt: there is none yet.
  std::optional<std::int64_t> GoesBackTo() const { return goes_back_to_; }
  void HaveWritten(std::int64_t step);  // notes such a checkpoint; may be repeated
  // Why the run does not go back after a spike: "run.on_spike = report"; empty: it does.
  std::string WhyNot() const;
  // Goes back to a checkpoint: restores its record of losses and of bad steps in a row. The
  // following steps take the samples from `next_sample` on.
  void GoBack(const app::RunRecord& record, std::int64_t next_sample);

  // The object "safeguards" of run.json. stop_only: this checkpoint exists only because of a stop.
  nlohmann::json Json(bool stop_only) const;
  // Restores the record from a checkpoint. Throws InputError naming a faulty member.
  void Restore(const app::RunRecord& record);
  bool HasGoneBack() const { return rollbacks_ > 0; }
  // Summary: "2 bad steps without an update; 1 spike of the loss; ..."; empty: all went well.
  std::string Summary() const;

 private:
  // Samples skipped because the run went back to a step.
  struct Skipped {
    std::int64_t step = 0;  // steps completed at the checkpoint
    std::int64_t from = 0, to = 0;
  };
  void RestoreLosses(const app::RunRecord& record);

  const train::SafeguardOptions options_;
  train::LossWindow losses_;
  std::int64_t bad_in_a_row_ = 0;
  // Counts over the run so far, including steps that were later undone by going back.
  std::int64_t bad_steps_ = 0, spikes_ = 0, rollbacks_ = 0;
  std::optional<std::int64_t> goes_back_to_;
  std::int64_t rollbacks_to_it_ = 0;
  std::vector<Skipped> skipped_;
};

class Recovery {
 public:
  // Called when an earlier step's checkpoint was loaded, before steps continue. Collective.
  using Returning = std::function<void(const app::RunRecord&)>;
  // Collective. `loop` and `checkpoints` must outlive it.
  Recovery(LoopParts& loop, CheckpointPolicy& checkpoints, const Safeguards& safeguards,
           Returning returning);

  // Counts and reports a step whose update was skipped; AgreedError (exit code 1) if too many in a
  // row were. The step counts as done: its samples are used up and the schedule goes on.
  void AnswerFault(const train::Fault& fault);
  // Collective, after each step. True if the run went back to a checkpoint, after a spike of the
  // loss or because replicas differ.
  bool GoesBack(const train::StepResult& result);
  // Collective. Compares all copies of the state, unless that was done at this step. True if they
  // differed and the run went back to a checkpoint; throws AgreedError if it cannot.
  bool ReplicasDiffer() { return Compare(true); }

  void HaveWritten(std::int64_t step) { safeguards_.HaveWritten(step); }  // a regular checkpoint
  std::int64_t BadSteps() const { return safeguards_.BadSteps(); }        // in the run so far
  bool HasGoneBack() const { return safeguards_.HasGoneBack(); }
  nlohmann::json Json(bool stop_only) const { return safeguards_.Json(stop_only); }  // for run.json
  std::vector<std::string> Summary() const;  // lines; may be empty

 private:
  bool AnswerSpike(double loss);
  bool Compare(bool whole);
  void AnswerCorruption(const std::vector<train::Corruption>& found);
  std::vector<std::string> CheckpointsToRestore() const;
  bool RestoreCheckpoint(const std::string& checkpoint);
  std::string FindCheckpoint(std::int64_t step) const;
  void GoBack(const std::string& checkpoint);
  app::RunRecord LoadCheckpoint(const std::string& checkpoint);
  data::Origin OriginAfterGoingBack(const app::RunRecord& record, std::int64_t next_sample) const;
  void ReturnTo(const app::RunRecord& record, const data::Origin& origin);
  // How this session samples windows; their origin is the session's beginning.
  const data::Sampler::Options& Windows() const { return loop_.state.Plan().options.samples; }

  const checkpoint::Options& Options() const { return loop_.job.request.checkpoint; }
  const comm::Runtime& Runtime() const { return *loop_.job.ranks.runtime; }

  LoopParts& loop_;
  CheckpointPolicy& checkpoints_;
  const Returning returning_;
  Safeguards safeguards_;
  train::ReplicaCheck replicas_;
  std::int64_t compared_at_ = -1;  // step of the last comparison of the whole state
  std::int64_t comparisons_ = 0;   // comparisons in this session
  double comparison_seconds_ = 0;  // total time of these
  std::set<int> corrupted_;        // ranks whose copies have ever differed
};

}  // namespace trireme::tasks
