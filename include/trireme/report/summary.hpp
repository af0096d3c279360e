// Summary of a session of training: what summary.json holds and sinks get at its end.
// doc/reference/records.md explains every member.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/report/records.hpp"

namespace trireme::report {

// One kind of transfer in one kind of group, over the steps of this session: a row of the table in
// the closing summary.
struct TrafficRow {
  std::string group;          // "tensor"
  std::string transfer;       // "all-reduce"
  double ranks = 0;           // ranks that took part
  double calls = 0;           // sum over ranks
  double bytes = 0;           // sent, sum over ranks
  double seconds_waited = 0;  // mean over all ranks of the job, as in the times of a step
  double longest_waited = 0;  // seconds of the rank that waited longest
  double seconds_hidden = 0;  // mean over all ranks of the job
};

// Gathers of sharded parameters, over the steps of this session.
struct Gathers {
  double count = 0;  // per rank, mean
  double ready = 0;  // of these, complete before the parameters were needed
};

// One rank of the run.
struct RankUse {
  int rank = 0;  // of the world
  std::string host = {};
  int pipeline = 0, data = 0, context = 0, tensor = 0;  // place in the grid
  std::int64_t planned_bytes = 0;
  std::int64_t used_bytes = 0;     // peak resident set; on a GPU, bytes of the card in use
  std::int64_t program_bytes = 0;  // the program's own, without what was planned
  std::int64_t writer_bytes = 0;   // beside the plan, of a rank that writes the node's checkpoints
  std::int64_t others_bytes = 0;   // in used_bytes: shared memory in the plans of other ranks
  // Comparable numbers: what was foreseen, and what this rank really took.
  std::int64_t Foreseen() const { return program_bytes + planned_bytes + writer_bytes; }
  std::int64_t Taken() const { return used_bytes - others_bytes; }
  double seconds_compute = 0;  // over the steps of this session
};

// Energy of this session, by name ("joules", "joules_per_token", ...), or why it is not known.
struct Energy {
  std::vector<std::pair<std::string, double>> numbers = {};
  std::vector<std::pair<std::string, std::string>> texts = {};  // "covers", "leaves_out"
  std::string not_available = "not measured";                   // empty: it is known
};

// Findings of the look at the hosts at the start.
struct PreflightFacts {
  std::vector<std::pair<std::string, std::string>> facts = {};     // by name
  std::vector<std::pair<std::string, std::string>> warnings = {};  // (kind, sentence)
  double seconds = 0;                                              // taken by the look
};

// Facts that stay as they are while the session runs.
struct RunFacts {
  std::string version, commit;
  std::string started;           // ISO 8601 with its zone
  std::int64_t first_step = 0;   // after which this session began
  std::int64_t total_steps = 0;  // of the schedule
  int ranks = 1;
  std::vector<std::string> hosts = {};               // each once, by first rank
  int threads = 1;                                   // per rank
  std::string device, precision, grid, model, data;  // as in the banner
  std::int64_t parameters = 0;
  double roof_flops = 0;                     // speed of matrix products per rank, FLOP/s
  std::optional<double> entropy_floor = {};  // nats per token, of the training file
  // Bytes planned for the largest rank, by term.
  std::vector<std::pair<std::string, std::int64_t>> planned_memory = {};
  // The resolved deck, by "section.key", and the keys whose value is not the default.
  std::vector<std::pair<std::string, std::string>> deck = {};
  std::vector<std::string> deck_given = {};
  PreflightFacts preflight = {};
  // comm::DescribeGpuTransfers of rank 0; empty where no GPUs meet.
  std::vector<std::pair<std::string, std::string>> gpu_transfers = {};
};

// Losses, nats per token, of all sessions of the run; none: not known.
struct LossFacts {
  std::optional<double> first, last;  // of steps
  std::optional<double> best_valid, last_valid, test;
  std::int64_t best_valid_step = 0;
};

// Seconds of this session, means over the ranks; other: what no clock saw.
struct TimeFacts {
  double elapsed = 0, compute = 0, exposed_communication = 0, bubble = 0, data = 0, checkpoint = 0,
         validation = 0, other = 0;
};

// Copies of the token files on nodes; no files: none were made.
struct Staging {
  std::int64_t files = 0, bytes = 0, nodes = 0;  // bytes: of one node
  double seconds = 0;
  std::string folder = {};
};

// A step as it was predicted, beside the mean of those of this session.
struct Comparison {
  struct Term {
    std::string name;                  // "step", "compute", "exposed data", "bubble", "other"
    double predicted = 0, actual = 0;  // s
  };
  std::string machine = {};  // the description, and where it comes from
  std::vector<Term> terms = {};
  // Bytes of the rank with the largest plan; planned: with what the program took before.
  std::int64_t planned_bytes = 0, used_bytes = 0;
  std::string not_available = "nothing was predicted";  // empty: it is known
};

struct Summary {
  // Given by the caller.
  RunFacts facts = {};
  std::string reason = {};          // of a stop before the end
  std::vector<RankUse> ranks = {};  // all, or the largest and the smallest by used_bytes
  std::int64_t ranks_left_out = 0;
  std::vector<TrafficRow> traffic = {};
  Gathers gathers = {};
  Comparison comparison = {};
  Energy energy = {};
  Staging staging = {};
  std::vector<std::pair<std::string, std::string>> files = {};  // (name, path)

  // Completed by Monitor::Done.
  bool done = false;       // nothing is left to do; otherwise the run stopped early
  std::string ended = {};  // ISO 8601 with its zone
  Record last = {};  // of kind kDone, its times and speeds means over the steps of this session
  LossFacts losses = {};
  TimeFacts time = {};
  std::vector<std::string> samples = {};  // by the model, in this session
};

// A place that a run's records go to: metrics.jsonl, TensorBoard's event files, summary.json.

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
  virtual void Evaluation(const Record&) {}          // kValid, kValidOther, kTest
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
