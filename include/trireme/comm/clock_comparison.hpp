// Comparison of the clocks of ranks by messages that go to and fro (Cristian 1989).
#ifndef TRIREME_COMM_CLOCK_COMPARISON_HPP_
#define TRIREME_COMM_CLOCK_COMPARISON_HPP_

#include <functional>
#include <span>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

struct ClockComparison {
  double at = 0;      // of this rank's clock, seconds
  double offset = 0;  // rank 0's clock less this one's, at that time
  double error = 0;   // the most by which the offset is wrong: half of the shortest round trip
};

// Collective over rank 0 and `ranks`, which are ascending; others may call it and get zeros. clock:
// seconds, of this rank. Takes some tens of round trips for each of the ranks, one after another.
// No other messages of the group may be under way.
ClockComparison CompareClocks(const Communicator& group, std::span<const int> ranks,
                              const std::function<double()>& clock);

// A clock between two comparisons of it: seconds of rank 0's clock, straight through both.
double Aligned(double seconds, const ClockComparison& first, const ClockComparison& last);
// Seconds a second by which rank 0's clock is the faster one; 0 if the two are of one moment.
double Drift(const ClockComparison& first, const ClockComparison& last);

}  // namespace trireme::comm

#endif  // TRIREME_COMM_CLOCK_COMPARISON_HPP_
