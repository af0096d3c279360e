// Softmax of the logits of a vocabulary, in fp64.
#ifndef TRIREME_TASKS_LOG_SOFTMAX_HPP_
#define TRIREME_TASKS_LOG_SOFTMAX_HPP_

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::tasks {

// Smallest and largest of some numbers, of which there is one at least and none is NaN.
struct Extremes {
  double least = 0, most = 0;
};
Extremes ExtremesOf(std::span<const double> values);

// Replaces weights by exp((logits[i] - top) / temperature), within 3e-16 relative, and returns
// their sum. top: the largest logit, or more.
double Weigh(std::span<const double> logits, double top, double temperature,
             std::vector<double>& weights);

// Whether a token can be chosen: no logit is infinite or NaN.
bool AllFinite(std::span<const double> logits);

// log softmax(logits)[token], in nats.
double LogProbability(std::span<const double> logits, std::int32_t token);

// Logarithm of the sum of exponentials: less it, a logit is the logarithm of a probability, in
// nats.
double LogSumOfExponentials(std::span<const double> logits);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_LOG_SOFTMAX_HPP_
