// The seam to code that is built with CUDA only.
#ifndef TRIREME_SRC_COMM_NCCL_MAKE_CHANNEL_HPP_
#define TRIREME_SRC_COMM_NCCL_MAKE_CHANNEL_HPP_

#include <memory>

#include "trireme/comm/channel.hpp"

namespace trireme::comm::nccl {

// Collective over `group`, of two ranks at least.
std::string Library();
std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup);

}  // namespace trireme::comm::nccl

#endif  // TRIREME_SRC_COMM_NCCL_MAKE_CHANNEL_HPP_
