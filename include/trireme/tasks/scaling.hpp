// Scaling study: the speed of one deck's training step on several numbers of ranks, measured in one
// job, and where the ranks' time went (doc/scaling.md).
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::tasks {

// The [scaling] section: which counts of ranks a scaling study compares, and how long it measures.

// Strong: the batch stays. Weak: it grows with the ranks.
enum class ScalingKind { kStrong, kWeak };
const char* NameOf(ScalingKind kind);

struct ScalingOptions {
  std::vector<int> ranks;          // counts, rising; empty: DefaultCounts
  std::vector<ScalingKind> kinds;  // at least one, none twice
  int base_ranks = 0;       // for which data.batch stands in weak scaling; 0: the smallest count
  std::int64_t steps = 10;  // measured, of each count in each round
  std::int64_t warmup_steps = 3;  // before them, dropped; at least one
  std::int64_t repeats = 5;       // rounds
};

void DeclareScaling(deck::Schema& schema);  // [scaling]

// Throws InputError with the deck's line.
ScalingOptions ReadScaling(const deck::Deck& deck);

// Collective. job.task = scaling. Refuses, before anything is computed, numbers of ranks on which
// the deck's layout, data or memory do not fit (AgreedError, exit code 2). Writes scaling.csv anew
// after every round; kStopped if a signal or the end of the job's time comes first.
ExitCode RunScaling(app::Job& job);

}  // namespace trireme::tasks
