// The sections [optimizer], [schedule] and [plan], and keys of [run] for steps that go wrong.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "trireme/comm/options.hpp"
#include "trireme/data/options.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::train {

enum class OptimizerKind { kAdamW, kSgd, kLion, kMuon };

enum class Decay { kConstant, kCosine, kLinear, kWsd };  // of the learning rate after the warm-up

// Parameters that share a rate and a decay: the embedding's tables, the head's matrix, the matrices
// of the blocks, and all vectors (norms and biases).
enum class ParameterGroup { kEmbedding, kHead, kMatrices, kNorms };
inline constexpr std::size_t kParameterGroups = 4;

struct GroupOptions {
  double rate = 1;              // factor of the learning rate
  std::optional<double> decay;  // in place of optimizer.weight_decay, for vectors too
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;  // peak of the schedule
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double momentum = 0;          // sgd
  double muon_momentum = 0.95;  // muon
  int muon_iterations = 5;      // muon: Newton-Schulz iterations of an update
  double weight_decay = 0.1;    // of matrices; norms and biases have none
  std::array<GroupOptions, kParameterGroups> groups = {};  // by ParameterGroup
  std::string groups_text = {};                            // as the deck gives them
  double average = 0;  // of the weights: decay of an exponential mean; 1: plain mean; 0: none
  std::int64_t average_from = 0;  // steps whose weights it leaves out
  double clip_norm = 1;           // 0: no clipping
  double label_smoothing = 0;
  double z_loss = 0;  // factor of (ln Z)^2 in what is minimised
};

struct ScheduleOptions {
  double epochs = 1;         // passes over the training windows; ignored if steps > 0
  std::int64_t steps = 0;    // of the whole run; 0: `epochs` decides
  std::int64_t stop_at = 0;  // step that ends this invocation; 0: the last one
  std::int64_t warmup_steps = 0;
  std::int64_t batch_ramp = 0;   // steps over which the batch grows; 0: it does not
  std::int64_t batch_start = 1;  // windows of the first step then
  Decay decay = Decay::kCosine;
  double decay_fraction = 0.2;  // wsd: share of all steps in the final, linear decay
  double final_fraction = 0.1;  // rate of the last step / peak
  double walltime_minutes = 0;  // 0: no limit
};

void DeclareOptimizerAndSchedule(deck::Schema& schema);  // [optimizer], [schedule]

OptimizerOptions ReadOptimizer(const deck::Deck& deck);
ScheduleOptions ReadSchedule(const deck::Deck& deck);

// Keys of [run] for steps that go wrong: values that are not finite, and spikes of the loss.

enum class OnSpike { kReport, kRollback };

struct SafeguardOptions {
  std::int64_t max_bad_steps = 0;   // steps in a row without update that do not yet end the run
  std::int64_t spike_window = 100;  // losses to compare a loss with; 0: no detection
  double spike_threshold = 6;       // standard deviations above their mean that make a spike
  OnSpike on_spike = OnSpike::kReport;
  std::int64_t max_rollbacks = 3;  // most rollbacks to one checkpoint
};

void DeclareSafeguards(deck::Schema& schema);  // adds to [run]

SafeguardOptions ReadSafeguards(const deck::Deck& deck);

// The [plan] section, and below it the options of all sections from which a plan is made.

// What job.task = plan assumes about a token file and a machine that need not exist.
struct PlanOptions {
  std::int64_t vocabulary = 50257;      // tokens
  std::int64_t tokens = 1'000'000'000;  // of the training split
  // Name or path of a machine's description (predict::ReadMachine); "auto": the result of
  // predict::DescribeRun for a run; "h100" for job.task = plan.
  std::string machine = "auto";
  std::int64_t nodes = 0;      // to plan for; 0: those of grid.ranks, or one
  std::int64_t rows = 10;      // layouts to show
  std::int64_t simulate = 16;  // layouts to simulate
  std::string timeline;        // file for the first layout's timeline; empty: none
};

// The options of all sections that decide on a plan.
struct DeckOptions {
  device::Options machine;
  comm::Options comm;
  parallel::Options parallel;
  data::Options data;
  model::Options model;  // vocabulary not set (model::WithVocabulary sets it)
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  PlanOptions plan;
};

void DeclarePlan(deck::Schema& schema);  // [plan]

PlanOptions ReadPlan(const deck::Deck& deck);

// Reads all sections of DeckOptions; the optimizer's groups get the factors that
// model.parametrization = mup has for the width. InputError with the deck's line if values
// contradict each other.
DeckOptions ReadAll(const deck::Deck& deck);

}  // namespace trireme::train
