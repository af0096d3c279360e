// NCCL's log of this process's set-up and of its first transfers, kept in memory: NCCL has no call
// that tells how it connects two cards, or by which algorithm it moves what.
#ifndef TRIREME_SRC_COMM_NCCL_LOG_HPP_
#define TRIREME_SRC_COMM_NCCL_LOG_HPP_

#include <string>
#include <utility>
#include <vector>

namespace trireme::comm::nccl {

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

#endif  // TRIREME_SRC_COMM_NCCL_LOG_HPP_
