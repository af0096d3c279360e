// The learning-rate schedule: a pure function of the step.
#ifndef TRIREME_TRAIN_SCHEDULE_HPP_
#define TRIREME_TRAIN_SCHEDULE_HPP_

#include <cstdint>

#include "trireme/train/optimizer_options.hpp"

namespace trireme::train {

struct Schedule {
  std::int64_t steps = 0;    // of the whole run
  std::int64_t stop_at = 0;  // 0: at `steps`
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::kCosine;
  double peak = 1e-3;
  double decay_fraction = 0.2;  // wsd: share of the steps in the final, linear decay
  double final_fraction = 0.1;  // of the peak, at the last step
  double walltime_minutes = 0;  // 0: none

  // The step at which this invocation ends.
  std::int64_t Last() const { return stop_at > 0 && stop_at < steps ? stop_at : steps; }
  // Rate of step s = 1 .. steps: peak s / warmup_steps up to the warm-up's end, then the decay,
  // which reaches final_fraction * peak at s = steps.
  double Rate(std::int64_t step) const;
};

// The schedule with this peak rate. steps_of_epochs: length of a run of options.epochs, for decks
// that give no steps.
Schedule MakeSchedule(const ScheduleOptions& options, double peak, std::int64_t steps_of_epochs);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_SCHEDULE_HPP_
