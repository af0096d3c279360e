// Checkpoints of a training run: when they are due, and what happens if writing fails.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "training.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/checkpoint/options.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/runtime.hpp"
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

class Checkpoints {
 public:
  // Everything referred to must outlive it. On rank 0, may_publish throws unless the run folder is
  // certainly this job's; may_go_on throws if it is certainly another job's.
  struct Setup {
    const comm::Runtime& runtime;
    const checkpoint::Options& options;
    report::Monitor& monitor;
    app::Deadline& deadline;
    std::string folder;           // the run folder
    std::int64_t sequence;        // number of its last checkpoint; rank 0, with checkpoint.local
    std::vector<int> cores;       // cores for the writing thread
    const comm::Ledger& traffic;  // holds the timeline in which checkpoints appear
    std::function<void()> may_publish, may_go_on;
    double& waited;  // seconds that training waited; increased here
  };
  // Collective. Allocates the writer's memory.
  Checkpoints(const Setup& setup, checkpoint::State state);

  // Whether a checkpoint is due by time, on rank 0's clock: every_minutes, or the interval of
  // checkpoint.auto. With checkpoint.local, only those that also go to the run folder.
  bool TimeHasCome() const;
  // Whether a checkpoint is due after this step.
  bool DueAfter(std::int64_t step) const {
    return Comes(step, setup_.options.every_steps * setup_.options.Drains());
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
  // Collective, after each step. any_busy: whether any rank is Busy(), agreed on in the step.
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
  void TraceFiles() const;
  void Report(const checkpoint::Outcome& outcome);
  void Fail(const checkpoint::Outcome& outcome);
  double Interval() const;  // of checkpoint.auto, in seconds

  const Setup setup_;
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
  double bytes_ = 0, write_seconds_ = 0, verify_seconds_ = 0, stalls_ = 0;  // sums over written_
};

// Local checkpoints of a training run: when they are due, what is reported, and what they cost.

class LocalCheckpoints {
 public:
  // Everything referred to must outlive it.
  struct Setup {
    const comm::Runtime& runtime;
    const checkpoint::Options& options;
    report::Monitor& monitor;
    const comm::Ledger& traffic;  // holds the timeline in which checkpoints appear
    double& waited;               // seconds that training waited; increased here
    checkpoint::LocalRun run;
    // Step of the local checkpoint that the session continues from.
    std::optional<std::int64_t> from = {};
  };
  // Collective.
  LocalCheckpoints(const Setup& setup, checkpoint::State state);

  const checkpoint::LocalRun& Run() const { return setup_.run; }
  // Whether a local checkpoint is due by time, on rank 0's clock.
  bool TimeHasCome() const;
  // Whether a local checkpoint is due after this step.
  bool DueAfter(std::int64_t step) const { return Comes(step, setup_.options.every_steps); }
  // Collective. Writes one; returns false if it is not complete on all nodes, which is reported
  // once. sequence: number of the run folder's last checkpoint, on rank 0.
  bool Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run);
  // Collective. Forgets checkpoints after `step`, to which the run has gone back.
  void Forget(std::int64_t step) { writer_.Forget(step); }
  // Collective. Removes all of the run's local checkpoints, when the run has ended.
  void RemoveAll() { writer_.RemoveAll(); }

  // Line of the summary: "12 local checkpoints of 1.2 GiB: ..."; empty if there was none.
  std::string Summary() const;

 private:
  void Report(std::int64_t step, const checkpoint::LocalOutcome& outcome);

  const Setup setup_;
  checkpoint::LocalWriter writer_;
  double last_time_ = 0;      // when the last one began, by Seconds()
  bool failing_ = false;      // the last checkpoint was not written
  std::int64_t written_ = 0;  // local checkpoints of this session
  double seconds_ = 0;        // total time spent on these
  double longest_ = 0;        // time of the slowest one, seconds
};

}  // namespace trireme::tasks
