// Recovery: answers of a training to steps that go wrong: bad steps, spikes of the loss, replicas
// that differ; and the way back to a checkpoint.
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
  // All must outlive it.
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
    // Collective. Called when the state is that of a checkpoint of an earlier step, before the
    // steps go on from there.
    std::function<void(const app::RunRecord&)> returning;
  };
  // Collective.
  Recovery(const Setup& setup, const Safeguards& safeguards);

  // A step whose update was left out: counted and told, or AgreedError (exit code 1) if it is one
  // too many in a row. The step counts as done: its samples are used up, and the learning rate goes
  // on.
  void AnswerFault(const train::Fault& fault);
  // Collective, after each step. True: the run is back at a checkpoint, after a spike of the loss
  // or because replicas differ.
  bool GoesBack(const train::StepResult& result);
  // Collective. Compares copies of the state, all of them unless that was done at this step. True:
  // they differed, and the run is back at a checkpoint. Throws AgreedError if it cannot be.
  bool ReplicasDiffer() { return Compare(true); }

  void HaveWritten(std::int64_t step) { safeguards_.HaveWritten(step); }  // a regular checkpoint
  std::int64_t BadSteps() const { return safeguards_.BadSteps(); }        // of the run so far
  bool HasGoneBack() const { return safeguards_.HasGoneBack(); }
  nlohmann::json Json(bool stop_only) const;  // for run.json
  std::vector<std::string> Summary() const;   // lines, which may be empty

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
  // The windows of this session's steps, from its beginning on.
  const data::Sampler::Options& Windows() const { return setup_.state.Plan().options.samples; }

  const Setup setup_;
  Safeguards safeguards_;
  train::ReplicaCheck replicas_;
  std::int64_t compared_at_ = -1;  // step at which all replicas were compared last
  std::int64_t comparisons_ = 0;   // in this session
  double comparison_seconds_ = 0;  // sum of these
  std::set<int> corrupted_;        // ranks whose copies have differed
};

}  // namespace trireme::tasks
