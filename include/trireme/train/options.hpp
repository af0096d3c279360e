// The [optimizer] and [schedule] sections.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/options.hpp"
#include "trireme/data/options.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::train {

enum class OptimizerKind { kAdamW, kSgd };
enum class Decay { kConstant, kCosine, kLinear, kWsd };  // of the learning rate after the warm-up

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;  // peak of the schedule
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;  // on matrices; none on norms and biases
  double clip_norm = 1;       // 0: never
  double label_smoothing = 0;
};

struct ScheduleOptions {
  double epochs = 1;         // passes over the training windows; of no effect if steps > 0
  std::int64_t steps = 0;    // of the whole run; 0: by epochs
  std::int64_t stop_at = 0;  // step that ends this invocation; 0: the last one
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::kCosine;
  double decay_fraction = 0.2;  // wsd: share of all steps in the final, linear decay
  double final_fraction = 0.1;  // of the peak, at the last step
  double walltime_minutes = 0;  // 0: no limit
};

void DeclareOptimizerAndSchedule(deck::Schema& schema);  // [optimizer], [schedule]

OptimizerOptions ReadOptimizer(const deck::Deck& deck);
ScheduleOptions ReadSchedule(const deck::Deck& deck);

// Keys of [run] about steps that go wrong: values that are not finite, and spikes of the loss.

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

// The [plan] section, and the options of all sections from which a plan is made.

// The facts of a token file that is not there, and of a machine that is not.
struct PlanOptions {
  std::int64_t vocabulary = 50257;      // tokens
  std::int64_t tokens = 1'000'000'000;  // of the train split
  // Name or path of a description (predict::ReadMachine); "auto": predict::DescribeRun for a run,
  // h100 for the task plan.
  std::string machine = "auto";
  std::int64_t nodes = 0;      // to plan for; 0: grid.ranks, or one
  std::int64_t rows = 10;      // layouts to show
  std::int64_t simulate = 16;  // layouts to simulate
  std::string timeline;        // file of the fastest layout's timeline; empty: none
};

// PlanOptions of the sections that a plan follows from.
struct DeckOptions {
  device::Options machine;
  comm::Options comm;
  parallel::Options parallel;
  data::Options data;
  model::Options model;  // without the vocabulary (model::WithVocabulary)
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  PlanOptions plan;
};

void DeclarePlan(deck::Schema& schema);  // [plan]

PlanOptions ReadPlan(const deck::Deck& deck);

// Every section of DeckOptions. Throws InputError with the deck's line for values that contradict
// each other.
DeckOptions ReadAll(const deck::Deck& deck);

}  // namespace trireme::train
