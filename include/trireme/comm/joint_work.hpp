// Work that ranks do apart and end together: a fault on one rank ends it on all within a poll.
#ifndef TRIREME_COMM_JOINT_WORK_HPP_
#define TRIREME_COMM_JOINT_WORK_HPP_

#include <functional>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

// Called by a rank's work every few tenths of a second; leaves the work if another rank's failed,
// by an exception that is no std::exception and must not be kept.
using Poll = std::function<void()>;

// Collective. Communicator::Together for long work without collectives: `work` runs on this rank,
// and once it has thrown on one rank, the others leave theirs at the next poll but one. Errors are
// those of Together; a rank that left at a poll counts as one that did not fail.
void WorkJointly(const Communicator& world, const std::function<void(const Poll&)>& work);

}  // namespace trireme::comm

#endif  // TRIREME_COMM_JOINT_WORK_HPP_
