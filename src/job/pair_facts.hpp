// Facts of a job's file of pairs.
#ifndef TRIREME_JOB_PAIR_FACTS_HPP_
#define TRIREME_JOB_PAIR_FACTS_HPP_

#include "trireme/job/job.hpp"

namespace trireme::job {

// Serial; needs no MPI. Reads the lengths of the training split's pairs if the task's plan depends
// on its batches. shared_by: ranks of a node.
plan::TokenFacts FactsOfPairs(const DeckOptions& options, const input::Deck& deck, int shared_by);
}  // namespace trireme::job

#endif  // TRIREME_JOB_PAIR_FACTS_HPP_
