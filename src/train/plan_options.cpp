// The keys of [plan], and the reading of the sections that a plan follows from.
#include "trireme/train/plan_options.hpp"

#include <limits>

namespace trireme::train {

namespace {
constexpr double kLargestVocabulary = std::numeric_limits<std::int32_t>::max();
constexpr double kMostRows = 10'000;
constexpr double kMostTokens = 0x1p50;  // steps times tokens stay within 64 bits
}  // namespace

void DeclarePlan(deck::Schema& schema) {
  const PlanOptions defaults;
  schema
      .Section("plan",
               "job.task = plan: layouts, and their times, on a machine that need not be there.")
      .Integer("plan.vocabulary", defaults.vocabulary, deck::Between(2, kLargestVocabulary),
               "tokens",
               "Vocabulary of a plan where data.file is not there. model.vocabulary beats it.")
      .Integer("plan.tokens", defaults.tokens, deck::Between(2, kMostTokens), "tokens",
               "Training tokens of a plan where data.file is not there.")
      .Path("plan.machine", defaults.machine,
            "Machine whose speeds predict a step: the name of a description in input/machines/, or "
            "a path (trireme --calibrate writes one). auto: h100 for job.task = plan; for a run, "
            "its GPU's, or a short calibration at the end of a minute or more on CPUs.")
      .Integer("plan.nodes", defaults.nodes, deck::Between(0, comm::kMostRanks), "nodes",
               "Nodes to plan for. 0: those of grid.ranks, or one.")
      .Integer("plan.rows", defaults.rows, deck::Between(1, kMostRows), "layouts",
               "Layouts that job.task = plan shows.")
      .Integer("plan.simulate", defaults.simulate, deck::Between(0, kMostRows), "layouts",
               "Layouts that are simulated: those that an estimate puts first. 0: the deck's own "
               "alone.")
      .Path("plan.timeline", defaults.timeline,
            "File for the timeline of the first layout shown, a trace for Perfetto. Empty: none.");
}

PlanOptions ReadPlan(const deck::Deck& deck) {
  return {.vocabulary = deck.Integer("plan.vocabulary"),
          .tokens = deck.Integer("plan.tokens"),
          .machine = deck.Text("plan.machine"),
          .nodes = deck.Integer("plan.nodes"),
          .rows = deck.Integer("plan.rows"),
          .simulate = deck.Integer("plan.simulate"),
          .timeline = deck.Text("plan.timeline")};
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
  const std::int64_t rows = options.model.asked_vocabulary;
  if (rows > 0) options.plan.vocabulary = rows;
  return options;
}

}  // namespace trireme::train
