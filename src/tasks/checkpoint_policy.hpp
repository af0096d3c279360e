// CheckpointPolicy: when a training writes a checkpoint, to the run folder or to the nodes' own
// storage, and which one is the best.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoints.hpp"
#include "run_session.hpp"
#include "training.hpp"
#include "trireme/app/run_record.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

// The lowest validation loss of a run, and that of the checkpoint that is the best. Losses are in
// nats per token, infinity: none yet.
class BestLoss {
 public:
  explicit BestLoss(app::Decider decider) : decider_(std::move(decider)) {}

  // Goes on from a checkpoint. Losses of another deciding set are not comparable: none counts.
  void Take(const app::RunRecord& record);
  void Note(double loss);  // of a validation of the deciding set

  bool IsNew() const { return is_new_; }  // lower than before, since the last checkpoint
  void Begin(bool as_best);               // a checkpoint is begun
  void Written(bool written);             // the one begun last as the best was written, or was not

  double Kept() const { return kept_; }  // of the target of the link `best`
  void SetKept(double loss) { kept_ = loss; }
  const app::Decider& Decider() const { return decider_; }
  void AddTo(nlohmann::json& run) const;

 private:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  app::Decider decider_;
  double best_ = kNone;
  double kept_ = kNone;
  double under_way_ = 0;  // of the last checkpoint that was begun as the best
  bool is_new_ = false;
};

class CheckpointPolicy {
 public:
  // Why a checkpoint is written.
  using Reason = Checkpoints::Reason;
  // All must outlive it.
  struct Setup {
    const comm::Runtime& runtime;
    const checkpoint::Options& options;
    bool goes_back = false;  // after a spike of the loss (run.on_spike = rollback)
    std::vector<int> cores;  // for the writing thread
    const RunSession& session;
    report::Monitor& monitor;
    Progress& progress;
    train::TrainingState& state;
    // Collective. run.json of the last step, without what the writers add. stop_only: nothing but a
    // stop wants it.
    std::function<nlohmann::json(bool stop_only)> run;
    // Told of the last regular checkpoint before that is relied on.
    std::function<void(std::int64_t step)> written;
  };
  // Collective. Takes the memory of the writers; throws InputError if copies do not fit.
  CheckpointPolicy(const Setup& setup, const BestLoss& best);

  BestLoss& Best() { return best_; }
  const BestLoss& Best() const { return best_; }

  // Whether a checkpoint is due by time, on rank 0's clock.
  bool TimeHasCome() const;
  // Why one is to be written after this step; nullopt: none is.
  std::optional<Reason> Due() const;
  // Collective. Writes one to the nodes and, where that is due too, one to the run folder.
  void Write(const Reason& reason);
  // Collective. Writes the regular checkpoint that the run folder was to have with the local one
  // that the session began with, and has not: the job died in between. False: there is none.
  bool CompleteRunFolder();

  bool Busy() const { return checkpoints_->Busy(); }  // a write goes on beside the steps
  // Collective, after each step. any_busy: agreed.
  void Advance(bool any_busy) {
    checkpoints_->Advance(any_busy);
    NoteBest();
  }
  void Settle();  // collective: waits for the one under way
  void Note();    // collective: settles, and tells of the last regular checkpoint
  void ReturnTo(const app::RunRecord& record);  // collective: the run is back at this checkpoint

  void AddTo(nlohmann::json& run) const;  // names of the local run, and the best loss
  // Seconds that training waited since this was asked.
  double TakeSeconds() { return std::exchange(waited_, 0); }
  std::int64_t OwnBytes() const { return checkpoints_->OwnBytes(); }  // as checkpoint::Writer's
  std::vector<std::string> Summary() const;                           // lines, which may be empty
  void RemoveLocal() {  // collective: the run has ended
    if (local_ != nullptr) local_->RemoveAll();
  }

 private:
  // Whether the best one was written, once that is known.
  void NoteBest() {
    if (const std::optional<bool> written = checkpoints_->TakeBest()) best_.Written(*written);
  }
  enum class Drain { kNone, kRegular, kIrregular };

  void CheckCopyMemory(const checkpoint::State& state) const;
  void MakeLocal();
  Drain WriteLocal(const Reason& reason);
  void WriteRunFolder(const Reason& reason);
  const Setup setup_;
  BestLoss best_;
  std::unique_ptr<Checkpoints> checkpoints_;
  std::unique_ptr<LocalCheckpoints> local_;  // null: none
  bool run_folder_has_one_ = false;          // that knows of the local ones
  double waited_ = 0;                        // seconds, since TakeSeconds
};

}  // namespace trireme::tasks
