// Step time that a plan's model of the machine predicts.
#ifndef TRIREME_SRC_TASKS_SCALING_PREDICTED_HPP_
#define TRIREME_SRC_TASKS_SCALING_PREDICTED_HPP_

#include <optional>

#include "points.hpp"

namespace trireme::tasks {

// Seconds of a step; none without a description, and of ranks that share cores, which no
// description knows.
std::optional<double> PredictedStepSeconds(const Point& point,
                                           const std::optional<predict::Machine>& machine);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_PREDICTED_HPP_
