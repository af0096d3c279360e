// CheckpointPolicy: when a training writes a checkpoint, to the run folder or to the nodes' own
// storage, and which checkpoint is the best.
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

// Nats per token (infinity: none yet): a run's lowest validation loss and its best checkpoint's.
class BestLoss {
 public:
  explicit BestLoss(app::Decider decider) : decider_(std::move(decider)) {}

  // Continues from a checkpoint. Drops its losses if another validation set decided then.
  void Take(const app::RunRecord& record);
  void Note(double loss);  // takes the loss of a validation of the deciding set

  bool IsNew() const { return is_new_; }  // lower than all before, since the last checkpoint
  void Begin(bool as_best);               // a checkpoint begins; as_best: as the best one
  void Written(bool written);  // whether the last checkpoint begun as the best was written

  double Kept() const { return kept_; }  // loss of the checkpoint to which the link `best` points
  void SetKept(double loss) { kept_ = loss; }
  const app::Decider& Decider() const { return decider_; }
  void AddTo(nlohmann::json& run) const;

 private:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  app::Decider decider_;
  double best_ = kNone;
  double kept_ = kNone;
  double under_way_ = 0;  // loss of the last checkpoint begun as the best
  bool is_new_ = false;
};

class CheckpointPolicy {
 public:
  // Why a checkpoint is written.
  using Reason = Checkpoints::Reason;
  // Everything referred to must outlive it.
  struct Setup {
    const comm::Runtime& runtime;
    const checkpoint::Options& options;
    bool goes_back = false;  // true: the run goes back after a spike (run.on_spike)
    std::vector<int> cores;  // cores for the writing thread
    const RunSession& session;
    report::Monitor& monitor;
    Progress& progress;
    train::TrainingState& state;
    // Collective. Returns run.json of the last step without the members that the writers add.
    // stop_only: the checkpoint is written only because of a stop.
    std::function<nlohmann::json(bool stop_only)> run;
    // Called with the last regular checkpoint's step when it is written, before others rely on it.
    std::function<void(std::int64_t step)> written;
  };
  // Collective. Allocates the writers' memory; throws InputError if copies do not fit.
  CheckpointPolicy(const Setup& setup, const BestLoss& best);

  BestLoss& Best() { return best_; }
  const BestLoss& Best() const { return best_; }

  // Whether a checkpoint is due by time, on rank 0's clock.
  bool TimeHasCome() const;
  // Why a checkpoint is to be written after this step; nullopt: none is due.
  std::optional<Reason> Due() const;
  // Collective. Writes a local checkpoint and, if that is due too, one to the run folder.
  void Write(const Reason& reason);
  // Collective. Writes the regular checkpoint of the run folder that was due with the local one
  // from which the session began, if the job died before writing it. False: none was due.
  bool CompleteRunFolder();

  bool Busy() const { return checkpoints_->Busy(); }  // this rank is writing beside the steps
  // Collective, after each step. any_busy: whether any rank is Busy(), as agreed.
  void Advance(bool any_busy) {
    checkpoints_->Advance(any_busy);
    NoteBest();
  }
  void Settle();  // collective: waits for the checkpoint under way
  void Note();    // collective: settles, and reports the last regular checkpoint
  void ReturnTo(const app::RunRecord& record);  // collective: the run went back to this checkpoint

  void AddTo(nlohmann::json& run) const;  // adds the local run's names and the best loss
  // Seconds for which training waited since the last call.
  double TakeSeconds() { return std::exchange(waited_, 0); }
  std::int64_t OwnBytes() const { return checkpoints_->OwnBytes(); }  // see checkpoint::Writer
  std::vector<std::string> Summary() const;                           // lines; may be empty
  void RemoveLocal() {  // collective: the run has ended
    if (local_ != nullptr) local_->RemoveAll();
  }

 private:
  // Tells best_ whether the best checkpoint was written, once that is known.
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
  std::unique_ptr<LocalCheckpoints> local_;  // null: no local checkpoints
  bool run_folder_has_one_ = false;          // true: one of its run.json names local ones
  double waited_ = 0;                        // seconds of waiting since the last TakeSeconds
};

}  // namespace trireme::tasks
