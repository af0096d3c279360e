// Keys of [run] about steps that go wrong: values that are not finite, and spikes of the loss.
#ifndef TRIREME_TRAINING_OPTIONS_HPP_
#define TRIREME_TRAINING_OPTIONS_HPP_

#include <cstdint>

#include "trireme/input/deck.hpp"

namespace trireme::training {

enum class OnSpike { kReport, kRollback };

struct Options {
  std::int64_t max_bad_steps = 0;   // in a row, whose update is left out; the next one ends the run
  std::int64_t spike_window = 100;  // losses that a loss is compared with; 0: no spikes are sought
  double spike_threshold = 6;       // standard deviations above their mean
  OnSpike on_spike = OnSpike::kReport;
  std::int64_t max_rollbacks = 3;  // to one checkpoint
};

void Declare(input::Schema& schema);  // adds to [run]

Options Read(const input::Deck& deck);

}  // namespace trireme::training

#endif  // TRIREME_TRAINING_OPTIONS_HPP_
