// Records of a run: steps, intervals, evaluations and events, as sinks take them and metrics.jsonl
// holds them. doc/reference/records.md explains every member.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::report {

// A step, an evaluation or the end of a run. Times are those of one step; Evaluation() takes its
// duration as step_seconds, and Done() the time of checkpoints since the last step as
// seconds_checkpoint.
struct Record {
  enum class Kind { kStep, kValid, kValidOther, kTest, kDone };
  Kind kind = Kind::kStep;  // kValid: the loss that decides on the best; kValidOther: of more sets
  std::string set = {};     // of kValid and kValidOther, by data.validation; empty: it has no name
  // Of kValid and kValidOther: windows that were evaluated, a sample of all; 0: all were.
  std::int64_t windows = 0, all_windows = 0;
  bool pairs = false;          // the windows are pairs of texts
  bool ends_interval = false;  // kStep: of the last step of a session, whatever its number
  bool ended = true;           // kDone: nothing of the run is left to do
  std::int64_t step = 0;       // steps completed
  double epoch = 0;            // epochs completed, a fraction
  std::int64_t tokens = 0;     // training targets seen so far
  bool no_target = false;      // kStep: nothing of the batch counts, so that it has no loss
  double loss = 0;             // nats per token; perplexity = exp(loss) is derived
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping
  double step_seconds = 0;
  double tokens_per_second = 0;
  double flops_per_second = 0;  // of all ranks
  double roof_fraction = 0;
  double seconds_compute = 0;
  double seconds_exposed_communication = 0;
  double seconds_bubble = 0;
  double seconds_data = 0;
  double seconds_checkpoint = 0;
  std::int64_t bad_steps = 0;  // of the run so far: steps whose update was left out

  // The rest is known at the end of an interval and of an evaluation, not for every step.

  // Of the largest rank: peak resident set; on a GPU, bytes of the card in use.
  std::int64_t memory_bytes = 0;
  int memory_rank = -1;  // of the world; -1: not known
  std::string memory_host = {};
  // The rank that computes longest, over the steps since the last record; -1: not known.
  int slowest_rank = -1;
  std::string slowest_host = {};
  double seconds_slowest = 0;  // of its computation, a step
  // Training targets seen so far of each file of a mixture, by name; empty: one file.
  std::vector<std::pair<std::string, std::int64_t>> sources = {};
  // More members of an interval record, by name, such as "joules".
  std::vector<std::pair<std::string, double>> more = {};
};

// Range of a value over the steps of an interval; values that are not finite count nowhere. NaN if
// there is no finite one.
struct Spread {
  double min = 0, max = 0, mean = 0;
};

// The steps since the last line on the screen.
struct Interval {
  Record last = {};        // the last step, its times and speeds replaced by means over the steps
  std::int64_t steps = 0;  // in it
  // Means over the steps; of tokens_per_second, all tokens over all seconds.
  Spread loss = {}, grad_norm = {}, step_seconds = {}, tokens_per_second = {};
};

// Something that happened in a run: {"kind": "event", "event": name, ...}.
// Name of the first event of a run that branches off another one, of the step after which it does.
inline constexpr const char* kBranchedOff = "branched off";

struct Event {
  std::string
      name;  // "restart", "checkpoint", "checkpoint failed", "clean-up failed", "signal", ...
  std::int64_t step = 0;
  int rank = 0;           // of the event
  std::string host = {};  // of that rank; empty: rank 0's
  std::string text;
  std::vector<std::pair<std::string, double>> numbers = {};  // more members
};

}  // namespace trireme::report
