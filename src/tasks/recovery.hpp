// Recovery: answers to bad steps, loss spikes and differing replicas; the way back to a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "checkpoint_policy.hpp"
#include "run_session.hpp"
#include "safeguards.hpp"
#include "training.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/replica_check.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

class Recovery {
 public:
  // Everything referred to must outlive it.
  struct Setup {
    const comm::Runtime& runtime;
    const train::SafeguardOptions& options;
    const checkpoint::Options& checkpoint;
    const RunSession& session;
    const TrainingData& data;
    CheckpointPolicy& checkpoints;
    report::Monitor& monitor;
    Progress& progress;
    train::TrainingState& state;
    train::TrainingStep& step;
    // Collective. Called when an earlier step's checkpoint was loaded, before steps continue.
    std::function<void(const app::RunRecord&)> returning;
  };
  // Collective.
  Recovery(const Setup& setup, const Safeguards& safeguards);

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
  nlohmann::json Json(bool stop_only) const;  // for run.json
  std::vector<std::string> Summary() const;   // lines; may be empty

 private:
  bool AnswerSpike(double loss);
  bool Compare(bool whole);
  void AnswerCorruption(const std::vector<train::Corruption>& found);
  std::vector<std::string> CheckpointsToRestore() const;
  bool RestoreCheckpoint(const std::string& checkpoint);
  std::string FindCheckpoint(std::int64_t step) const;
  std::string CheckpointToGoBackTo() const;
  void GoBack(const std::string& checkpoint);
  app::RunRecord LoadCheckpoint(const std::string& checkpoint);
  data::Origin OriginAfterGoingBack(const app::RunRecord& record, std::int64_t next_sample) const;
  void ReturnTo(const app::RunRecord& record, const data::Origin& origin);
  // Windows of this session's steps from its beginning on.
  const data::Sampler::Options& Windows() const { return setup_.state.Plan().options.samples; }

  const Setup setup_;
  Safeguards safeguards_;
  train::ReplicaCheck replicas_;
  std::int64_t compared_at_ = -1;  // step of the last comparison of all replicas
  std::int64_t comparisons_ = 0;   // comparisons in this session
  double comparison_seconds_ = 0;  // total time of these
  std::set<int> corrupted_;        // ranks whose copies have ever differed
};

}  // namespace trireme::tasks
