// The learning-rate schedule: its keys, and the rate of a step.
#include "trireme/optimizer/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::optimizer {

void DeclareSchedule(input::Schema& schema) {
  using input::AtLeast, input::Between;
  constexpr double kMostEpochs = 1e6, kMostSteps = 1e12;  // so that samples stay within 64 bits
  schema.Section("schedule", "How long to train, and at which rate.")
      .Real("schedule.epochs", 1, {0, kMostEpochs, true, false}, "epochs",
            "Length of the run in passes over the training windows.")
      .Integer("schedule.steps", 0, Between(0, kMostSteps), "steps",
               "Length of the run in steps; excludes schedule.epochs. 0: by epochs.")
      .Exclusive({"schedule.epochs", "schedule.steps"})
      .Integer(
          "schedule.stop_at", 0, AtLeast(0), "steps",
          "End after this step with a checkpoint and exit code 0; rates follow the schedule of "
          "the whole. 0: run to the end.")
      .Integer("schedule.warmup_steps", 0, AtLeast(0), "steps",
               "The rate grows linearly to its peak over these.")
      .Choice("schedule.decay", "cosine", {"constant", "cosine", "linear", "wsd"},
              "From the warm-up's end to the last step; wsd: constant, then linear over "
              "schedule.decay_fraction of the steps.")
      .Real("schedule.decay_fraction", 0.2, Between(0, 1), "",
            "Share of all steps in wsd's final decay.")
      .Real("schedule.final_fraction", 0.1, Between(0, 1), "",
            "Rate of the last step, as a fraction of the peak.")
      .Real(
          "schedule.walltime_minutes", 0, AtLeast(0), "minutes",
          "Stop in time: after the step that passes this, write a checkpoint and exit with code 3. "
          "0: no limit.");
}

Schedule ReadSchedule(const input::Deck& deck, double peak, std::int64_t steps_per_epoch) {
  Schedule s;
  s.steps = deck.Integer("schedule.steps");
  if (s.steps == 0) {
    const double epochs = deck.Real("schedule.epochs");
    s.steps =
        std::max<std::int64_t>(1, std::llround(epochs * static_cast<double>(steps_per_epoch)));
  }
  s.stop_at = deck.Integer("schedule.stop_at");
  s.warmup_steps = deck.Integer("schedule.warmup_steps");
  const std::string& decay = deck.Text("schedule.decay");
  s.decay = decay == "constant" ? Decay::kConstant
            : decay == "cosine" ? Decay::kCosine
            : decay == "linear" ? Decay::kLinear
                                : Decay::kWsd;
  s.peak = peak;
  s.decay_fraction = deck.Real("schedule.decay_fraction");
  s.final_fraction = deck.Real("schedule.final_fraction");
  s.walltime_minutes = deck.Real("schedule.walltime_minutes");
  return s;
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

}  // namespace trireme::optimizer
