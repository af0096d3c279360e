// Contents of a run's records, kept in bounded memory while they are read.
#ifndef TRIREME_SRC_TOOLS_RUN_STATE_HPP_
#define TRIREME_SRC_TOOLS_RUN_STATE_HPP_

#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "curve.hpp"

namespace trireme::tools {

// The length of the training by the run's deck; 0: not said.
struct Schedule {
  std::int64_t steps = 0;
  double epochs = 0;
  std::int64_t stop_at = 0;
};
// Of the text of a deck.in.
Schedule ReadSchedule(const std::string& deck);

// Losses of a validation set, nats per token.
struct Validation {
  double last = NAN, best = NAN;
  std::int64_t last_step = 0, best_step = 0;
};

struct Happening {
  std::int64_t step = 0;
  std::string name, text;
};

// A run at a glance; NaN and empty texts: not known.
struct Glance {
  std::int64_t step = 0, total_steps = 0;  // total_steps 0: not known
  bool about = false;                      // total_steps is an estimate
  double epoch = NAN, loss = NAN, learning_rate = NAN, grad_norm = NAN;
  double loss_least = NAN, loss_most = NAN;  // since the line before the last one
  double tokens_per_second = NAN, step_seconds = NAN, roof_fraction = NAN;  // of the last steps
  double seconds_left = NAN;
  double bad_steps = 0;
  double memory_bytes = NAN;  // of the largest rank
  std::string memory_place;   // "rank 3 on node17"
  double joules = NAN;        // of all intervals that say
  bool some_joules = false;   // other intervals do not
  double joules_per_token = NAN, watts_per_node = NAN, gpu_utilisation = NAN;
  double gpu_memory_bytes = NAN;
};

class RunState {
 public:
  // A line of metrics.jsonl. One that is no record is counted as damaged.
  void Take(std::string_view line);
  void Clear() { *this = RunState(); }

  Glance Look(const Schedule& schedule) const;
  const Curve& Losses() const { return losses_; }
  // By name; the set that decides on the best checkpoint is the first, whatever its name.
  const Validation& Decider() const { return decider_; }
  const std::map<std::string, Validation>& OtherSets() const { return others_; }
  double Test() const { return test_; }                                // NaN: not there
  const std::deque<Happening>& LastEvents() const { return events_; }  // the newest first
  std::int64_t Records() const { return records_; }
  std::int64_t Damaged() const { return damaged_; }
  bool Done() const { return done_; }
  bool Stopped() const { return stopped_; }  // and not gone on with

 private:
  struct Steps {  // of one record
    std::int64_t last = 0, count = 0;
    double seconds = 0, tokens = 0;
  };
  static constexpr std::size_t kRecent = 64;
  static constexpr std::size_t kEvents = 32;

  bool TakeStep(std::string_view line);
  bool TakeInterval(std::string_view line);
  bool TakeOther(std::string_view line);
  void TakeValidation(const nlohmann::json& record, std::int64_t step);
  void TakeEvent(const nlohmann::json& record, std::int64_t step);
  Steps LastSteps() const;

  Curve losses_;
  Validation decider_;
  std::map<std::string, Validation> others_;
  double test_ = NAN;
  std::deque<Happening> events_;
  std::int64_t records_ = 0, damaged_ = 0;
  bool done_ = false, stopped_ = false;
  std::int64_t step_ = 0;
  std::string last_step_, last_interval_;  // lines
  std::array<Steps, kRecent> recent_ = {};
  std::size_t next_recent_ = 0;
  double step_seconds_ = 0;   // of all steps
  double other_seconds_ = 0;  // of validations and checkpoints
  double joules_ = 0;
  std::int64_t intervals_with_joules_ = 0, intervals_ = 0;
};

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_RUN_STATE_HPP_
