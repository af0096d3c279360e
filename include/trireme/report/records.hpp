// Records of a run, for sinks and metrics.jsonl: steps, intervals, evaluations and events.
// doc/reference/records.md explains every member.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::report {

// A step, an evaluation or the end of a run. Times are those of one step, except that an
// evaluation's step_seconds is its duration, and Done() takes seconds_checkpoint as the time of
// checkpoints since the last step.
struct Record {
  enum class Kind { kStep, kValid, kValidOther, kTest, kDone };
  Kind kind = Kind::kStep;  // kValid: set that decides on the best checkpoint; kValidOther: others
  std::string set = {};     // kValid, kValidOther: name from data.validation; may be empty
  // kValid, kValidOther: number of windows evaluated, and in the set; both 0: all were evaluated.
  std::int64_t windows = 0, all_windows = 0;
  bool pairs = false;          // the windows are pairs of texts
  bool averaged = false;       // an evaluation of averaged weights (optimizer.average)
  bool ends_interval = false;  // kStep: last step of a session, whatever its number
  bool ended = true;           // kDone: nothing of the run is left to do
  std::int64_t step = 0;       // steps completed
  double epoch = 0;            // epochs completed, with a fraction
  std::int64_t tokens = 0;     // training targets seen so far
  bool no_target = false;      // kStep: the batch has no valid target, hence no loss
  double loss = 0;             // nats per token; perplexity = exp(loss) is derived
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping
  double step_seconds = 0;
  double tokens_per_second = 0;
  double flops_per_second = 0;  // all ranks together
  double roof_fraction = 0;
  double seconds_compute = 0;
  double seconds_exposed_communication = 0;
  double seconds_bubble = 0;
  double seconds_data = 0;
  double seconds_checkpoint = 0;
  std::int64_t bad_steps = 0;  // steps of the run so far whose update was skipped

  // The members below are known at the end of an interval or evaluation, not for every step.

  // Memory of the rank that uses most: peak resident set, or on a GPU the card's memory in use.
  std::int64_t memory_bytes = 0;
  int memory_rank = -1;  // its world rank; -1: unknown
  std::string memory_host = {};
  // World rank that computed longest over the steps since the last record; -1: unknown.
  int slowest_rank = -1;
  std::string slowest_host = {};
  double seconds_slowest = 0;  // duration of its computation, per step
  // For a mixture, training targets seen so far from each file, by name; empty: one file.
  std::vector<std::pair<std::string, std::int64_t>> sources = {};
  // Further members of an interval record, such as "joules": (name, value).
  std::vector<std::pair<std::string, double>> more = {};
};

// Range of the finite values of an interval's steps; NaN if there are none.
struct Spread {
  double min = 0, max = 0, mean = 0;
};

// The steps since the last interval.
struct Interval {
  Record last = {};        // the last step, with means over the steps as times and speeds
  std::int64_t steps = 0;  // number of steps
  // The mean of tokens_per_second is all tokens divided by all seconds.
  Spread loss = {}, grad_norm = {}, step_seconds = {}, tokens_per_second = {};
};

// Name of the event with which a run that branches off another run begins. Its step is the last one
// that was taken in the other run.
inline constexpr const char* kBranchedOff = "branched off";

struct Event {
  std::string
      name;  // "restart", "checkpoint", "checkpoint failed", "clean-up failed", "records lost", ...
  std::int64_t step = 0;
  int rank = 0;           // world rank where it happened
  std::string host = {};  // host of that rank; empty: rank 0's
  std::string text;
  std::vector<std::pair<std::string, double>> numbers = {};  // further members: (name, value)
};

}  // namespace trireme::report
