// Step time that a plan's model of the machine predicts.
#ifndef TRIREME_SRC_SCALING_PREDICTED_HPP_
#define TRIREME_SRC_SCALING_PREDICTED_HPP_

#include <optional>

#include "trireme/plan/plan.hpp"

namespace trireme::scaling {

// Seconds of a step; none: nothing predicts it.
std::optional<double> PredictedStepSeconds(const plan::Plan& plan);

}  // namespace trireme::scaling

#endif  // TRIREME_SRC_SCALING_PREDICTED_HPP_
