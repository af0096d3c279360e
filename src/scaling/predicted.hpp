// Step time that a plan's model of the machine predicts.
#ifndef TRIREME_SRC_SCALING_PREDICTED_HPP_
#define TRIREME_SRC_SCALING_PREDICTED_HPP_

#include <optional>

#include "points.hpp"

namespace trireme::scaling {

// Seconds of a step; none without a description, and of ranks that share cores, which no
// description knows.
std::optional<double> PredictedStepSeconds(const Point& point,
                                           const std::optional<simulate::Machine>& machine);

}  // namespace trireme::scaling

#endif  // TRIREME_SRC_SCALING_PREDICTED_HPP_
