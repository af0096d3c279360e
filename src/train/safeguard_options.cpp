// The keys of [run] about steps that go wrong.
#include "trireme/train/safeguard_options.hpp"

#include "trireme/deck/choice.hpp"

namespace trireme::train {

namespace {
constexpr deck::Names<2> kAnswers = {"report", "rollback"};
constexpr double kMostWindow = 10'000;  // losses, all of which a checkpoint keeps
}  // namespace

void DeclareSafeguards(deck::Schema& schema) {
  constexpr SafeguardOptions kDefaults;
  schema.Integer(
      "run.max_bad_steps", kDefaults.max_bad_steps, deck::AtLeast(0), "steps",
      "A step whose loss or gradient is not finite, or none of whose targets count, leaves weights "
      "and moments as they are and counts as done, so many times in a row; the next one ends the "
      "run with code 1. 0: the first one does.");
  schema.Integer(
      "run.spike_window", kDefaults.spike_window, deck::Between(0, kMostWindow), "steps",
      "A loss is a spike if it lies more than run.spike_threshold standard deviations above the "
      "mean of so many losses before it. 0: spikes are not sought.");
  schema.Real("run.spike_threshold", kDefaults.spike_threshold, deck::Above(0),
              "standard deviations",
              "Of the losses in run.spike_window, and at least 0.1% of their mean each.");
  schema.Choice(
      "run.on_spike", "report", deck::Choices(kAnswers),
      "report: a warning and an event. rollback: also go back to the last checkpoint, and on from "
      "there with the samples that follow the spike (Chowdhery et al. 2022, section 5.1).");
  schema.Integer("run.max_rollbacks", kDefaults.max_rollbacks, deck::AtLeast(0), "times",
                 "With run.on_spike = rollback: goes back to one checkpoint so often at most; "
                 "later spikes are only reported, until the next checkpoint.");
}

SafeguardOptions ReadSafeguards(const deck::Deck& deck) {
  return {.max_bad_steps = deck.Integer("run.max_bad_steps"),
          .spike_window = deck.Integer("run.spike_window"),
          .spike_threshold = deck.Real("run.spike_threshold"),
          .on_spike = deck::Pick<OnSpike>(deck.Text("run.on_spike"), kAnswers),
          .max_rollbacks = deck.Integer("run.max_rollbacks")};
}

}  // namespace trireme::train
