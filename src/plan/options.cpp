// The keys of [plan], and the reading of the sections that a plan follows from.
#include "trireme/plan/options.hpp"

#include <limits>

namespace trireme::plan {

namespace {
constexpr double kLargestVocabulary = std::numeric_limits<std::int32_t>::max();
constexpr double kMostTokens = 0x1p50;  // steps times tokens stay within 64 bits
}  // namespace

void Declare(input::Schema& schema) {
  constexpr Options kDefaults;
  schema.Section("plan", "Facts of the token file for a plan that is made before the file is.")
      .Integer("plan.vocabulary", kDefaults.vocabulary, input::Between(2, kLargestVocabulary),
               "tokens",
               "Vocabulary of a plan where data.file is not there. model.vocabulary beats it.")
      .Integer("plan.tokens", kDefaults.tokens, input::Between(2, kMostTokens), "tokens",
               "Training tokens of a plan where data.file is not there.");
}

Options Read(const input::Deck& deck) {
  return {.vocabulary = deck.Integer("plan.vocabulary"), .tokens = deck.Integer("plan.tokens")};
}

DeckOptions ReadAll(const input::Deck& deck) {
  DeckOptions options{.machine = machine::Read(deck),
                      .comm = comm::Read(deck),
                      .parallel = parallel::Read(deck),
                      .data = data::Read(deck),
                      .model = model::Read(deck),
                      .optimizer = optimizer::Read(deck),
                      .schedule = optimizer::ReadSchedule(deck),
                      .plan = Read(deck)};
  const std::int64_t rows = options.model.asked_vocabulary;
  if (rows > 0) options.plan.vocabulary = rows;
  return options;
}

}  // namespace trireme::plan
