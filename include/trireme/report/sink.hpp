// A place that a run's records go to: metrics.jsonl, TensorBoard's event files, summary.json.
#ifndef TRIREME_REPORT_SINK_HPP_
#define TRIREME_REPORT_SINK_HPP_

#include <cstdint>
#include <string>

#include "trireme/report/records.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::report {

// Calls come from one thread, in the order of events; Sync alone may come from another one at any
// time. Each does nothing unless overridden. Any may throw an Error: the first of a sink becomes a
// warning ("...; the run goes on"), later ones are silent, and the sink is called as before.
// Loss and gradient norm of a bad step may be NaN or infinite.
class Sink {
 public:
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;

  virtual void Step(const Record&) {}  // every step, with its own values; costs well below 10 us
  virtual void Interval(const report::Interval&) {}  // after its last step
  virtual void Evaluation(const Record&) {}           // kValid, kValidOther, kTest
  virtual void Sample(std::int64_t /*step*/, const std::string& /*text*/) {}
  virtual void Happened(const Event&) {}
  virtual void GoBack(std::int64_t /*step*/) {}  // all after `step` is void
  // Before something longer than a step, such as a validation: what waits in memory is passed on.
  virtual void Flush() {}
  // Before Flush. Begins its file anew if someone has deleted, moved or replaced it, and returns
  // its name; else returns "".
  virtual std::string Renew() { return {}; }
  // Before a checkpoint is published: everything so far goes to the disk. Any thread.
  virtual void Sync() {}
  virtual void Done(const Summary&) {}  // last call; also of a session that stops early
};

}  // namespace trireme::report

#endif  // TRIREME_REPORT_SINK_HPP_
