// RunSession: a training's run folder and lock, the checkpoint it starts from, the count of starts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "training.hpp"
#include "trireme/app/job.hpp"
#include "trireme/app/run_lock.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::tasks {

class RunSession {
 public:
  // Collective. Chooses the run folder: -r continues in the checkpoint's own folder; another
  // job.output given by the user begins a branch there. Writes nothing. `job` must outlive it.
  explicit RunSession(app::Job& job);

  const std::string& Folder() const { return folder_; }          // the run folder
  const std::string& Checkpoint() const { return checkpoint_; }  // to start from; empty: none
  bool Continues() const { return continues_; }  // true: uses the checkpoint's own run folder
  // Whether it starts from a checkpoint's whole state, not from its weights alone.
  bool Resumes() const { return start_.record && !start_.weights_alone; }
  const app::RunRecord& Record() const { return *start_.record; }  // the checkpoint's run.json
  bool StartsFromLocal() const { return start_.local != nullptr; }

  // Collective. Whether the last step is done and, except in a branch, recorded; if so, says that.
  bool HasEnded(const Progress& progress) const;
  // Collective. Refuses to go on with schedule.decay = wsd if the steps so far had other learning
  // rates than this run's length gives them: a decay begins on the plateau.
  void CheckRates(const train::Plan& plan) const;
  void CheckFolder() const;  // collective: AgreedError if Lock would refuse the folder
  // Collective. Locks the folder: from now on no other job writes into it.
  void Lock();
  // Collective. Reads the whole state, or the weights alone, from the checkpoint to start from.
  void Load(const app::Device& device, const data::TokenFile& tokens, const std::string& canonical,
            train::TrainingState& state);
  // Collective; needs the lock. Counts this start at `step`; prepares the folder for writing.
  void Begin(std::int64_t step);
  // Lets the watchdog write reports on hangs into the folder, which is this job's from now on.
  void RecordHangs(comm::Watchdog& watch) const;
  // On rank 0 only. Throws if the lock is lost; if `certain`, also if it cannot be read now.
  void HoldLock(bool certain) const;

  // Sentence on the previous holder whose lock was replaced; empty: none, or not on rank 0.
  std::string TakenFrom() const { return lock_ == nullptr ? "" : lock_->TakenFrom(); }
  int StartsHere() const { return starts_here_; }  // starts in a row at this step; on rank 0
  std::string DescribeStart() const;

 private:
  void TakeLock();
  void CheckCanonical(const std::string& now) const;
  void LoadLocal(train::TrainingState& state);
  void CountStart(std::int64_t step);

  const app::Request& request_;
  const app::Ranks& ranks_;
  const comm::Communicator& world_;
  app::Start& start_;
  std::string folder_, checkpoint_;
  bool continues_ = false;
  std::unique_ptr<app::RunLock> lock_;  // on rank 0
  int starts_here_ = 1;
  std::int64_t bytes_from_afar_ = 0;  // bytes of the local checkpoint that other nodes sent
};

}  // namespace trireme::tasks
