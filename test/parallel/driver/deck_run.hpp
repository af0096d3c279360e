// A training run described by a deck's text, in the deck's layout and serially.
#ifndef TRIREME_TEST_PARALLEL_DRIVER_DECK_RUN_HPP_
#define TRIREME_TEST_PARALLEL_DRIVER_DECK_RUN_HPP_

#include <cmath>
#include <string>

#include "plan_of.hpp"
#include "rule_four.hpp"
#include "training_run.hpp"

namespace trireme::test {
// A planned run's settings, with gradients kept to be compared.
inline RunSettings SettingsOf(const train::Plan& plan) {
  RunSettings settings;
  static_cast<train::TrainingOptions&>(settings) = plan.options;
  settings.stream = plan.machine.stream;
  settings.keep_gradients = true;
  settings.grid = plan.grid;
  settings.options = plan.sharing;
  return settings;
}

// The settings of `text` on `ranks` ranks; 1: the serial run, whose grid, schedule and
// recomputation keys are dropped. InputError where the layout does not fit.
inline RunSettings SettingsOf(const std::string& text, const data::TokenFile& tokens, int ranks,
                              Dtype dtype) {
  std::vector<std::string> keys;
  if (ranks == 1) {
    keys = {"grid.data=1",
            "grid.context=1",
            "grid.tensor=1",
            "grid.pipeline=1",
            "grid.sequence_parallel=no",
            "grid.sharding=none",
            "grid.shard_group=0",
            "pipeline.schedule=1f1b",
            "pipeline.chunks=1",
            "model.recompute=none"};
  }
  return SettingsOf(PlanOf(text, tokens, ranks, dtype, keys));
}

// Results of a run, to compare.
struct Outcome {
  std::vector<double> losses;
  double norm = 0;  // of the last gradient
  Tensors gradients, weights;
};

inline Outcome RunDeck(const comm::Communicator& group, const data::Corpus& tokens,
                       const RunSettings& settings, std::int64_t steps) {
  TrainingRun run(group, tokens, settings);
  Outcome outcome;
  outcome.losses = run.Train(steps);
  outcome.norm = run.Last().gradient_norm;
  outcome.gradients = run.Gradients();
  outcome.weights = run.Weights();
  return outcome;
}

// Largest relative difference; NaN when one is.
inline double WorstRelative(const std::vector<double>& got, const std::vector<double>& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::abs(got.at(i) - wanted[i]) / std::abs(wanted[i]);
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
  }
  return worst;
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_DRIVER_DECK_RUN_HPP_
