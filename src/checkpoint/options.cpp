// The keys of [checkpoint].
#include "trireme/checkpoint/options.hpp"

namespace trireme::checkpoint {

void Declare(input::Schema& schema) {
  schema.Section("checkpoint", "When the state of a run is saved, and how many states are kept.");
  schema.Integer("checkpoint.every_steps", 500, input::AtLeast(0), "steps",
                 "Write a checkpoint after every so many steps; one always follows the last step. "
                 "0: only that one.");
  schema.Real("checkpoint.every_minutes", 0, input::AtLeast(0), "minutes",
              "Write a checkpoint after every so many minutes of wall time, in addition to "
              "every_steps. 0: never.");
  schema.Integer(
      "checkpoint.keep", 2, input::AtLeast(0), "checkpoints",
      "Keep so many checkpoints, those written last, and remove the others; the targets of "
      "the links best and latest always stay. 0: keep all.");
  schema.Switch("checkpoint.best", true,
                "Let the link checkpoints/best point to the checkpoint with the lowest validation "
                "loss.");
  schema.Text("checkpoint.start_from", "",
              "A checkpoint, or a run folder with one, whose weights a new run starts with; steps, "
              "moments and data order start afresh. Empty: random initial weights.");
}

Options Read(const input::Deck& deck) {
  return {.every_steps = deck.Integer("checkpoint.every_steps"),
          .every_minutes = deck.Real("checkpoint.every_minutes"),
          .keep = deck.Integer("checkpoint.keep"),
          .best = deck.Switch("checkpoint.best"),
          .start_from = deck.Text("checkpoint.start_from")};
}

}  // namespace trireme::checkpoint
