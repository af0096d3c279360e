// Local checkpoints of a training run: when they are due, what is said of them, and what they cost.
#ifndef TRIREME_SRC_TASKS_LOCAL_CHECKPOINTS_HPP_
#define TRIREME_SRC_TASKS_LOCAL_CHECKPOINTS_HPP_

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/json.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/checkpoint/options.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

class LocalCheckpoints {
 public:
  // All must outlive it.
  struct Setup {
    const comm::Runtime& runtime;
    const checkpoint::Options& options;
    report::Monitor& monitor;
    const comm::Ledger& traffic;  // of the timeline that shows them
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
  bool DueAfter(std::int64_t step) const;
  // Collective. Writes one; false if it is not whole on all nodes, which is said once. sequence: of
  // the run folder's last checkpoint, on rank 0.
  bool Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run);
  // Collective. The run has gone back to this step.
  void Forget(std::int64_t step) { writer_.Forget(step); }
  // Collective. The run has ended: nothing of it stays on the nodes.
  void RemoveAll() { writer_.RemoveAll(); }

  // Seconds that training waited since this was asked.
  double TakeSeconds();
  // "12 local checkpoints of 1.2 GiB: ...": for the summary; empty if there was none.
  std::string Summary() const;

 private:
  void Report(std::int64_t step, const checkpoint::LocalOutcome& outcome);

  const Setup setup_;
  checkpoint::LocalWriter writer_;
  double last_time_ = 0;       // Seconds() of the last one
  bool failing_ = false;       // the last one was not written
  std::int64_t written_ = 0;   // in this session
  double seconds_ = 0;         // sum of those
  double longest_ = 0;         // of those
  double untold_seconds_ = 0;  // since TakeSeconds
};

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_LOCAL_CHECKPOINTS_HPP_
