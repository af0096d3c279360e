// The keys of [optimizer], [schedule] and [plan], and the keys of [run] for steps that go wrong.
#include "trireme/train/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "trireme/data/sampler.hpp"
#include "trireme/deck/keys.hpp"

namespace trireme::train {

namespace {
constexpr deck::Names<4> kKinds = {"adamw", "sgd", "lion", "muon"};
constexpr deck::Names<kParameterGroups> kGroups = {"embedding", "head", "matrices", "norms"};
constexpr deck::Names<4> kDecays = {"constant", "cosine", "linear", "wsd"};

void BindOptimizer(deck::Keys keys, OptimizerOptions& o) {
  using deck::AtLeast, deck::Above, deck::Between, deck::HalfOpen;
  keys.Section("optimizer", "How gradients become updates.")
      .Choice("optimizer.kind", o.kind, kKinds,
              "adamw: decoupled weight decay (Loshchilov and Hutter 2019); sgd: with "
              "optimizer.momentum; lion: signs of a momentum (Chen et al. 2023); muon: "
              "orthogonalised momentum for the matrices of the blocks (Jordan et al. 2024), as "
              "large as AdamW's updates (Liu et al. 2025), and AdamW for all else.")
      .Real("optimizer.learning_rate", o.learning_rate, AtLeast(0), "", "Peak learning rate.")
      .Real("optimizer.beta1", o.beta1, HalfOpen(0, 1), "", "Decay of the first moment.")
      .Real("optimizer.beta2", o.beta2, HalfOpen(0, 1), "", "Decay of the second moment.")
      .Real("optimizer.epsilon", o.epsilon, Above(0), "", "Added to the root of the second moment.")
      .Real("optimizer.momentum", o.momentum, HalfOpen(0, 1), "",
            "For sgd: the update is the sum of all gradients so far, each times this once per step "
            "since. 0: the gradient alone.")
      .Real("optimizer.muon_momentum", o.muon_momentum, HalfOpen(0, 1), "",
            "For muon: decay of the momentum that is orthogonalised (Nesterov's).")
      .Integer("optimizer.muon_iterations", o.muon_iterations, Between(1, 20), "iterations",
               "For muon: Newton-Schulz iterations of an update. Fewer cost less and leave it less "
               "orthogonal.")
      .Text("optimizer.groups", o.groups_text,
            "Rates and decays by kind of parameter: embedding:0.5, head:1:0, matrices:1:0.2, "
            "norms:2 (a name, a factor of the learning rate, a weight decay in place of "
            "optimizer.weight_decay). embedding: tables; head: its own matrix; matrices: those of "
            "the blocks; norms: all vectors. Empty: none differs.")
      .Real("optimizer.weight_decay", o.weight_decay, AtLeast(0), "",
            "Decoupled, times the learning rate; matrices only, not norms and biases. 0: none.")
      .Real("optimizer.average", o.average, Between(0, 1), "",
            "Decay of an exponential average of the weights, which starts as their plain mean; 1 "
            "keeps the mean of all (Polyak and Juditsky 1992). Evaluations, and tasks that read "
            "the checkpoint, use it; the training does not. 0: none.")
      .Integer("optimizer.average_from", o.average_from, AtLeast(0), "steps",
               "Number of first steps whose weights optimizer.average leaves out.")
      .Real("optimizer.clip_norm", o.clip_norm, AtLeast(0), "",
            "Gradients with a larger global norm are scaled down to it. 0: never.")
      .Real("optimizer.label_smoothing", o.label_smoothing, HalfOpen(0, 1), "",
            "Share of the target's probability spread over the vocabulary, in training only.")
      .Real("optimizer.z_loss", o.z_loss, AtLeast(0), "",
            "Training also minimises this times (ln Z)^2, Z the sum of the exponentials of a "
            "target's logits, which keeps logits from drifting (Chowdhery et al. 2022; 1e-4 is "
            "usual). Losses are reported without it. 0: none.");
}

void BindSchedule(deck::Keys keys, ScheduleOptions& o) {
  using deck::AtLeast, deck::Between;
  constexpr double kMostEpochs = 1e6, kMostSteps = 1e12;  // so that counts of samples fit 64 bits
  keys.Section("schedule", "How long to train, and at which rate.")
      .Real("schedule.epochs", o.epochs, {0, kMostEpochs, true, false}, "epochs",
            "Length of the run in passes over the training windows.")
      .Integer("schedule.steps", o.steps, Between(0, kMostSteps), "steps",
               "Length of the run in steps. 0: set by schedule.epochs.")
      .Exclusive({"schedule.epochs", "schedule.steps"})
      .Integer("schedule.stop_at", o.stop_at, AtLeast(0), "steps",
               "End after this step, with a checkpoint and exit code 0; learning rates are those "
               "of the full schedule. 0: run to the end.")
      .Integer("schedule.warmup_steps", o.warmup_steps, AtLeast(0), "steps",
               "Number of first steps over which the learning rate grows linearly to its peak.")
      .Integer("schedule.batch_ramp", o.batch_ramp, Between(0, data::kMostRampSteps), "steps",
               "Number of first steps over which the batch grows linearly from "
               "schedule.batch_start to data.batch, in whole windows, rounded down (Smith et al. "
               "2018). 0: every batch is whole.")
      .Integer("schedule.batch_start", o.batch_start, AtLeast(1), "windows",
               "With schedule.batch_ramp: the windows of the first step.")
      .Choice("schedule.decay", o.decay, kDecays,
              "How the learning rate changes from the warm-up's end to the last step. wsd: "
              "constant, then linear over schedule.decay_fraction of all steps.")
      .Real("schedule.decay_fraction", o.decay_fraction, Between(0, 1), "",
            "Share of all steps in the final decay of decay = wsd.")
      .Real("schedule.final_fraction", o.final_fraction, Between(0, 1), "",
            "Learning rate of the last step as a fraction of the peak; ignored by constant.")
      .Real("schedule.walltime_minutes", o.walltime_minutes, AtLeast(0), "minutes",
            "Time limit: after the step that passes it, write a checkpoint and exit with code 3. "
            "0: no limit.");
}

}  // namespace

void DeclareOptimizerAndSchedule(deck::Schema& schema) {
  deck::Declare(schema, BindOptimizer);
  deck::Declare(schema, BindSchedule);
}

namespace {

constexpr const char* kGroupsKey = "optimizer.groups";
constexpr const char* kGroupForms =
    "Write optimizer.groups = embedding:0.5, matrices:1:0.2 (a name, a factor of the learning "
    "rate, a weight decay); names are embedding, head, matrices, norms.";

// A finite number of at least 0.
std::optional<double> NumberOf(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size();
  return read && value >= 0 && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// "name:rate" or "name:rate:decay", with commas between them.
void ReadGroups(OptimizerOptions& options, const deck::Deck& deck) {
  std::array<bool, kParameterGroups> given{};
  for (const std::string_view entry :
       data::DeckList(options.groups_text, kGroupsKey, kGroupForms, deck)) {
    const auto refuse = [&](const std::string& what) {
      return deck.Complain(
          kGroupsKey, fmt::format("'{}' {}", deck::Shown(std::string(entry)), what), kGroupForms);
    };
    const std::size_t colon = entry.find(':'), second = entry.find(':', colon + 1);
    const std::string_view name = deck::Trimmed(entry.substr(0, colon));
    const auto* const place = std::find(kGroups.begin(), kGroups.end(), name);
    if (place == kGroups.end()) throw refuse("is not one of the groups");
    const auto which = static_cast<std::size_t>(place - kGroups.begin());
    if (given.at(which)) throw refuse("names a group for the second time");
    given.at(which) = true;
    if (colon == std::string_view::npos) throw refuse("has no factor of the learning rate");
    const std::optional<double> rate =
        NumberOf(deck::Trimmed(entry.substr(colon + 1, second - colon - 1)));
    if (!rate) throw refuse("needs a factor of at least 0 after its name");
    options.groups.at(which).rate = *rate;
    if (second == std::string_view::npos) continue;
    options.groups.at(which).decay = NumberOf(deck::Trimmed(entry.substr(second + 1)));
    if (!options.groups.at(which).decay) throw refuse("needs a decay of at least 0 at its end");
  }
}

}  // namespace

OptimizerOptions ReadOptimizer(const deck::Deck& deck) {
  OptimizerOptions options = deck::Read(deck, BindOptimizer);
  const auto only = [&](const char* key, OptimizerKind kind) {
    deck.RefuseUnused(
        options.kind != kind, key,
        fmt::format("belongs to optimizer.kind = {}", kKinds.at(static_cast<std::size_t>(kind))),
        "Leave it out, or choose that kind.");
  };
  only("optimizer.momentum", OptimizerKind::kSgd);
  only("optimizer.muon_momentum", OptimizerKind::kMuon);
  only("optimizer.muon_iterations", OptimizerKind::kMuon);
  deck.RefuseUnused(options.average == 0, "optimizer.average_from",
                    "there is no average of the weights",
                    "Leave it out, or give optimizer.average, such as 0.999.");
  if (!options.groups_text.empty()) ReadGroups(options, deck);
  return options;
}

ScheduleOptions ReadSchedule(const deck::Deck& deck) {
  const ScheduleOptions options = deck::Read(deck, BindSchedule);
  deck.RefuseUnused(options.batch_ramp == 0, "schedule.batch_start",
                    "belongs to schedule.batch_ramp",
                    "Leave it out, or say over how many steps the batch grows.");
  return options;
}

// The keys of [run] for steps that go wrong.

namespace {
constexpr deck::Names<2> kAnswers = {"report", "rollback"};
constexpr double kMostWindow = 10'000;  // losses; a checkpoint keeps them all

void BindSafeguards(deck::Keys keys, SafeguardOptions& o) {
  keys.Integer(
          "run.max_bad_steps", o.max_bad_steps, deck::AtLeast(0), "steps",
          "How many bad steps in a row are tolerated: steps whose loss or gradient is not finite, "
          "or none of whose targets count. Each leaves weights and moments as they are and counts "
          "as done; one more ends the run with code 1. 0: the first one ends it.")
      .Integer("run.spike_window", o.spike_window, deck::Between(0, kMostWindow), "steps",
               "A loss is a spike if it lies more than run.spike_threshold standard deviations "
               "above the mean of this many losses before it. 0: spikes are not looked for.")
      .Real("run.spike_threshold", o.spike_threshold, deck::Above(0), "standard deviations",
            "Standard deviations above the mean of run.spike_window that count as a spike; a "
            "standard deviation counts as at least 0.1% of the mean.")
      .Choice("run.on_spike", o.on_spike, kAnswers,
              "report: a warning and an event. rollback: also go back to the last checkpoint, and "
              "on from there with the samples that follow the spike (Chowdhery et al. 2022, "
              "section 5.1).")
      .Integer("run.max_rollbacks", o.max_rollbacks, deck::AtLeast(0), "times",
               "With run.on_spike = rollback: how often the run may go back to one checkpoint; "
               "later spikes are only reported, until the next checkpoint.");
}

}  // namespace

void DeclareSafeguards(deck::Schema& schema) { deck::Declare(schema, BindSafeguards); }

SafeguardOptions ReadSafeguards(const deck::Deck& deck) { return deck::Read(deck, BindSafeguards); }

// The keys of [plan], and reading all sections that decide on a plan.

namespace {
constexpr double kLargestVocabulary = std::numeric_limits<std::int32_t>::max();
constexpr double kMostRows = 10'000;
constexpr double kMostTokens = 0x1p50;  // so that steps times tokens fit 64 bits

void BindPlan(deck::Keys keys, PlanOptions& o) {
  keys.Section("plan",
               "Layouts and their times on a machine that need not be there (job.task = plan).")
      .Integer("plan.vocabulary", o.vocabulary, deck::Between(2, kLargestVocabulary), "tokens",
               "Vocabulary to assume if data.file is not there. model.vocabulary takes precedence.")
      .Integer("plan.tokens", o.tokens, deck::Between(2, kMostTokens), "tokens",
               "Training tokens to assume if data.file is not there.")
      .Path(
          "plan.machine", o.machine,
          "Machine whose speeds predict a step: the name of a description in input/machines/, or a "
          "path (trireme --calibrate writes one). auto: h100 for job.task = plan; for a run on "
          "GPUs, their own; for a run on CPUs of a minute or more, a short calibration at its end.")
      .Integer("plan.nodes", o.nodes, deck::Between(0, comm::kMostRanks), "nodes",
               "Nodes to plan for. 0: those of grid.ranks, or one.")
      .Integer("plan.rows", o.rows, deck::Between(1, kMostRows), "layouts",
               "Number of layouts to show.")
      .Integer("plan.simulate", o.simulate, deck::Between(0, kMostRows), "layouts",
               "Layouts to simulate: the best by a quick estimate. 0: only the deck's own.")
      .Path(
          "plan.timeline", o.timeline,
          "File for the timeline of the fastest layout, which ui.perfetto.dev opens. Empty: none.");
}

}  // namespace

void DeclarePlan(deck::Schema& schema) { deck::Declare(schema, BindPlan); }

PlanOptions ReadPlan(const deck::Deck& deck) { return deck::Read(deck, BindPlan); }

// Rates and decays of the blocks' matrices with model.parametrization = mup; those of all else stay
// as in the base model. Let a model be m times as wide. Updates of AdamW and Lion have the same
// size in each element: added up over m times as many inputs, they must be 1 / m as large (Yang et
// al. 2022, table 8). Muon's are orthogonal matrices times sqrt(max(rows, columns)), so they
// already act on their inputs sqrt(m) times as strongly, and no more (the spectral condition of
// Yang et al. 2023, arXiv:2310.17813). The product of rate and decay, by which weights shrink,
// stays.
static void ScaleRates(const deck::Deck& deck, const model::Options& model, OptimizerOptions& o) {
  if (model.parametrization == model::Parametrization::kStandard) return;
  if (o.kind == OptimizerKind::kSgd) {
    throw deck.Complain("optimizer.kind", "sgd has no rates for model.parametrization = mup",
                        "Use adamw, lion or muon, or model.parametrization = standard.");
  }
  const double m = model.WidthFactor();
  const double slower = o.kind == OptimizerKind::kMuon ? std::sqrt(m) : m;
  GroupOptions& matrices = o.groups.at(static_cast<std::size_t>(ParameterGroup::kMatrices));
  matrices.rate /= slower;
  matrices.decay = matrices.decay.value_or(o.weight_decay) * slower;
}

DeckOptions ReadAll(const deck::Deck& deck) {
  DeckOptions options{.machine = device::Read(deck),
                      .comm = comm::Read(deck),
                      .parallel = parallel::Read(deck),
                      .data = data::Read(deck),
                      .model = model::Read(deck),
                      .optimizer = ReadOptimizer(deck),
                      .schedule = ReadSchedule(deck),
                      .plan = ReadPlan(deck)};
  ScaleRates(deck, options.model, options.optimizer);
  const std::int64_t rows = options.model.asked_vocabulary;
  if (rows > 0) options.plan.vocabulary = rows;
  return options;
}

}  // namespace trireme::train
