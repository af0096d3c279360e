// RunSession: the run folder of a training, its lock, the checkpoint that a session starts from,
// and the count of starts.
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
  // Collective. Finds the folder of the results. -r continues in the checkpoint's own run folder;
  // another job.output given by the user begins a branch there. Changes nothing on disk. All must
  // outlive it.
  RunSession(const app::Request& request, const app::Ranks& ranks, app::Start& start);

  const std::string& Folder() const { return folder_; }          // of the run
  const std::string& Checkpoint() const { return checkpoint_; }  // to start from; empty: none
  bool Continues() const { return continues_; }  // in the checkpoint's own run folder
  // From a checkpoint, with all that it holds; not with its weights alone.
  bool Resumes() const { return start_.record && !start_.weights_alone; }
  const app::RunRecord& Record() const { return *start_.record; }  // of that checkpoint
  const app::Start& Start() const { return start_; }
  bool StartsFromLocal() const { return start_.local != nullptr; }

  // Collective. Whether the run has its last step and record already; says so.
  bool HasEnded(const Progress& progress) const;
  void CheckFolder() const;  // collective: AgreedError if Lock would refuse the folder
  // Collective. From here on no other job writes into the folder.
  void Lock();
  // Collective. Reads the state, or the weights alone, of what the session starts from.
  void Load(const app::Device& device, const data::TokenFile& tokens, const std::string& canonical,
            train::TrainingState& state);
  // Collective, with the lock. Counts the start and prepares the folder; the session begins after
  // `step`.
  void Begin(std::int64_t step);
  // From here on the watchdog writes what hangs into the folder: it is this job's.
  void RecordHangs(comm::Watchdog& watch) const;
  // Rank 0, on others without effect. Throws if the lock is lost; if `certain`, also if it cannot
  // be read just now.
  void HoldLock(bool certain) const;

  // Holder of the lock that was replaced, in a sentence; empty: none, and on other ranks.
  std::string TakenFrom() const { return lock_ == nullptr ? "" : lock_->TakenFrom(); }
  int StartsHere() const { return starts_here_; }  // in a row at this step; on rank 0
  std::string DescribeStart() const;

 private:
  void TakeLock();
  void CheckCanonical(const std::string& now) const;
  void LoadLocal(train::TrainingState& state);
  void SetDamagedAside();
  void CountStart(std::int64_t step);

  const app::Request& request_;
  const app::Ranks& ranks_;
  const comm::Communicator& world_;
  app::Start& start_;
  std::string folder_, checkpoint_;
  bool continues_ = false;
  std::unique_ptr<app::RunLock> lock_;  // on rank 0
  int starts_here_ = 1;
  std::int64_t bytes_from_afar_ = 0;  // of the local checkpoint that the session began with
};

}  // namespace trireme::tasks
