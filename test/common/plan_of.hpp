// Plans for tests: of a deck's text, for ranks that may not be there.
#pragma once

#include <string>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {

// A deck's text with the values of `overrides`; its name in messages is "deck".
inline deck::Deck ParsedDeck(const std::string& text,
                             const std::vector<std::string>& overrides = {}) {
  static const deck::Schema schema = tasks::DeclareAll();  // decks refer to it
  app::CommandLine line;
  line.deck = "deck";
  line.overrides = overrides;
  return app::ParseDeck(schema, line, text);
}

// The plan of a deck on `ranks` ranks of one thread. Throws InputError with the line in "deck".
inline train::Plan PlanOf(const std::string& text, const train::TokenFacts& tokens, int ranks,
                          Dtype dtype, const std::vector<std::string>& overrides = {},
                          bool bf16_products = false) {
  const deck::Deck deck = ParsedDeck(text, overrides);
  const app::DeckOptions options = app::ReadAll(deck);
  train::MachineFacts machine;
  machine.dtype = dtype;
  machine.stream.bf16 = bf16_products;
  machine.stream.threads = 1;
  return train::MakePlan({options, deck, ranks, tokens, machine});
}

// With the facts of tokens in memory, whose own bytes are not counted.
inline train::Plan PlanOf(const std::string& text, const data::TokenFile& tokens, int ranks,
                          Dtype dtype, const std::vector<std::string>& overrides = {},
                          bool bf16_products = false) {
  const train::TokenFacts facts{.vocabulary = tokens.VocabularySize(),
                                .train = tokens.Size(data::Split::kTrain),
                                .source = "tokens in memory",
                                .undocumented = tokens.HasDocuments(data::Split::kTrain)
                                                    ? std::string()
                                                    : "tokens in memory have no /train/documents",
                                .loss_mask = tokens.HasMask(data::Split::kTrain)};
  return PlanOf(text, facts, ranks, dtype, overrides, bf16_products);
}

}  // namespace trireme::test
