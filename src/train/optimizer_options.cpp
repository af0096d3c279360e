// The keys of [optimizer] and [schedule].
#include "trireme/train/optimizer_options.hpp"

#include "trireme/deck/choice.hpp"

namespace trireme::train {

namespace {
constexpr deck::Names<2> kKinds = {"adamw", "sgd"};
constexpr deck::Names<4> kDecays = {"constant", "cosine", "linear", "wsd"};

void DeclareOptimizer(deck::Schema& schema) {
  using deck::AtLeast, deck::Above, deck::HalfOpen;
  schema.Section("optimizer", "How gradients become updates.")
      .Choice("optimizer.kind", "adamw", deck::Choices(kKinds),
              "adamw: decoupled weight decay (Loshchilov and Hutter 2019); sgd: plain.")
      .Real("optimizer.learning_rate", 1e-3, AtLeast(0), "", "Peak of the schedule.")
      .Real("optimizer.beta1", 0.9, HalfOpen(0, 1), "", "Decay of the first moment.")
      .Real("optimizer.beta2", 0.95, HalfOpen(0, 1), "", "Decay of the second moment.")
      .Real("optimizer.epsilon", 1e-8, Above(0), "", "Added to the root of the second moment.")
      .Real("optimizer.weight_decay", 0.1, AtLeast(0), "",
            "Decoupled, times the learning rate; on matrices, not on norms and biases.")
      .Real("optimizer.clip_norm", 1, AtLeast(0), "",
            "Gradients with a larger global norm are scaled down to it. 0: never.")
      .Real("optimizer.label_smoothing", 0, HalfOpen(0, 1), "",
            "Share of the target's probability spread over the vocabulary, in training only.");
}

void DeclareSchedule(deck::Schema& schema) {
  using deck::AtLeast, deck::Between;
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
      .Choice("schedule.decay", "cosine", deck::Choices(kDecays),
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

}  // namespace

void DeclareOptimizerAndSchedule(deck::Schema& schema) {
  DeclareOptimizer(schema);
  DeclareSchedule(schema);
}

OptimizerOptions ReadOptimizer(const deck::Deck& deck) {
  return {.kind = deck::Pick<OptimizerKind>(deck.Text("optimizer.kind"), kKinds),
          .learning_rate = deck.Real("optimizer.learning_rate"),
          .beta1 = deck.Real("optimizer.beta1"),
          .beta2 = deck.Real("optimizer.beta2"),
          .epsilon = deck.Real("optimizer.epsilon"),
          .weight_decay = deck.Real("optimizer.weight_decay"),
          .clip_norm = deck.Real("optimizer.clip_norm"),
          .label_smoothing = deck.Real("optimizer.label_smoothing")};
}

ScheduleOptions ReadSchedule(const deck::Deck& deck) {
  return {.epochs = deck.Real("schedule.epochs"),
          .steps = deck.Integer("schedule.steps"),
          .stop_at = deck.Integer("schedule.stop_at"),
          .warmup_steps = deck.Integer("schedule.warmup_steps"),
          .decay = deck::Pick<Decay>(deck.Text("schedule.decay"), kDecays),
          .decay_fraction = deck.Real("schedule.decay_fraction"),
          .final_fraction = deck.Real("schedule.final_fraction"),
          .walltime_minutes = deck.Real("schedule.walltime_minutes")};
}

}  // namespace trireme::train
