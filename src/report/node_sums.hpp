// Readings of a node's counters, summed up.
#ifndef TRIREME_SRC_REPORT_NODE_SUMS_HPP_
#define TRIREME_SRC_REPORT_NODE_SUMS_HPP_

#include <optional>
#include <vector>

#include "counter.hpp"
#include "trireme/report/meter.hpp"

namespace trireme::report {

inline constexpr double kLeastSeconds = 0.05;  // between readings: counters move in small jumps
inline constexpr double kMostWatts = 100e3;    // of one counter; more is no energy
inline constexpr double kStillSeconds = 10;    // most between moves of a counter that works
// The power at which a counter could wrap around unseen between two readings.
inline constexpr double kWrapWatts = 3000;

// Counters that are read together. Their energy of a time counts if all could be read at its ends
// and made sense.
class CounterGroup {
 public:
  struct Gain {
    double joules = 0, card_joules = 0;
    double seconds = 0;  // since all were read last
  };

  void Add(Counter& counter, bool card) { places_.push_back({&counter, card}); }
  bool Empty() const { return places_.empty(); }
  // Reads all. Nothing at the first reading, and if one cannot be read, stands still or jumps.
  std::optional<Gain> Advance(double now);

 private:
  struct Place {
    Counter* counter = nullptr;
    bool card = false;
    double joules = 0;       // at the last reading of all
    double moved_at = -1;    // when it had another value; negative: never read
    double last_value = -1;  // as read, of this counter alone
    double now = 0;          // at the reading under way
  };
  static bool Read(Place& place, double now);

  std::vector<Place> places_;
  double read_at_ = -1;  // all of them; negative: never
};

class NodeSums {
 public:
  explicit NodeSums(Counters counters);

  // Reads all counters and adds what they have counted since they were read last, unless that was
  // less than kLeastSeconds ago. now: of Seconds().
  void Tick(double now);
  // Sums since the last call.
  Sums Take();

 private:
  void LookAtCards(double seconds);

  Counters counters_;
  CounterGroup all_;          // of the node's energy
  CounterGroup cards_apart_;  // within it
  double ticked_at_ = -1;     // negative: never
  Sums sums_;
};

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_NODE_SUMS_HPP_
