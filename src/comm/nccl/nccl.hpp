// The interface to the code that is built only with CUDA.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/channel.hpp"

namespace trireme::comm::nccl {

std::string Library();
// See comm::LetRanksShareGpus.
std::string LetRanksShareGpus();
// Whether NCCL launches the transfers of several communicators on a card in one order (2.26,
// NCCL_LAUNCH_ORDER_IMPLICIT). If not, two of them may each wait for room that the other holds.
bool OrdersLaunches();
// "12.2": the CUDA version of a driver so old that NCCL orders launches by running a card's
// transfers one after another; "" if transfers run side by side.
std::string SerialisingDriver();

// Whether transfers in a graph may run side by side: with a driver for CUDA 12.9 or newer, or if
// the user has switched the order of launches off.
bool GraphsOverlapTransfers();

// Collective over `group`, which must have two ranks or more.
std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup);

// NCCL's log of this process's set-up and first transfers, kept in memory, because no NCCL call
// tells how it connects two cards or which algorithm it uses.

// Makes NCCL write its log for this program; to be called before NCCL's first call. Does nothing if
// the environment directs the log (NCCL_DEBUG, NCCL_DEBUG_FILE).
void KeepLog();
// Assigns the lines written since the last call of NameLog to the communicator of that name.
void NameLog(const std::string& name);
// Closes the log once it has 1 MiB: NCCL adds a line for each collective of rank 0.
void BoundLog();
// What comm::DescribeGpuTransfers returns, from the log so far.
std::vector<std::pair<std::string, std::string>> DescribeLog();

// What log lines say about a communicator: "P2P/CUMEM; 16 channels; rings and trees 00005d41". The
// last number is a hash: equal if two runs have the same rings and trees, as this rank sees them.
std::string DescribeCommunicator(const std::string& lines);
// "AllReduce Ring/LL, Tree/LL128; ReduceScatter Ring/Simple": each kind of transfer with the
// algorithms and protocols used for it.
std::string DescribeAlgorithms(const std::string& lines);

}  // namespace trireme::comm::nccl
