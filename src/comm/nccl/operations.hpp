// NCCL's calls for each kind of transfer.
#ifndef TRIREME_SRC_COMM_NCCL_OPERATIONS_HPP_
#define TRIREME_SRC_COMM_NCCL_OPERATIONS_HPP_

#include "link.hpp"
#include "trireme/comm/channel.hpp"

namespace trireme::comm::nccl {

// This rank's place in the group of a link. neighbours: messages between ranks r and r + 1 are
// connected in both directions, so that collectives may be made of them, too.
struct Place {
  int rank = 0, ranks = 1;
  bool neighbours = false;
};

// Queues a collective of the group of `link`.
void QueueCollective(const Operation& operation, const Link& link, const Place& place);

// Queues a message in a link of two ranks, the sender's and the receiver's in this order. Nothing
// for an empty one.
void QueueSend(const Operation& operation, const Link& link);
void QueueReceive(const Operation& operation, const Link& link);

}  // namespace trireme::comm::nccl

#endif  // TRIREME_SRC_COMM_NCCL_OPERATIONS_HPP_
