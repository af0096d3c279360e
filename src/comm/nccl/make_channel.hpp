// The seam to code that is built with CUDA only.
#ifndef TRIREME_SRC_COMM_NCCL_MAKE_CHANNEL_HPP_
#define TRIREME_SRC_COMM_NCCL_MAKE_CHANNEL_HPP_

#include <memory>
#include <string>

#include "trireme/comm/channel.hpp"

namespace trireme::comm::nccl {

std::string Library();
// As comm::LetRanksShareGpus.
std::string LetRanksShareGpus();
// Whether launches of several communicators of a card come in one order (NCCL 2.26,
// NCCL_LAUNCH_ORDER_IMPLICIT). Else two of them may each wait for the other's room on a card.
bool OrdersLaunches();
// The CUDA of a driver that is too old to order launches otherwise than by running one transfer of
// a card after another: "12.2"; "" if none is run in this way.
std::string SerialisingDriver();

// Whether transfers of a graph may run side by side (a driver for CUDA 12.9), unless the user has
// switched the order of launches off.
bool GraphsOverlapTransfers();

// Collective over `group`, of two ranks at least.
std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup);

}  // namespace trireme::comm::nccl

#endif  // TRIREME_SRC_COMM_NCCL_MAKE_CHANNEL_HPP_
