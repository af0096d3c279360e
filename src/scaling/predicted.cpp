// PredictedStepSeconds: a simulated step of the point's plan.
#include "predicted.hpp"

#include "trireme/simulate/prediction.hpp"

namespace trireme::scaling {

std::optional<double> PredictedStepSeconds(const Point& point,
                                           const std::optional<simulate::Machine>& machine) {
  if (!machine || point.room.oversubscribed) return std::nullopt;
  return simulate::Predict(point.plan, *machine).step;
}

}  // namespace trireme::scaling
