// Facts of a job's file of pairs.
#ifndef TRIREME_SRC_APP_PAIR_FACTS_HPP_
#define TRIREME_SRC_APP_PAIR_FACTS_HPP_

#include "trireme/app/job.hpp"

namespace trireme::app {

// Serial; needs no MPI. Reads the lengths of the training split's pairs if the task's plan depends
// on its batches. shared_by: ranks of a node.
train::TokenFacts FactsOfPairs(const DeckOptions& options, const deck::Deck& deck, int shared_by);
}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_PAIR_FACTS_HPP_
