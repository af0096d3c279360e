// Checkpoints of a training run: when they are due, and what becomes of those that fail.
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

// Adds the time until it goes out of scope.
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
  // All must outlive it. On rank 0, may_publish throws unless the run folder is this job's for
  // certain, and may_go_on if it is another's for certain.
  struct Setup {
    const comm::Runtime& runtime;
    const checkpoint::Options& options;
    report::Monitor& monitor;
    app::Deadline& deadline;
    std::string folder;           // of the run
    std::int64_t sequence;        // of its last checkpoint; on rank 0, with checkpoint.local
    std::vector<int> cores;       // for the writing thread
    const comm::Ledger& traffic;  // of the timeline that shows them
    std::function<void()> may_publish, may_go_on;
    double& waited;  // seconds that training has waited, added to
  };
  // Collective. Takes the memory of the writer.
  Checkpoints(const Setup& setup, checkpoint::State state);

  // Whether a checkpoint is due by time, on rank 0's clock: every_minutes, or the interval of
  // checkpoint.auto. With checkpoint.local, one that goes to the run folder as well.
  bool TimeHasCome() const;
  // Whether a checkpoint is due after this step.
  bool DueAfter(std::int64_t step) const {
    return Comes(step, setup_.options.every_steps * setup_.options.Drains());
  }

  // Collective. Waits for the one under way, if any.
  void Settle();
  // Why one is written.
  struct Reason {
    bool best = false;       // the lowest validation loss; TakeBest tells whether it was written
    bool stop_only = false;  // without a stop there would be none
  };
  // Collective. Writes one, or begins to; none may be under way. run: run.json, without what the
  // writer adds.
  void Write(std::int64_t step, const nlohmann::json& run, const Reason& reason);
  // Collective. Writes the last one of a session, with all attempts at once, and waits for it.
  // AgreedError if none succeeds.
  void WriteLast(std::int64_t step, const nlohmann::json& run, const Reason& reason);
  // Step of the last one written in this session that was not written for a stop alone.
  std::optional<std::int64_t> LastRegular() const { return last_regular_; }
  // On this rank: a write goes on beside the steps. Cheap.
  bool Busy() const { return writer_.UnderWay() && writer_.Busy(); }
  // Collective, after each step. any_busy: Busy() of any rank, agreed on in the step.
  void Advance(bool any_busy);

  std::int64_t OwnBytes() const { return writer_.OwnBytes(); }  // as checkpoint::Writer's
  bool UnderWay() const { return writer_.UnderWay(); }
  bool BestUnderWay() const { return UnderWay() && under_way_.best; }
  bool Written() const { return written_ > 0; }        // one, in this session
  std::int64_t Sequence() const { return sequence_; }  // of the last one; on rank 0

  // Whether the last one marked best was written, if that is known since the last call.
  std::optional<bool> TakeBest() { return std::exchange(best_written_, std::nullopt); }
  // "3 checkpoints of 1.2 GiB: ...": for the summary; empty if there was none.
  std::string Summary() const;

 private:
  void Begin(std::int64_t step, const nlohmann::json& run, const Reason& reason);
  // Calls the writer, which training waits for.
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
  double Interval() const;  // seconds, of checkpoint.auto

  const Setup setup_;
  checkpoint::Writer writer_;
  Reason under_way_;
  std::int64_t sequence_ = 0;
  std::optional<bool> best_written_;  // since TakeBest
  std::optional<std::int64_t> last_regular_;
  std::set<std::string> told_;  // warnings: what cannot be removed stays so at each checkpoint
  std::int64_t failures_ = 0;   // in a row
  double last_time_ = 0;        // Seconds() of the last Begin
  double stall_ = 0;            // of the one under way
  double longest_stall_ = 0;    // of those written
  std::int64_t written_ = 0;    // in this session
  double bytes_ = 0, write_seconds_ = 0, verify_seconds_ = 0, stalls_ = 0;  // sums of those
};

// Local checkpoints of a training run: when they are due, what is said of them, and what they cost.

class LocalCheckpoints {
 public:
  // All must outlive it.
  struct Setup {
    const comm::Runtime& runtime;
    const checkpoint::Options& options;
    report::Monitor& monitor;
    const comm::Ledger& traffic;  // of the timeline that shows them
    double& waited;               // seconds that training has waited, added to
    checkpoint::LocalRun run;
    // Step of the local checkpoint that the session goes on from.
    std::optional<std::int64_t> from = {};
  };
  // Collective.
  LocalCheckpoints(const Setup& setup, checkpoint::State state);

  const checkpoint::LocalRun& Run() const { return setup_.run; }
  // Whether one is due by time, on rank 0's clock.
  bool TimeHasCome() const;
  // Whether one is due after this step.
  bool DueAfter(std::int64_t step) const { return Comes(step, setup_.options.every_steps); }
  // Collective. Writes one; false if it is not whole on all nodes, which is said once. sequence: of
  // the run folder's last checkpoint, on rank 0.
  bool Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run);
  // Collective. The run has gone back to this step.
  void Forget(std::int64_t step) { writer_.Forget(step); }
  // Collective. The run has ended: nothing of it stays on the nodes.
  void RemoveAll() { writer_.RemoveAll(); }

  // "12 local checkpoints of 1.2 GiB: ...": for the summary; empty if there was none.
  std::string Summary() const;

 private:
  void Report(std::int64_t step, const checkpoint::LocalOutcome& outcome);

  const Setup setup_;
  checkpoint::LocalWriter writer_;
  double last_time_ = 0;      // Seconds() of the last one
  bool failing_ = false;      // the last one was not written
  std::int64_t written_ = 0;  // in this session
  double seconds_ = 0;        // sum of those
  double longest_ = 0;        // of those
};

}  // namespace trireme::tasks
