// Scaling study: measures, within one job, the speed of a deck's training step on several numbers
// of ranks, and where the ranks' time goes (doc/scaling.md).
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::tasks {

// Strong scaling keeps the batch; weak scaling lets it grow with the ranks.
enum class ScalingKind { kStrong, kWeak };
const char* NameOf(ScalingKind kind);

struct ScalingOptions {
  std::vector<int> ranks;          // numbers of ranks, ascending; empty: DefaultCounts
  std::vector<ScalingKind> kinds;  // at least one, none twice
  int base_ranks = 0;  // ranks that train on data.batch in weak scaling; 0: the smallest number
  std::int64_t steps = 10;        // measured steps per number of ranks and round
  std::int64_t warmup_steps = 3;  // steps before these, not measured; at least 1
  std::int64_t repeats = 5;       // number of rounds
};

void DeclareScaling(deck::Schema& schema);  // [scaling]

// Throws InputError with the deck's line for a bad value.
ScalingOptions ReadScaling(const deck::Deck& deck);

// Collective. Runs job.task = scaling. Before computing anything, refuses numbers of ranks on which
// the deck's layout, data or memory do not fit (AgreedError, exit code 2). Rewrites scaling.csv
// after every round; kStopped if a signal or the end of the job's time comes first.
ExitCode RunScaling(app::Job& job);

}  // namespace trireme::tasks
