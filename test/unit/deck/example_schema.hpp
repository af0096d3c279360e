// A small schema with keys of every kind, for the tests of decks.
#pragma once

#include "trireme/deck/schema.hpp"

namespace trireme::deck {

inline Schema ExampleSchema() {
  Schema schema;
  schema.Section("job", "What to do.")
      .Section("data", "Where tokens come from.")
      .Text("job.name", "run", "Name of the run.")
      .Text("job.start_from", "", "A folder with weights.")
      .Choice("job.task", "train", {"train", "evaluate", "plan"}, "What the program does.")
      .Path("data.file", "data/wikitext2.h5", "The token file.")
      .Integer("data.batch", 16, AtLeast(1), "sequences", "Sequences a step, over all ranks.")
      .Integer("data.seed", 1, Between(0, 4294967295.0), "", "Seed of the sample order.")
      .Section("model", "The Transformer.")
      .Integer("model.dim", 128, AtLeast(1), "", "Width.")
      .Real("model.dropout", 0.1, HalfOpen(0.0, 1.0), "", "Probability of dropping.")
      .Switch("model.bias", true, "Whether linear layers have biases.")
      .Section("optimizer", "How weights follow gradients.")
      .Real("optimizer.learning_rate", 1e-3, Above(0.0), "", "Peak rate.")
      .Real("optimizer.epsilon", 1e-8, Between(0.0, 1.0), "", "Guards a division.")
      .Section("schedule", "Length of the run.")
      .Real("schedule.epochs", 1.0, Above(0.0), "epochs", "Passes over the data.")
      .Integer("schedule.steps", 1000, AtLeast(1), "steps", "Optimizer steps.")
      .Exclusive({"schedule.epochs", "schedule.steps"})
      .Section("checkpoint", "")
      .Integer("checkpoint.every_steps", 0, AtLeast(0), "steps", "Steps between checkpoints.")
      .Section("monitor", "")
      .Integer("monitor.every_steps", 10, AtLeast(1), "steps", "Steps between records.");
  return schema;
}

}  // namespace trireme::deck
