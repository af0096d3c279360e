// The task plan: layouts of a deck on a machine that need not be there.
#ifndef TRIREME_SRC_TASKS_PLAN_TASK_HPP_
#define TRIREME_SRC_TASKS_PLAN_TASK_HPP_

#include "trireme/app/options.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::tasks {

// Facts of the deck's token file, or what [plan] assumes where it is not there.
train::TokenFacts FactsForPlan(const app::DeckOptions& options, const deck::Deck& deck);

// Prints the layouts, and writes plan.jsonl into job.output if the deck names one. dry: writes
// nothing and searches nothing. InputError for a machine that cannot run the deck.
void PlanMachine(const app::DeckOptions& options, const deck::Deck& deck, bool dry);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_PLAN_TASK_HPP_
