// Fit of a machine's description to measured steps.
#ifndef TRIREME_SRC_PREDICT_FIT_HPP_
#define TRIREME_SRC_PREDICT_FIT_HPP_

#include <vector>

#include "trireme/predict/machine.hpp"
#include "work.hpp"

namespace trireme::predict {

struct Observation {
  Work work;
  double seconds = 0;  // that a step took
};

// Seconds of a step by the description, with the formulas of a simulation.
double SecondsOf(const Work& work, const Machine& machine);

// Numbers x >= 0 that make the sum of squares of 1 - (rows x) least (Lawson and Hanson 1974, by
// trying all sets of columns: there are a few). rows: [observations, columns].
std::vector<double> LeastSquares(const std::vector<std::vector<double>>& rows);

// Sets efficiencies and halves of the types that the observations have, the efficiency of
// attention, and the speed and times of kernels and steps so that the relative differences of
// SecondsOf to the observations are least. The peaks of those types must be set; a peak rises where
// steps exceed it.
void Fit(const std::vector<Observation>& observations, Machine& machine);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_FIT_HPP_
