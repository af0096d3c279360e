// The best interval between checkpoints on a machine that fails now and then.
#ifndef TRIREME_CHECKPOINT_INTERVAL_HPP_
#define TRIREME_CHECKPOINT_INTERVAL_HPP_

namespace trireme::checkpoint {

// Seconds of work between two checkpoints, writing excluded, for which the expected time of a run
// is least. cost_seconds: how long writing one delays the run. mtbf_seconds: mean time between
// failures of the whole job, which come at random (exponentially distributed). J. T. Daly, "A
// higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
// Computer Systems 22 (2006) 303-312, doi:10.1016/j.future.2004.11.016, the higher-order estimate;
// its first term is J. W. Young's of 1974. Throws RunError unless both are positive and finite.
double YoungDaly(double cost_seconds, double mtbf_seconds);
inline constexpr double kLeastCost = 1e-3;  // seconds, in the place of a cost of zero

}  // namespace trireme::checkpoint

#endif  // TRIREME_CHECKPOINT_INTERVAL_HPP_
