// NCCL's calls for each kind of transfer.
#ifndef TRIREME_SRC_COMM_NCCL_OPERATIONS_HPP_
#define TRIREME_SRC_COMM_NCCL_OPERATIONS_HPP_

#include "link.hpp"
#include "trireme/comm/channel.hpp"

namespace trireme::comm::nccl {

// Queues a collective of the group of `link`, in which this is rank `rank` of `ranks`.
void QueueCollective(const Operation& operation, const Link& link, int rank, int ranks);

// Queues a message in a link of two ranks, the sender's and the receiver's in this order. Nothing
// for an empty one.
void QueueSend(const Operation& operation, const Link& link);
void QueueReceive(const Operation& operation, const Link& link);

}  // namespace trireme::comm::nccl

#endif  // TRIREME_SRC_COMM_NCCL_OPERATIONS_HPP_
