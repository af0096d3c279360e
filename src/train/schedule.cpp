// The learning-rate schedule: its length in steps, and the rate of a step.
#include "trireme/train/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::train {

Schedule MakeSchedule(const ScheduleOptions& options, double peak, std::int64_t steps_of_epochs) {
  return {.steps = options.steps > 0 ? options.steps : steps_of_epochs,
          .stop_at = options.stop_at,
          .warmup_steps = options.warmup_steps,
          .decay = options.decay,
          .peak = peak,
          .decay_fraction = options.decay_fraction,
          .final_fraction = options.final_fraction,
          .walltime_minutes = options.walltime_minutes};
}

double Schedule::Rate(std::int64_t step) const {
  if (step <= warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  double begin = static_cast<double>(warmup_steps);
  if (decay == Decay::kWsd) {
    begin = std::max(begin, static_cast<double>(steps) * (1 - decay_fraction));
  }
  const double span = std::max(1.0, static_cast<double>(steps) - begin);
  const double progress = std::clamp((static_cast<double>(step) - begin) / span, 0.0, 1.0);
  switch (decay) {
    case Decay::kConstant:
      return peak;
    case Decay::kCosine:
      return peak * (final_fraction +
                     (1 - final_fraction) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
    default:
      return peak * (1 - (1 - final_fraction) * progress);
  }
}

}  // namespace trireme::train
