// A small schema with keys of every kind, for the tests of decks.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/deck/keys.hpp"

namespace trireme::deck {

struct Example {
  std::string job_name = "run";
  std::string job_start_from = "";
  std::string job_task = "train";
  std::string data_file = "data/wikitext2.h5";
  std::int64_t data_batch = 16;
  std::int64_t data_seed = 1;
  std::int64_t model_dim = 128;
  double model_dropout = 0.1;
  bool model_bias = true;
  double optimizer_learning_rate = 1e-3;
  double optimizer_epsilon = 1e-8;
  double schedule_epochs = 1.0;
  std::int64_t schedule_steps = 1000;
  std::int64_t checkpoint_every_steps = 0;
  std::int64_t monitor_every_steps = 10;
};

inline void BindExample(Keys keys, Example& o) {
  keys.Section("job", "What to do.")
      .Section("data", "Where tokens come from.")
      .Text("job.name", o.job_name, "Name of the run.")
      .Text("job.start_from", o.job_start_from, "A folder with weights.")
      .Choice("job.task", o.job_task, {"train", "evaluate", "plan"}, "What the program does.")
      .Path("data.file", o.data_file, "The token file.")
      .Integer("data.batch", o.data_batch, AtLeast(1), "sequences",
               "Sequences a step, over all ranks.")
      .Integer("data.seed", o.data_seed, Between(0, 4294967295.0), "", "Seed of the sample order.")
      .Section("model", "The Transformer.")
      .Integer("model.dim", o.model_dim, AtLeast(1), "", "Width.")
      .Real("model.dropout", o.model_dropout, HalfOpen(0.0, 1.0), "", "Probability of dropping.")
      .Switch("model.bias", o.model_bias, "Whether linear layers have biases.")
      .Section("optimizer", "How weights follow gradients.")
      .Real("optimizer.learning_rate", o.optimizer_learning_rate, Above(0.0), "", "Peak rate.")
      .Real("optimizer.epsilon", o.optimizer_epsilon, Between(0.0, 1.0), "", "Guards a division.")
      .Section("schedule", "Length of the run.")
      .Real("schedule.epochs", o.schedule_epochs, Above(0.0), "epochs", "Passes over the data.")
      .Integer("schedule.steps", o.schedule_steps, AtLeast(1), "steps", "Optimizer steps.")
      .Exclusive({"schedule.epochs", "schedule.steps"})
      .Section("checkpoint", "")
      .Integer("checkpoint.every_steps", o.checkpoint_every_steps, AtLeast(0), "steps",
               "Steps between checkpoints.")
      .Section("monitor", "")
      .Integer("monitor.every_steps", o.monitor_every_steps, AtLeast(1), "steps",
               "Steps between records.");
}

inline Schema ExampleSchema() {
  Schema schema;
  Declare(schema, BindExample);
  return schema;
}

}  // namespace trireme::deck
