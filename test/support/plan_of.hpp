// Plans for tests: of a deck's text, for ranks that may not be there.
#ifndef TRIREME_TEST_SUPPORT_PLAN_OF_HPP_
#define TRIREME_TEST_SUPPORT_PLAN_OF_HPP_

#include <string>
#include <vector>

#include "trireme/driver/tasks.hpp"
#include "trireme/job/job.hpp"
#include "trireme/plan/plan.hpp"

namespace trireme::test {

// The plan of a deck on `ranks` ranks of one thread. Throws InputError with the line in "deck".
inline plan::Plan PlanOf(const std::string& text, const plan::TokenFacts& tokens, int ranks,
                         Dtype dtype, const std::vector<std::string>& overrides = {}) {
  static const input::Schema schema = driver::DeclareAll();  // decks refer to it
  const job::CommandLine line{.deck = "deck", .overrides = overrides};
  const input::Deck deck = job::ParseDeck(schema, line, text);
  const job::DeckOptions options = job::ReadAll(deck);
  plan::MachineFacts machine{.dtype = dtype};
  machine.stream.threads = 1;
  return plan::MakePlan({options, deck, ranks, tokens, machine});
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_PLAN_OF_HPP_
