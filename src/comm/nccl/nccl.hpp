// The seam to code that is built with CUDA only.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// NCCL's log of this process's set-up and of its first transfers, kept in memory: NCCL has no call
// that tells how it connects two cards, or by which algorithm it moves what.

// Sees to it that NCCL writes its log for this program, before its first call. Not if the
// environment says where the log goes (NCCL_DEBUG, NCCL_DEBUG_FILE): then it is the user's.
void KeepLog();
// What was written since the last call is about the communicator of that name.
void NameLog(const std::string& name);
// Lets NCCL write no more once the log has a MiB: it adds a line for each collective of rank 0.
void BoundLog();
// As comm::DescribeGpuTransfers, with what the log says so far.
std::vector<std::pair<std::string, std::string>> DescribeLog();

// What the lines of a log say of a communicator: "P2P/CUMEM; 16 channels; rings and trees 5d41".
// The last number tells whether two runs have the same rings and trees, as this rank sees them.
std::string DescribeCommunicator(const std::string& lines);
// "AllReduce Ring/LL, Tree/LL128; ReduceScatter Ring/Simple": each kind of transfer with all that
// was taken for it.
std::string DescribeAlgorithms(const std::string& lines);

}  // namespace trireme::comm::nccl
