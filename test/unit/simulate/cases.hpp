// Plans of decks on described machines, for tests.
#ifndef TRIREME_TEST_UNIT_SIMULATE_CASES_HPP_
#define TRIREME_TEST_UNIT_SIMULATE_CASES_HPP_

#include <memory>
#include <string>
#include <vector>

#include "trireme/driver/tasks.hpp"
#include "trireme/job/command_line.hpp"
#include "trireme/plan/plan.hpp"
#include "trireme/simulate/machine.hpp"

namespace trireme::simulate::test {

// A deck of lines "section.key=value" on `ranks` ranks of a machine.
struct Case {
  Case(const std::string& name, int ranks, const std::vector<std::string>& keys)
      : machine(ReadMachine(name, TRIREME_SOURCE)) {
    static const input::Schema schema = driver::DeclareAll();  // decks refer to it
    job::CommandLine line;
    line.deck = "a.in";
    line.overrides = keys;
    const input::Deck deck = job::ParseDeck(schema, line, "");
    const plan::DeckOptions options = plan::ReadAll(deck);
    if (machine.gpu) gpu = std::make_unique<device::Gpu>(machine.Card());
    plan = plan::MakePlan({.options = options,
                           .deck = deck,
                           .ranks = ranks,
                           .tokens = {.vocabulary = options.plan.vocabulary,
                                      .train = options.plan.tokens,
                                      .bytes = 0,
                                      .source = "a test"},
                           .machine = plan::FactsOf(options.machine.precision, gpu.get(), 1)});
  }
  Machine machine;
  std::unique_ptr<device::Gpu> gpu;
  plan::Plan plan;
};

}  // namespace trireme::simulate::test

#endif  // TRIREME_TEST_UNIT_SIMULATE_CASES_HPP_
