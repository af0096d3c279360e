// CheckpointPolicy: when a training writes a checkpoint, to the run folder or to the nodes' own
// storage, and which checkpoint is the best.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "run_session.hpp"
#include "training.hpp"
#include "trireme/app/run_record.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/checkpoint/options.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

// Adds the time from construction to the end of its scope to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum), start_(Seconds()) {}
  ~Stopwatch() { sum_ += Seconds() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_;
  double start_;
};

// Checkpoints of a training run: when they are due, and what happens if writing fails.
class Checkpoints {
 public:
  // Collective. Allocates the writer's memory. sequence: number of the run folder's last
  // checkpoint, on rank 0 with checkpoint.local; else 0. waited: seconds that training waited;
  // increased here. `loop` and `waited` must outlive it.
  Checkpoints(LoopParts& loop, std::int64_t sequence, double& waited, checkpoint::State state);

  // Whether a checkpoint is due by time, on rank 0's clock: every_minutes, or the interval of
  // checkpoint.auto. With checkpoint.local, only those that also go to the run folder.
  bool TimeHasCome() const;
  // Whether a checkpoint is due after this step by the number of steps: every_steps.
  bool DueAfter(std::int64_t step) const {
    return Comes(step, Options().every_steps * Options().Drains());
  }

  // Collective. Waits for the checkpoint under way, if any.
  void Settle();
  // Why a checkpoint is written.
  struct Reason {
    bool best = false;       // lowest validation loss so far; TakeBest tells whether it was written
    bool stop_only = false;  // written only because the run stops
  };
  // Collective. Writes a checkpoint, or begins to; none may be under way. run: run.json without
  // the members that the writer adds.
  void Write(std::int64_t step, const nlohmann::json& run, const Reason& reason);
  // Collective. Writes the last checkpoint of a session, repeating failed attempts at once, and
  // waits for it. AgreedError if none succeeds.
  void WriteLast(std::int64_t step, const nlohmann::json& run, const Reason& reason);
  // Step of the last checkpoint written in this session and not only because of a stop.
  std::optional<std::int64_t> LastRegular() const { return last_regular_; }
  // Whether this rank is writing beside the steps. Cheap.
  bool Busy() const { return writer_.UnderWay() && writer_.Busy(); }
  // Collective, after each step: goes on with the checkpoint under way, unless any rank is Busy().
  void Advance(bool any_busy);

  std::int64_t OwnBytes() const { return writer_.OwnBytes(); }  // see checkpoint::Writer
  bool UnderWay() const { return writer_.UnderWay(); }
  bool BestUnderWay() const { return UnderWay() && under_way_.best; }
  bool Written() const { return written_ > 0; }        // at least one in this session
  std::int64_t Sequence() const { return sequence_; }  // number of the last one; on rank 0

  // Whether the last checkpoint marked best was written; nullopt if nothing new is known.
  std::optional<bool> TakeBest() { return std::exchange(best_written_, std::nullopt); }
  // Line of the summary: "3 checkpoints of 1.2 GiB: ..."; empty if there was none.
  std::string Summary() const;

 private:
  void Begin(std::int64_t step, const nlohmann::json& run, const Reason& reason);
  // Calls the writer and counts the time for which training waits.
  template <typename Call>
  auto Stalled(Call call) {
    const Stopwatch stall(stall_);
    return call();
  }
  void Finish() {
    Account(Stalled([this] { return writer_.Finish(); }));
  }
  void Account(const checkpoint::Outcome& outcome);
  void Report(const checkpoint::Outcome& outcome);
  void Fail(const checkpoint::Outcome& outcome);
  double Interval() const;  // of checkpoint.auto, in seconds

  const checkpoint::Options& Options() const { return loop_.job.request.checkpoint; }

  LoopParts& loop_;
  double& waited_;
  checkpoint::Writer writer_;
  Reason under_way_;
  std::int64_t sequence_ = 0;
  std::optional<bool> best_written_;  // outcome not yet taken by TakeBest
  std::optional<std::int64_t> last_regular_;
  std::set<std::string> told_;  // warnings given, so that none comes twice
  std::int64_t failures_ = 0;   // failed checkpoints in a row
  double last_time_ = 0;        // when the last checkpoint began, by Seconds()
  double stall_ = 0;            // seconds of waiting for the checkpoint under way
  double longest_stall_ = 0;    // largest stall_ of a written checkpoint
  std::int64_t written_ = 0;    // checkpoints of this session
  double bytes_ = 0, write_seconds_ = 0, verify_seconds_ = 0, stalls_ = 0;  // sums over these
};

// Local checkpoints of a training run: when they are due, what is reported, and what they cost.
class LocalCheckpoints {
 public:
  // Collective. from: step of the local checkpoint that the session continues from; nullopt: none.
  // waited: as in Checkpoints.
  LocalCheckpoints(LoopParts& loop, checkpoint::LocalRun run, std::optional<std::int64_t> from,
                   double& waited);

  const checkpoint::LocalRun& Run() const { return run_; }
  // Whether a local checkpoint is due by time, on rank 0's clock.
  bool TimeHasCome() const;
  // Whether a local checkpoint is due after this step by the number of steps.
  bool DueAfter(std::int64_t step) const { return Comes(step, Options().every_steps); }
  // Collective. Writes one; returns false if it is not complete on all nodes. Warns only of the
  // first such failure in a row. sequence: number of the run folder's last checkpoint, on rank 0.
  bool Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run);
  // Collective. Forgets checkpoints after `step`, to which the run has gone back.
  void Forget(std::int64_t step) { writer_.Forget(step); }
  // Collective. Removes all of the run's local checkpoints, when the run has ended.
  void RemoveAll() { writer_.RemoveAll(); }

  // Line of the summary: "12 local checkpoints of 1.2 GiB: ..."; empty if there was none.
  std::string Summary() const;

 private:
  void Report(std::int64_t step, const checkpoint::LocalOutcome& outcome);

  const checkpoint::Options& Options() const { return loop_.job.request.checkpoint; }

  LoopParts& loop_;
  const checkpoint::LocalRun run_;
  double& waited_;
  checkpoint::LocalWriter writer_;
  double last_time_ = 0;      // when the last one began, by Seconds()
  bool failing_ = false;      // the last checkpoint was not written
  std::int64_t written_ = 0;  // local checkpoints of this session
  double seconds_ = 0;        // total time spent on these
  double longest_ = 0;        // time of the slowest one, seconds
};

// A run's lowest validation loss and its best checkpoint's, nats per token (infinity: none yet).
class BestLoss {
 public:
  explicit BestLoss(app::Decider decider) : decider_(std::move(decider)) {}

  // Continues from a checkpoint. Drops its losses if another validation set decided then.
  void Take(const app::RunRecord& record);
  void Note(double loss);  // takes the loss of a validation of the deciding set

  bool IsNew() const { return is_new_; }  // Note() has taken a new lowest loss since Begin()
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
  // Collective. Returns run.json of the last step without the members that the writers add.
  // stop_only: the checkpoint is written only because of a stop.
  using MakeRun = std::function<nlohmann::json(bool stop_only)>;
  // Called with the step of the last regular checkpoint once that checkpoint is certainly written.
  using Written = std::function<void(std::int64_t step)>;
  // Collective. Allocates the writers' memory. AgreedError (exit code 2) if the copies for
  // asynchronous checkpoints do not fit into a node's memory. `loop` must outlive it.
  CheckpointPolicy(LoopParts& loop, const BestLoss& best, MakeRun run, Written written);

  BestLoss& Best() { return best_; }
  const BestLoss& Best() const { return best_; }

  // Whether a checkpoint is due by time, on rank 0's clock.
  bool TimeHasCome() const;
  // Why a checkpoint is to be written after this step; nullopt: none is due.
  std::optional<Reason> Due() const;
  // Collective. Writes a checkpoint to the run folder; with checkpoint.local, a local one, and one
  // to the run folder only if that is due too.
  void Write(const Reason& reason);
  // Collective. Writes the regular checkpoint of the run folder that was due with the local one
  // from which the session began, if the job died before writing it. False: none was due.
  bool CompleteRunFolder();

  bool Busy() const { return checkpoints_->Busy(); }  // this rank is writing beside the steps
  // Collective, after each step: goes on with the checkpoint under way, unless any rank is Busy().
  void Advance(bool any_busy) {
    checkpoints_->Advance(any_busy);
    NoteBest();
  }
  void Settle();  // collective: waits for the checkpoint under way
  void Note();    // collective: settles; reports the last regular one to `written`
  void ReturnTo(const app::RunRecord& record);  // collective: the run went back to this checkpoint

  void AddTo(nlohmann::json& run) const;  // adds names of local checkpoints, and the best loss
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
  const checkpoint::Options& Options() const { return loop_.job.request.checkpoint; }

  LoopParts& loop_;
  const MakeRun run_;
  const Written written_;
  BestLoss best_;
  std::unique_ptr<Checkpoints> checkpoints_;
  std::unique_ptr<LocalCheckpoints> local_;  // null: no local checkpoints
  bool run_folder_has_one_ = false;          // a run.json in it names our local checkpoints
  double waited_ = 0;                        // seconds of waiting since the last TakeSeconds
};

}  // namespace trireme::tasks
