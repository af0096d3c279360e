// PredictedStepSeconds: a simulated step of the point's plan.
#include "predicted.hpp"

#include "trireme/predict/prediction.hpp"

namespace trireme::tasks {

std::optional<double> PredictedStepSeconds(const Point& point,
                                           const std::optional<predict::Machine>& machine) {
  if (!machine || point.room.oversubscribed) return std::nullopt;
  return predict::Predict(point.plan, *machine).step;
}

}  // namespace trireme::tasks
