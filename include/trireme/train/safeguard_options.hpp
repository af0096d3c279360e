// Keys of [run] about steps that go wrong: values that are not finite, and spikes of the loss.
#ifndef TRIREME_TRAIN_SAFEGUARD_OPTIONS_HPP_
#define TRIREME_TRAIN_SAFEGUARD_OPTIONS_HPP_

#include <cstdint>

#include "trireme/deck/deck.hpp"

namespace trireme::train {

enum class OnSpike { kReport, kRollback };

struct SafeguardOptions {
  std::int64_t max_bad_steps = 0;   // in a row, whose update is left out; the next one ends the run
  std::int64_t spike_window = 100;  // losses that a loss is compared with; 0: no spikes are sought
  double spike_threshold = 6;       // standard deviations above their mean
  OnSpike on_spike = OnSpike::kReport;
  std::int64_t max_rollbacks = 3;  // to one checkpoint
};

void DeclareSafeguards(deck::Schema& schema);  // adds to [run]

SafeguardOptions ReadSafeguards(const deck::Deck& deck);

}  // namespace trireme::train

#endif  // TRIREME_TRAIN_SAFEGUARD_OPTIONS_HPP_
