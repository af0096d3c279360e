// Network: seconds of a transfer, from the places of its ranks and the machine's links.
#ifndef TRIREME_SRC_PREDICT_NETWORK_HPP_
#define TRIREME_SRC_PREDICT_NETWORK_HPP_

#include "trireme/comm/process_grid.hpp"
#include "trireme/device/work_log.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::predict {

// A transfer on a link with nobody else: a delay, then seconds in which it takes the link.
struct Cost {
  double latency = 0, seconds = 0;
  bool network = false;  // leaves the node
};

// The links as one rank sees them.
class Network {
 public:
  Network(const Machine& machine, const comm::GridShape& shape, const comm::GridOptions& options,
          int rank);
  Cost Of(const device::LoggedTransfer& transfer) const;

 private:
  // Ranks of a group, `stride` apart in the world.
  int StrideOf(comm::Group group) const;
  int RanksOnNode(comm::Group group, int ranks) const;
  Cost OfMessage(const device::LoggedTransfer& transfer) const;
  const Machine& machine_;
  const comm::GridShape shape_;
  const int shard_ranks_, rank_;
};

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_NETWORK_HPP_
