// The start of a training job from a local checkpoint, if one is newer than the run folder's.
#ifndef TRIREME_SRC_APP_LOCAL_START_HPP_
#define TRIREME_SRC_APP_LOCAL_START_HPP_

#include <string>

#include "trireme/app/job.hpp"

namespace trireme::app {

// Collective. Whether the path is that of the first candidate, a checkpoint that was named alone.
bool IsFirst(const Job& job, const std::string& path);

// Collective. What the first candidate's run.json says.
RunRecord ReadFirst(const Job& job);

// Collective, for a deck that is read. With checkpoint.local and -r RUN: looks on the nodes, and
// lets the job start from what is there; notes why it does not.
void LookForLocal(Job& job);

// Collective. Goes back to the first candidate; `why` is noted with the steps that are lost.
void LeaveLocal(Job& job, const std::string& why);

}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_LOCAL_START_HPP_
