// Summary of a training session, for summary.json and sinks, and the interface of sinks.
// doc/reference/records.md explains every member.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/report/records.hpp"

namespace trireme::report {

// A row of the traffic table: one kind of transfer in one kind of group, over this session's steps.
struct TrafficRow {
  std::string group;          // "tensor"
  std::string transfer;       // "all-reduce"
  double ranks = 0;           // ranks that took part
  double calls = 0;           // sum over ranks
  double bytes = 0;           // sent, sum over ranks
  double seconds_waited = 0;  // mean over all ranks of the job
  double longest_waited = 0;  // by the rank that waited longest
  double seconds_hidden = 0;  // hidden behind computation; mean over all ranks
};

// Gathers of sharded parameters, over the steps of this session.
struct Gathers {
  double count = 0;  // gathers per rank, mean over the ranks
  double ready = 0;  // of `count`: complete before the parameters were needed
};

// One rank of the run.
struct RankUse {
  int rank = 0;  // world rank
  std::string host = {};
  int pipeline = 0, data = 0, context = 0, tensor = 0;  // place in the grid
  std::int64_t planned_bytes = 0;
  std::int64_t used_bytes = 0;     // peak resident set, or on a GPU the card's memory in use
  std::int64_t program_bytes = 0;  // of the program itself, not planned
  std::int64_t writer_bytes = 0;   // not planned: for writing the node's checkpoints
  std::int64_t others_bytes = 0;   // part of used_bytes: shared memory in other ranks' plans
  // Bytes foreseen for this rank, and bytes that it took, without those in other ranks' plans.
  std::int64_t Foreseen() const { return program_bytes + planned_bytes + writer_bytes; }
  std::int64_t Taken() const { return used_bytes - others_bytes; }
  double seconds_compute = 0;  // over the steps of this session
};

// Energy of this session: (name, value), such as "joules", or why it is not known.
struct Energy {
  std::vector<std::pair<std::string, double>> numbers = {};
  std::vector<std::pair<std::string, std::string>> texts = {};  // "covers", "leaves_out"
  std::string not_available = "not measured";                   // empty: it is known
};

// Findings of the check of the hosts at the start.
struct PreflightFacts {
  std::vector<std::pair<std::string, std::string>> facts = {};     // by name
  std::vector<std::pair<std::string, std::string>> warnings = {};  // (kind, sentence)
  double seconds = 0;                                              // duration of the check
};

// Facts that stay as they are while the session runs.
struct RunFacts {
  std::string version, commit;
  std::string started;           // ISO 8601 with its zone
  std::int64_t first_step = 0;   // last step before this session
  std::int64_t total_steps = 0;  // length of the schedule
  int ranks = 1;
  std::vector<std::string> hosts = {};  // without duplicates, ordered by their first rank
  int threads = 1;                      // per rank
  std::string device, precision, grid, model, data;  // as in the banner
  std::int64_t parameters = 0;
  double roof_flops = 0;                     // speed of matrix products per rank, FLOP/s
  std::optional<double> entropy_floor = {};  // of the training file, nats per token
  // Bytes planned for the largest rank, by term.
  std::vector<std::pair<std::string, std::int64_t>> planned_memory = {};
  // The resolved deck as ("section.key", value), and the keys whose value is not the default.
  std::vector<std::pair<std::string, std::string>> deck = {};
  std::vector<std::string> deck_given = {};
  PreflightFacts preflight = {};
  // comm::DescribeGpuTransfers of rank 0; empty without transfers between GPUs.
  std::vector<std::pair<std::string, std::string>> gpu_transfers = {};
};

// Losses over all sessions of the run, nats per token; nullopt: unknown.
struct LossFacts {
  std::optional<double> first, last;  // of training steps
  std::optional<double> best_valid, last_valid, test;
  std::int64_t best_valid_step = 0;
};

// Seconds of this session, means over the ranks. other: time that no timer measured.
struct TimeFacts {
  double elapsed = 0, compute = 0, exposed_communication = 0, bubble = 0, data = 0, checkpoint = 0,
         validation = 0, other = 0;
};

// Copies of the token files on the nodes; files = 0: none were made.
struct Staging {
  std::int64_t files = 0, bytes = 0, nodes = 0;  // bytes: on one node
  double seconds = 0;
  std::string folder = {};
};

// The predicted times of a step beside the means over this session.
struct Comparison {
  struct Term {
    std::string name;                  // "step", "compute", "exposed data", "bubble", "other"
    double predicted = 0, actual = 0;  // s
  };
  std::string machine = {};  // name and origin of the machine description
  std::vector<Term> terms = {};
  // Bytes of the rank with the largest plan; planned_bytes includes the program's own memory.
  std::int64_t planned_bytes = 0, used_bytes = 0;
  std::string not_available = "nothing was predicted";  // why there is none; empty: there is one
};

struct Summary {
  // Given by the caller.
  RunFacts facts = {};
  std::string reason = {};          // why the run stopped early; may be empty
  std::vector<RankUse> ranks = {};  // all, or the largest and the smallest by used_bytes
  std::int64_t ranks_left_out = 0;
  std::vector<TrafficRow> traffic = {};
  Gathers gathers = {};
  Comparison comparison = {};
  Energy energy = {};
  Staging staging = {};
  std::vector<std::pair<std::string, std::string>> files = {};  // (name, path)

  // Completed by Monitor::Done.
  bool done = false;       // true: nothing is left to do; false: the run stopped early
  std::string ended = {};  // ISO 8601 with its zone
  Record last = {};        // kind kDone; times and speeds are means over this session
  LossFacts losses = {};
  TimeFacts time = {};
  std::vector<std::string> samples = {};  // texts by the model in this session
};

// A place that a run's records go to: metrics.jsonl, TensorBoard's event files, summary.json.

// Calls come from one thread, in the order of events; Sync alone may come from another one at any
// time. Each does nothing unless overridden. Any may throw an Error: the first of a sink becomes a
// warning ("...; the run goes on without it"), later ones are silent, and the sink is called as
// before. Loss and gradient norm of a bad step may be NaN or infinite.
class Sink {
 public:
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;

  virtual void Step(const Record&) {}  // each step's own values; must take well below 10 us
  virtual void Interval(const report::Interval&) {}  // after its last step
  virtual void Evaluation(const Record&) {}          // kValid, kValidOther, kTest
  virtual void Sample(std::int64_t /*step*/, const std::string& /*text*/) {}
  virtual void Happened(const Event&) {}
  virtual void GoBack(std::int64_t /*step*/) {}  // records after `step` are void
  // Writes out buffered records; called before something longer than a step, such as a validation.
  virtual void Flush() {}
  // If someone has deleted, moved or replaced the file, begins it anew and returns its path; else
  // returns "". Called before Flush.
  virtual std::string Renew() { return {}; }
  // Flushes all records to the disk; called before a checkpoint is published, by any thread.
  virtual void Sync() {}
  virtual void Done(const Summary&) {}  // the last call, also if a session stops early
};

}  // namespace trireme::report
