// Stage: the state of one stage's rank in a simulation.
#ifndef TRIREME_SRC_PREDICT_STAGE_HPP_
#define TRIREME_SRC_PREDICT_STAGE_HPP_

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <vector>

#include "engine.hpp"
#include "matches.hpp"
#include "tape.hpp"

namespace trireme::predict {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr int kNone = Place::kNone;

// A transfer on its link.
struct Flow {
  int transfer = 0;
  double latency = 0, left = 0, began = 0;
  bool network = false;
};

enum class State : std::uint8_t { kUnknown, kStarted, kDone };

struct Stage {
  const Tape* tape = nullptr;
  std::size_t next = 0;  // event
  double now = 0;
  bool computes = false;
  double compute_left = 0;  // s at full speed
  int awaited = kNone;      // transfer
  double wait_began = 0, task_began = 0;
  std::vector<State> states;              // [transfers]
  std::vector<bool> ready;                // [transfers]: all ranks have started it
  std::map<int, std::deque<int>> queues;  // of transfers, by group and payload
  std::vector<Flow> flows;                // heads of queues
  StageTimes times;
  double next_time = kNever;  // of its next event, unless `changed`
  bool changed = true;
  bool Ended() const { return next == tape->events.size() && !computes && awaited == kNone; }
};

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_STAGE_HPP_
