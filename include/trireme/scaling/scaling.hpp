// Scaling study: the speed of one deck's training step on several numbers of ranks, measured in one
// job, and where the ranks' time went (doc/scaling.md).
#ifndef TRIREME_SCALING_SCALING_HPP_
#define TRIREME_SCALING_SCALING_HPP_

#include "trireme/job/job.hpp"

namespace trireme::scaling {

// Collective. job.task = scaling. Refuses, before anything is computed, numbers of ranks on which
// the deck's layout, data or memory do not fit (AgreedError, exit code 2). Writes scaling.csv anew
// after every round; kStopped if a signal or the end of the job's time comes first.
ExitCode RunScaling(job::Job& job);

}  // namespace trireme::scaling

#endif  // TRIREME_SCALING_SCALING_HPP_
