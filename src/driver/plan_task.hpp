// The task plan: layouts of a deck on a machine that need not be there.
#ifndef TRIREME_SRC_DRIVER_PLAN_TASK_HPP_
#define TRIREME_SRC_DRIVER_PLAN_TASK_HPP_

#include "trireme/job/options.hpp"
#include "trireme/plan/plan.hpp"

namespace trireme::driver {

// Facts of the deck's token file, or what [plan] assumes where it is not there.
plan::TokenFacts FactsForPlan(const job::DeckOptions& options, const input::Deck& deck);

// Prints the layouts, and writes plan.jsonl into job.output if the deck names one. dry: writes
// nothing and searches nothing. InputError for a machine that cannot run the deck.
void PlanMachine(const job::DeckOptions& options, const input::Deck& deck, bool dry);

}  // namespace trireme::driver

#endif  // TRIREME_SRC_DRIVER_PLAN_TASK_HPP_
