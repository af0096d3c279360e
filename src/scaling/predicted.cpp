// The place at which a simulator of plans joins: the column predicted_step_seconds.
#include "predicted.hpp"

namespace trireme::scaling {

std::optional<double> PredictedStepSeconds(const plan::Plan& /*plan*/) { return std::nullopt; }

}  // namespace trireme::scaling
