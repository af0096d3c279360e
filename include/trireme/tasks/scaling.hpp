// Scaling study: the speed of one deck's training step on several numbers of ranks, measured in one
// job, and where the ranks' time went (doc/scaling.md).
#ifndef TRIREME_TASKS_SCALING_HPP_
#define TRIREME_TASKS_SCALING_HPP_

#include "trireme/app/job.hpp"

namespace trireme::tasks {

// Collective. job.task = scaling. Refuses, before anything is computed, numbers of ranks on which
// the deck's layout, data or memory do not fit (AgreedError, exit code 2). Writes scaling.csv anew
// after every round; kStopped if a signal or the end of the job's time comes first.
ExitCode RunScaling(app::Job& job);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_SCALING_HPP_
