// Plans of decks on described machines, for tests.
#ifndef TRIREME_TEST_UNIT_SIMULATE_CASES_HPP_
#define TRIREME_TEST_UNIT_SIMULATE_CASES_HPP_

#include <memory>
#include <string>
#include <vector>

#include "trireme/app/sources.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::predict::test {

// A deck of lines "section.key=value" on `ranks` ranks of a machine.
struct Case {
  Case(const std::string& name, int ranks, const std::vector<std::string>& keys)
      : machine(ReadMachine(name, TRIREME_SOURCE)) {
    static const deck::Schema schema = tasks::DeclareAll();  // decks refer to it
    app::CommandLine line;
    line.deck = "a.in";
    line.overrides = keys;
    const deck::Deck deck = app::ParseDeck(schema, line, "");
    const train::DeckOptions options = train::ReadAll(deck);
    if (machine.gpu) gpu = std::make_unique<device::Gpu>(machine.Card());
    plan = train::MakePlan({.options = options,
                            .deck = deck,
                            .ranks = ranks,
                            .tokens = {.vocabulary = options.plan.vocabulary,
                                       .train = options.plan.tokens,
                                       .bytes = 0,
                                       .source = "a test"},
                            .machine = train::FactsOf(options.machine.precision, gpu.get(), 1)});
  }
  Machine machine;
  std::unique_ptr<device::Gpu> gpu;
  train::Plan plan;
};

}  // namespace trireme::predict::test

#endif  // TRIREME_TEST_UNIT_SIMULATE_CASES_HPP_
